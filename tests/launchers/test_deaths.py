"""A server that loses workers again and again: a whole run. See also `tests/strategies`."""

import contextlib
import random
import re
import time
from pathlib import Path

import psutil
import pytest

from tests.launchers.test_failures import Victim, victims
from tests.ranks import LIMIT, wait_until

__all__ = ["victims"]


@pytest.mark.slow
def test_twenty_kills_in_a_row_do_not_stop_the_server(tmp_path: Path, victims: list[Victim]) -> None:
    options = ("--restarts", "20", "--lr", "0.001", "--model", "tests.workload:batch_norm")
    victims.append(victim := Victim(tmp_path, "async_param_server", *options, "--dataset", "tests.workload:moons"))
    server = victim.wait_until("training")[0]
    chance = random.Random(0)
    killed: set[int] = set()
    while len(killed) < 20:
        assert wait_until(lambda: bool(alive(victim, server, killed)), LIMIT), victim.said()
        time.sleep(chance.uniform(0, 0.5))  # at any moment of its life
        assert victim.process.poll() is None, victim.said()
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):  # it may have ended by itself
            one = chance.choice(alive(victim, server, killed))
            one.kill()
            killed.add(one.pid)
    steps = progress(victim)
    assert wait_until(lambda: progress(victim) > steps, LIMIT), "the server continues"
    victim.process.terminate()
    assert "ended by SIGTERM" in victim.check_end()


def alive(victim: Victim, server: psutil.Process, killed: set[int]) -> list[psutil.Process]:
    """The workers that have not been killed."""
    return [rank for rank in victim.ranks() if rank.pid != server.pid and rank.pid not in killed]


def progress(victim: Victim) -> int:
    found = re.findall(r"\| (\d+)/", victim.said())
    return int(found[-1]) if found else 0
