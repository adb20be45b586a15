"""Lab 9: other ways that are right, and training by the three functions."""

from pathlib import Path

import pytest

from lessons.memory import Mine
from lessons.solutions import memory
from strategies import FullySharded, Strategy
from tests.lessons.judged import judge_changed
from tests.ranks import virtual_time
from tests.runs import metadata, small
from training import run

RING = """def gather(transport, block):
    N, r = transport.world_size, transport.rank
    parameters = block.own.new_empty(sum(block.lengths))
    chunks = block.cut(parameters)
    chunks[(r + 1) % N].copy_(block.own)
    for s in range(N - 1):
        transport.isend(chunks[(r + 1 - s) % N], (r + 1) % N, "parameters").wait()
        transport.recv((r - 1) % N, "parameters").copy_to(chunks[(r - s) % N])
    block.parameters = parameters
"""
COPIED = """def reduce_scatter(transport, block):
    N, r = transport.world_size, transport.rank
    chunks = block.cut(block.gradients)
    sent = [transport.isend(chunks[(k + 1) % N], k, "gradients") for k in transport.peers]
    block.own_gradients = chunks[(r + 1) % N].clone()
    for k in transport.peers:
        with transport.recv(k, "gradients") as received:
            block.own_gradients.add_(received.vector)
    block.own_gradients.div_(N)
    for work in sent:
        work.wait()
    block.gradients = None
"""
RING_OF_SUMS = """def reduce_scatter(transport, block):
    N, r = transport.world_size, transport.rank
    chunks = block.cut(block.gradients)
    sent = []
    for s in range(N - 1):
        sent.append(transport.isend(chunks[(r - s) % N], (r + 1) % N, "gradients"))
        with transport.recv((r - 1) % N, "gradients") as received:
            chunks[(r - s - 1) % N].add_(received.vector)
    for work in sent:
        work.wait()
    block.own_gradients = chunks[(r + 1) % N] / N
    block.gradients = None
"""


@pytest.mark.parametrize("ring", [RING, RING_OF_SUMS])
def test_a_ring_is_right_and_takes_more_rounds(ring: str) -> None:
    found = judge_changed("memory", ring)
    assert found.kind == "costly"
    assert {figure.name for figure in found.figures if not figure.is_best} == {"rounds", "virtual seconds"}


@pytest.mark.parametrize("freed", ["del block.parameters", "block.parameters.untyped_storage().resize_(0)"])
def test_other_ways_to_free_and_to_reduce_are_as_good(freed: str) -> None:
    assert judge_changed("memory", ("    block.parameters = None", f"    {freed}"), COPIED).points == 100


def test_training_by_the_functions_has_the_bytes_and_the_memory_of_the_strategy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, function in (("gather", memory.gather), ("free", memory.free), ("reduce", memory.reduce_scatter)):
        monkeypatch.setattr(Mine, f"{name}_block", staticmethod(function))

    def train(strategy: Strategy) -> dict[str, object]:
        folder = tmp_path / strategy.name
        given = small(folder, strategy, n_gpus=3, memory=True, model="tests.training.test_memory:wide")
        run(given, quiet=True, launcher=virtual_time(3).launcher())
        found = metadata(folder)
        assert found["replicas_identical"]
        at_peak = {rank: one["at_peak"] for rank, one in found["memory"].items()}
        return {"bytes": found["bytes_sent"], "peak": at_peak}

    assert train(Mine()) == train(FullySharded())
