"""Real runs whose messages are held back, as on a network: the same result, later."""

from pathlib import Path
from typing import Any

import pytest

from records.errors import UsageError
from tests.engines import LIMIT
from tests.runs import made, small, strategy_of
from training import run


def test_a_run_on_a_link_has_the_same_result_later(tmp_path: Path) -> None:
    plain = made(tmp_path, "ring_all_reduce", "plain", n_gpus=3, epochs=1)
    held = made(tmp_path, "ring_all_reduce", "held", n_gpus=3, epochs=1, bandwidth="100mbit", latency="2ms")
    assert set(held["parameter_hash"].values()) == set(plain["parameter_hash"].values())
    assert held["bytes_sent"] == plain["bytes_sent"]
    steps, one_after_the_other = 4, 4
    assert held["seconds"] > steps * one_after_the_other * 2e-3, "every message takes its latency"
    assert held["options"]["bandwidth"] == "100mbit"


@pytest.mark.parametrize(
    ("strategy", "changes", "message"),
    [
        ("ring_all_reduce", {"bandwidth": "fast"}, "--bandwidth fast: write a bandwidth such as 1gbit"),
        ("ring_all_reduce", {"latency": "1gbit"}, "--latency 1gbit: write a time such as 50us"),
        ("ring_all_reduce", {"bandwidth": "0.1B/s"}, f"--timeout {LIMIT:g}: on this link the initial parameters"),
        ("inconsistent_reads", {"latency": "1ms"}, "--bandwidth, --latency: the workers of inconsistent_reads read x"),
        ("ring_all_reduce_builtin", {"latency": "1ms"}, "--bandwidth, --latency: torch itself carries the messages"),
    ],
)
def test_what_no_link_can_hold_back_is_refused(
    tmp_path: Path, strategy: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        run(small(tmp_path, strategy_of(strategy), n_gpus=3, **changes), quiet=True)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
