"""Lab 10: what differs between numbers and sets, rounds, and seconds on racks."""

from pathlib import Path

import pytest

from lessons import check, processes
from lessons.lab import BANDWIDTH, LATENCY, Case
from lessons.labs.logarithms import count_rounds
from lessons.networks import AllReduce, measure
from lessons.report import Report
from lessons.solutions import logarithms
from strategies.collectives import ring_all_reduce
from tests.lessons.judged import judge_changed, play_solution
from tests.lessons.mistakes import write

BEGIN = "    part, sent, back, distance = vector, [], [], 1\n"


def test_rounds_are_counted_as_if_a_rank_sent_and_received_one_message_in_each() -> None:
    to_one_and_back = """def recursive_doubling(transport, vector):
    from strategies.collectives import naive_all_reduce

    naive_all_reduce(vector, transport)
"""
    found = judge_changed("logarithms", to_one_and_back)
    assert found.right
    assert found.figures[0].yours == 14, "7 into rank 0, and 7 out of it"
    assert count_rounds(play_solution("ring", Case(4, 24)).sent, 4) == 6


@pytest.mark.slow
def test_what_hangs_on_sets_only_is_ended_and_what_is_printed_there_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_COMPUTING_S", 1.0)
    on_sets = f"    print(vector.dtype)\n    while vector.dtype == torch.int64:\n        pass\n{BEGIN}"
    found = check.check_file("logarithms", write(tmp_path, "logarithms", (BEGIN, on_sets)))
    assert (found.kind, found.points) == ("loop", 30)
    assert "halving_doubling, N = 2, 8 elements: your code does not come to an end at line " in found.verdict
    assert found.printed == "rank 0 printed: torch.float32\nrank 1 printed: torch.float32\n"


@pytest.mark.parametrize(
    ("racks", "all_reduce", "messages", "vectors"),
    [
        (1, logarithms.recursive_doubling, 3, 3),
        (2, logarithms.recursive_doubling, 3, 6),
        (1, logarithms.halving_doubling, 6, 1.75),
        (2, logarithms.halving_doubling, 6, 2.5),
        (2, lambda transport, vector: ring_all_reduce(vector, transport), 14, 1.75),
    ],
)
def test_the_answers_on_racks_are_what_is_measured(
    racks: int, all_reduce: AllReduce, messages: int, vectors: float
) -> None:
    times = measure(Report(check.LABS["logarithms"], "right", ""), {"it": all_reduce}, [640_000], racks=racks)
    assert not isinstance(times, str)
    seconds = messages * LATENCY + vectors * 640_000 / BANDWIDTH
    assert times.loc[640_000, "it"] == pytest.approx(1000 * seconds, rel=1e-6)


def test_nothing_is_measured_of_what_is_not_right() -> None:
    wrong = Report(check.LABS["logarithms"], "wrong", "")
    assert measure(wrong, {"it": logarithms.halving_doubling}, [4]) == (
        "not measured: first have the check say that it is right"
    )
