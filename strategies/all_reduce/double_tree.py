"""Double tree: two binary trees sum half a vector each (Sanders, Speck, Träff, 2009).

The leaves of one tree are inner nodes of the other, so that each rank sends and receives about two vectors. A half is
cut into segments that follow each other up the tree and down: few messages one after the other, and all cards at work.
The trees are those of NCCL 2.4.

Any N: the second tree is the first mirrored, or for odd N moved on by one rank, and rank 0 is an inner node of both.
"""

from dataclasses import dataclass

import torch

from gradwire.core.records.errors import between
from gradwire.core.strategy.run_size import RunSize
from gradwire.core.strategy.traits import Cost, Traffic
from gradwire.core.transports.base import Transport, Work
from strategies.all_reduce.all_reduce_sgd import AllReduceSGD


def double_tree(vector: torch.Tensor, transport: Transport, n: int = 0, segments: int = 8) -> int:
    """Replace `vector` [P] on every rank by the sum over all ranks, in place; return the sum of their `n`.

    A leaf sends all segments ahead, and takes those that come down last, so that neither tree waits for the other.
    Raises PeerLost, WaitTimeout.
    """
    nodes, sent = [], list[Work]()
    for t, half in enumerate(vector.tensor_split(2)):
        nodes.append((*node(transport.rank, transport.world_size, t), half.tensor_split(segments), t))
    leaves, inner = ([one for one in nodes if bool(one[1]) == is_inner] for is_inner in (False, True))
    total = n
    for of_kind in (leaves, inner[::-1]):  # up, the leaves ahead
        for i in range(segments):
            for parent, children, parts, t in of_kind:
                total = n
                for child in children:
                    with transport.recv(child, f"up {t}") as received:
                        parts[i].add_(received.vector)
                        total += received.n
                if parent is not None:
                    sent.append(transport.isend(parts[i], parent, f"up {t}", n=total))
    for parent, children, parts, t in inner + leaves:  # down, the leaves last
        for part in parts:
            if parent is not None:
                received = transport.recv(parent, f"down {t}")
                total = received.n
                received.copy_to(part)
            sent += [transport.isend(part, child, f"down {t}", n=total) for child in children]
    for work in sent:
        work.wait()
    return total


def node(rank: int, N: int, tree: int) -> tuple[int | None, list[int]]:
    """Return the parent (None: it is the root) and the children of a rank in tree 0 or 1 of N ranks.

    In tree 0 the parent of a number ends in one more zero bit; where there is none, the 1 before it is dropped.
    """

    def above(i: int) -> int:
        low = i & -i
        up = i ^ low | low << 1
        return up if up < N else i ^ low

    def moved(i: int, way: int) -> int:
        return i if tree == 0 else N - 1 - i if N % 2 == 0 else (i + way) % N

    i = moved(rank, -1)
    near = [j for k in range(N.bit_length()) for j in (i - (1 << k), i + (1 << k))]
    children = [moved(j, 1) for j in near if 0 < j < N and above(j) == i]
    return moved(above(i), 1) if i else None, children


@dataclass(kw_only=True)
class DoubleTree(AllReduceSGD):
    """Two binary trees of all ranks sum a half of the gradient each, in segments, and send the sums back."""

    segments: int = 8
    """Into which the half of each tree is cut; best is sqrt(log2(N) P / (2 bandwidth overhead)): see --overhead of
    simulate.py."""

    def check(self, run: RunSize) -> None:
        """See Strategy."""
        between(self, "segments", 1, 100_000)

    def cost(self, kind: str | None = None) -> Cost:
        """Both trees have N - 1 edges. Where two children send at a time, their messages share their parent's card.

        So a segment takes 2 P / (2 segments) up each edge but the root's only one, the others follow it, and all come
        down likewise. Where cards pass messages in order, what is sent ahead delays what follows. Where N = 2^h that is
        the time to 2 %, in order to 7 %. Odd N: up to 1/2 more, for rank 0 serves both trees.
        """
        h = "ceil(log2(N))"
        fair, in_order = (
            Traffic(f"2 {h}", f"{halves} G / segments", in_turn=f"2 {halves}")
            for behind in ("min(2, N - 1)", "(min(2, N - 1) + (N > 6) / 2)")
            for halves in [f"(2 {h} - 1 + (segments - 1) {behind})"]
        )
        return Cost(Traffic("4 (N - 1) segments / N", "2 (N - 1) G / N"), path=fair, in_order=in_order)

    def all_reduce(self, vector: torch.Tensor, n: int) -> int:
        """See `double_tree`."""
        return double_tree(vector, self.transport, n, self.segments)
