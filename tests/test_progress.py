"""Ctrl-C ends a session of tests with one message."""

import signal

from tests.ranks import launch
from transports.base import Transport


def blocks_interrupts(transport: Transport) -> bool:
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_what_the_tests_start_leaves_ctrl_c_to_pytest() -> None:
    assert launch(blocks_interrupts, 1) == [True]
