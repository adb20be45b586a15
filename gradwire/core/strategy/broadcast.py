"""Broadcast: one rank's vector to the others, with which every run begins."""

from collections.abc import Sequence

import torch

from gradwire.core.transports.base import Transport


def broadcast(
    vector: torch.Tensor, transport: Transport, tag: str, root: int = 0, ranks: Sequence[int] | None = None
) -> None:
    """Copy `vector` [P] of `root` to every one of `ranks`, by default all. Raises PeerLost, WaitTimeout."""
    if transport.rank == root:
        peers = [peer for peer in transport.peers if ranks is None or peer in ranks]
        for work in [transport.isend(vector, peer, tag) for peer in peers]:
            work.wait()
    else:
        transport.recv(root, tag).copy_to(vector)
