"""Double tree: two binary trees sum half a vector each (Sanders, Speck, Träff, 2009).

The leaves of one tree are inner nodes of the other, so that each rank sends and receives about two vectors. A half is
cut into segments that follow each other up the tree and down: few messages one after the other, and all cards at work.
The trees are those of NCCL 2.4.

Any N: the second tree is the first mirrored, or for odd N moved on by one rank, and rank 0 is an inner node of both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from gradwire.core.records.options import option
from gradwire.core.strategy.traits import Cost, Traffic
from gradwire.core.transports.base import Transport, Work
from strategies.all_reduce.all_reduce_sgd import AllReduceSGD


class Node(NamedTuple):
    """The place of a rank in one of the trees, and the segments of the tree's half."""

    tree: int
    parent: int | None
    children: list[int]
    segments: Sequence[torch.Tensor]


def double_tree(vector: torch.Tensor, transport: Transport, n: int = 0, segments: int = 8) -> int:
    """Replace `vector` [P] on every rank by the sum over all ranks, in place; return the sum of their `n`.

    A leaf sends all segments ahead, and takes those that come down last, so that neither tree waits for the other.
    Raises PeerLost, WaitTimeout.
    """
    nodes = [
        Node(tree, *neighbours(transport.rank, transport.world_size, tree), half.tensor_split(segments))
        for tree, half in enumerate(vector.tensor_split(2))
    ]
    leaves, inner = ([node for node in nodes if bool(node.children) == is_inner] for is_inner in (False, True))
    total, sent = n, list[Work]()
    for of_kind in (leaves, inner[::-1]):  # up, the leaves ahead
        for i in range(segments):
            for node in of_kind:
                total, works = reduce_segment(node, i, transport, n)
                sent += works
    for node in inner + leaves:  # down, the leaves last
        for i in range(segments):
            total, works = broadcast_segment(node, i, transport, total)
            sent += works
    for work in sent:
        work.wait()
    return total


def reduce_segment(node: Node, i: int, transport: Transport, n: int) -> tuple[int, list[Work]]:
    """Add the segments i of the children to this rank's, and send the sum up."""
    for child in node.children:
        with transport.recv(child, f"up {node.tree}") as received:
            node.segments[i].add_(received.vector)
            n += received.n
    if node.parent is None:
        return n, []
    return n, [transport.isend(node.segments[i], node.parent, f"up {node.tree}", n=n)]


def broadcast_segment(node: Node, i: int, transport: Transport, n: int) -> tuple[int, list[Work]]:
    """Take the finished segment i of the parent, and send it down."""
    if node.parent is not None:
        received = transport.recv(node.parent, f"down {node.tree}")
        n = received.n
        received.copy_to(node.segments[i])
    return n, [transport.isend(node.segments[i], child, f"down {node.tree}", n=n) for child in node.children]


def neighbours(rank: int, N: int, tree: int) -> tuple[int | None, list[int]]:
    """Return the parent (None: it is the root) and the children of a rank in tree 0 or 1 of N ranks.

    In tree 0 number i has the parent whose lowest one bit is twice that of i: of 1 and 3 it is 2, of 2 and 6 it is 4.
    Where there is no such number below N, the lowest bit of i is dropped.
    """

    def above(i: int) -> int:
        lowest = i & -i
        parent = (i - lowest) | (2 * lowest)
        return parent if parent < N else i - lowest

    def moved(i: int, way: int) -> int:
        return i if tree == 0 else N - 1 - i if N % 2 == 0 else (i + way) % N

    i = moved(rank, -1)
    near = [j for k in range(N.bit_length()) for j in (i - (1 << k), i + (1 << k))]
    children = [moved(j, 1) for j in near if 0 < j < N and above(j) == i]
    return moved(above(i), 1) if i else None, children


@dataclass(kw_only=True)
class DoubleTree(AllReduceSGD):
    """Two binary trees of all ranks sum a half of the gradient each, in segments, and send the sums back."""

    segments: int = option(8, least=1, most=100_000)
    """Into which the half of each tree is cut; best is sqrt(log2(N) P / (2 bandwidth overhead)): see --overhead of
    simulate.py."""

    def cost(self, kind: str | None = None) -> Cost:
        """Both trees have N - 1 edges. Where two children send at a time, their messages share their parent's card.

        So a segment takes 2 P / (2 segments) up each edge but the root's only one, the others follow it, and all come
        down likewise. Where cards pass messages in order, an early message delays the next. Where N = 2^h that is
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
