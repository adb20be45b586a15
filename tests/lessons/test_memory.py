"""Lab 9: other ways that are right."""

import pytest

from tests.lessons.judged import judge_changed

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
