"""The base of strategies whose ranks average their models in fragments, which take turns.

The blocks of the model are cut into P fragments, p = 0 .. P - 1. At step t fragment p takes its turn, and is sent, if
(t - o_p) mod H = 0, with o_p = floor(p H / P). With `--strided` p is the blocks p, p + P, p + 2 P ..., and each of them
is sent, and used, by itself: most of it lies far from the end of the model whose gradients come last and which is
needed first.

A fragment is updated and sent in the backward pass, when its gradients are complete; with `--clip_norm`, and with
optimizers that cannot update a part of x, after it. A received sum is used before its first block's next forward pass.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gradwire.core.records.options import option
from gradwire.sharding.block_observer import BlockObserver, on_blocks, spend_forward
from gradwire.sharding.blocks import Block, cut
from strategies.collectives import Rounds
from strategies.local_models.drifting import Drifting
from strategies.local_models.fragment import BackwardPass, Fragment
from strategies.local_models.part_updater import PartUpdater


@dataclass(kw_only=True)
class Fragmented(Drifting, BlockObserver, ABC):
    """Replicas that are averaged in fragments, round a ring, while they train on."""

    updater_type = PartUpdater

    fragments: int = option(2, least=1)
    """P: parts into which the blocks of the model are cut, by their number; at most as many as there are blocks."""
    local_steps: int = option(4, least=1)
    """H: steps of each rank between two averagings of a fragment."""
    strided: bool = False
    """Make fragments of every P-th block, each of which is sent as soon as it can be, in place of neighbours."""
    block_modules: str = ""
    """The modules that are blocks, by name, with commas. Default: the children of the longest ModuleList or
    Sequential."""

    @abstractmethod
    def fill(self, fragment: Fragment, n: int) -> None:
        """Put this rank's part of an updated fragment, of n samples, into the sum."""

    @abstractmethod
    def use(self, fragment: Fragment) -> None:
        """Use the sum of the fragment, if it is due, before its blocks compute step `self.updater.version` + 1."""

    @property
    def period(self) -> int:
        """A turn of each fragment."""
        return self.local_steps

    def setup(self) -> None:
        """Cut the blocks of the model into fragments, and be called in its passes."""
        super().setup()
        x = self.replica.x
        self.x0, self.sums = torch.empty_like(x), self.transport.allocate(x.numel(), x.dtype)
        self.keep("x0", self.x0)
        self.keep("sums", self.sums, counted=False)
        self.blocks = sorted(cut(self.replica, self.block_modules), key=lambda block: block.part.start)
        self.cut = self.cut_blocks()
        assert isinstance(self.updater, PartUpdater)
        self.part_updater = self.updater
        if self.part_updater.has_parts:
            self.updater.optimize(x, parts=[fragment.part for fragment in self.cut])
        self.of_tensor = {i: fragment for fragment in self.cut for i in fragment.tensors}
        self.backward = BackwardPass(self.of_tensor, self.replica.layout.names)
        self.rounds, self.n = Rounds(self.transport), 0  # samples of this rank in the step, once they are known
        self.replica.on_gradient(self.take_gradient)
        on_blocks(self.replica, self.blocks, self)

    def cut_blocks(self) -> list[Fragment]:
        """Return P fragments of neighbouring blocks; if strided, one fragment per block; every P-th takes its turn."""
        P, H, B = min(self.fragments, len(self.blocks)), self.local_steps, len(self.blocks)
        found = []
        for i in range(n := B if self.strided else P):
            first, last = self.blocks[i * B // n], self.blocks[(i + 1) * B // n - 1]
            part, tensors = slice(first.part.start, last.part.stop), range(first.tensors.start, last.tensors.stop)
            views = self.replica.x[part], nn.Parameter(self.x0[part]), self.sums[part]
            found.append(Fragment(f"fragment {i}", i % P * H // P, part, tensors, *views))
            self.keep(found[i].tag, found[i])
        return found

    def join(self, resumed: bool) -> None:
        """All begin at the same x, which is x0."""
        super().join(resumed)
        if not resumed:
            self.x0.copy_(self.replica.x)

    # A step

    def step(self, n_samples: int) -> None:
        """x_k <- optimizer(x_k, g_k); send the fragments that have their turn, but for those that have been sent."""
        self.use_all()
        self.updater.step(self.replica.collect(), n_samples * self.transport.world_size)
        self.replica.zero_grad()
        for fragment in self.cut:
            if fragment not in self.backward.updated:
                self.end_step(fragment, self.updater.version, n_samples)
        self.backward.updated.clear()
        self.n = 0
        self.rounds.advance()

    def end_step(self, fragment: Fragment, t: int, n: int) -> None:
        """Count the samples of step t, for which the fragment is updated; send it, if it has its turn."""
        fragment.n += n
        if self.has_turn(fragment, t):
            self.fill(fragment, fragment.n)
            fragment.n_sent, fragment.n = fragment.n, 0
            self.rounds.begin(fragment.sum, fragment.n_sent, fragment.tag)

    def has_turn(self, fragment: Fragment, t: int) -> bool:
        """Return whether the fragment is sent at step t."""
        return (t - fragment.offset) % self.local_steps == 0

    def wait_for(self, fragment: Fragment) -> int:
        """Wait for the sum of a fragment that is on its way; return the samples in it, 0 if there is none."""
        if fragment.tag in self.rounds:
            fragment.n_sum = self.rounds.end(fragment.tag)
        return fragment.n_sum

    # In the passes of a step

    def begin_step(self, n_samples: int) -> None:
        """From now on update and send a fragment, if it has its turn, when its gradients are complete."""
        self.n = n_samples
        self.backward.begin()
        self.rounds.advance()

    def enter(self, block: Block) -> None:
        """Before a block's forward pass: use the sum of its fragment, if it is due."""
        self.rounds.advance()
        self.use(self.of_tensor[block.tensors.start])

    def leave(self, block: Block) -> None:
        """After it, in virtual time: let its time pass."""
        spend_forward(self.transport.recorder, block)

    def take_gradient(self, i: int) -> None:
        """In the backward pass: update and send the fragment, if this is its last gradient and it has its turn."""
        self.rounds.advance()
        fragment, t = self.backward.complete(i), self.updater.version + 1
        if fragment and self.n and self.has_turn(fragment, t) and self.part_updater.has_parts:
            self.part_updater.step_part(fragment.part, self.replica.g, self.n * self.transport.world_size)
            self.end_step(fragment, t, self.n)
            self.backward.updated.add(fragment)

    # Between steps

    def use_all(self, wait: bool = False) -> None:
        """Use all sums that are due; if `wait`, wait for the others too."""
        for fragment in self.cut:
            self.use(fragment)
            if wait:
                self.wait_for(fragment)

    def model(self) -> torch.Tensor:
        """Return the mean of all x_k [n], in which all is used that is due."""
        self.use_all()
        return super().model()

    def finish(self) -> None:
        """Wait for the sums under way; average the buffers over the ranks; each keeps its x_k."""
        self.use_all(wait=True)
        super().finish()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank, after the sums under way; all ranks call it."""
        self.use_all(wait=True)
        return super().state_dict()
