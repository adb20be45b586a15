"""Lab 10: other ways that are right, what differs between numbers and sets, rounds, seconds on racks, and training."""

from pathlib import Path

import pytest

from lessons import check, processes
from lessons.lab import BANDWIDTH, LATENCY, Case
from lessons.labs.logarithms import count_rounds
from lessons.logarithms import Mine
from lessons.networks import AllReduce, measure
from lessons.report import Report
from lessons.solutions import logarithms
from strategies import RecursiveDoubling, Strategy
from strategies.collectives import ring_all_reduce
from tests.lessons.judged import judge_changed, play_solution
from tests.lessons.mistakes import write
from tests.ranks import virtual_time
from tests.runs import metadata, small
from training import run

FARTHEST_FIRST = ("vector, [], [], 1\n    while distance < N:", "vector, [], [], N // 2\n    while distance:")
BEGIN = "    part, sent, back, distance = vector, [], [], 1\n"


def test_the_farthest_partner_may_be_the_first() -> None:
    back = ("        back.append((partner, part, theirs))\n        distance *= 2",
            "        back.append((partner, part, theirs))\n        distance //= 2")  # fmt: skip
    assert judge_changed("logarithms", FARTHEST_FIRST, back).points == 100


def test_rounds_are_counted_as_if_a_rank_sent_and_received_one_message_in_each() -> None:
    to_one_and_back = """def recursive_doubling(transport, vector):
    from strategies.collectives import naive_all_reduce

    naive_all_reduce(vector, transport)
"""
    found = judge_changed("logarithms", to_one_and_back)
    assert found.right
    assert found.figures[0].yours == 14, "7 into rank 0, and 7 out of it"
    assert count_rounds(play_solution("ring", Case(4, 24)).sent, 4) == 6


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("transport.clone()", "rank 0, round 1: AttributeError: "),
        ("raise SystemExit", "on vectors of integers: SystemExit"),
        ("raise ValueError('not these')", "rank 0, round 1: ValueError: not these"),
        ("transport.recv(1 - r, 'x')", "rank 0, round 1: waits for 'x' of rank 1, which never comes"),
    ],
)
def test_what_goes_wrong_on_sets_only_is_told(code: str, text: str) -> None:
    on_sets = f"    if vector.dtype == torch.int64:\n        {code}\n{BEGIN}"
    found = judge_changed("logarithms", (BEGIN, on_sets))
    assert (found.kind, found.points) == ("wrong", 30)
    assert f"halving_doubling: N = 2, length 8{', ' * text.startswith('on')}" in found.verdict
    assert text in found.verdict


@pytest.mark.slow
def test_what_hangs_on_sets_only_is_ended_and_what_is_printed_there_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_COMPUTING_S", 2.0)
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


def test_training_by_the_function_is_training_by_the_strategy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mine, "add_up", staticmethod(logarithms.recursive_doubling))

    def train(strategy: Strategy) -> object:
        folder = tmp_path / strategy.name
        run(small(folder, strategy, n_gpus=3), quiet=True, launcher=virtual_time(3).launcher())
        found = metadata(folder)
        assert found["replicas_identical"]
        return found["bytes_sent"]

    assert train(Mine()) == train(RecursiveDoubling())
