"""Lab 10, solved: `recursive_doubling.py` and `halving_doubling.py` of `strategies/all_reduce/`."""

import torch

from gradwire.core.transports.base import Transport


def recursive_doubling(transport: Transport, vector: torch.Tensor) -> None:
    """Replace `vector` [P] on every rank by the sum over all N ranks, in place."""
    N, r = transport.world_size, transport.rank
    p = 1 << (N.bit_length() - 1)
    paired = 2 * (N - p)
    if r < paired and r % 2 == 0:
        transport.isend(vector, r + 1, "fold").wait()
        transport.recv(r + 1, "unfold").copy_to(vector)
        return
    if r < paired:
        with transport.recv(r - 1, "fold") as received:
            vector.add_(received.vector)
    left = [*range(1, paired, 2), *range(paired, N)]
    came, distance = torch.empty_like(vector), 1
    while distance < p:
        partner = left[left.index(r) ^ distance]
        sent = transport.isend(vector, partner, "doubling")
        transport.recv(partner, "doubling").copy_to(came)
        sent.wait()
        vector.add_(came)
        distance *= 2
    if r < paired:
        transport.isend(vector, r - 1, "unfold").wait()


def halving_doubling(transport: Transport, vector: torch.Tensor) -> None:
    """Replace `vector` [P] on every rank by the sum over all N ranks, in place; N is a power of two."""
    N, r = transport.world_size, transport.rank
    part, sent, back, distance = vector, [], [], 1
    while distance < N:
        partner, mine = r ^ distance, int(r & distance > 0)
        halves = torch.tensor_split(part, 2)
        part, theirs = halves[mine], halves[1 - mine]
        sent.append(transport.isend(theirs, partner, "halving"))
        with transport.recv(partner, "halving") as received:
            part.add_(received.vector)
        back.append((partner, part, theirs))
        distance *= 2
    for partner, part, theirs in reversed(back):
        sent.append(transport.isend(part, partner, "doubling"))
        transport.recv(partner, "doubling").copy_to(theirs)
    for work in sent:
        work.wait()
