"""Lab 9, solved: what `strategies/all_reduce/fully_sharded.py` does to a block, without weights."""

from gradwire.core.transports.base import Transport
from lessons.memory import Block


def gather(transport: Transport, block: Block) -> None:
    """Set block.parameters to a new vector [n] of the chunks of all ranks."""
    N, r = transport.world_size, transport.rank
    parameters = block.own.new_empty(sum(block.lengths))
    chunks = block.cut(parameters)
    chunks[(r + 1) % N].copy_(block.own)
    sent = [transport.isend(block.own, (r + i) % N, "parameters") for i in range(1, N)]
    for k in transport.peers:
        transport.recv(k, "parameters").copy_to(chunks[(k + 1) % N])
    for work in sent:  # until the others have read it, the optimizer is not to change it
        work.wait()
    block.parameters = parameters


def free(block: Block) -> None:
    """Free the memory of block.parameters."""
    block.parameters = None


def reduce_scatter(transport: Transport, block: Block) -> None:
    """Set block.own_gradients to this rank's chunk of the mean over all ranks; free the memory of block.gradients."""
    assert block.gradients is not None
    N, r = transport.world_size, transport.rank
    chunks = block.cut(block.gradients)
    sent = [transport.isend(chunks[(k + 1) % N], k, "gradients") for k in transport.peers]
    for k in transport.peers:
        with transport.recv(k, "gradients") as received:
            chunks[(r + 1) % N].add_(received.vector)
    for work in sent:
        work.wait()
    block.own_gradients = chunks[(r + 1) % N] / N
    block.gradients = None
