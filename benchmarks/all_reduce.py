"""The ring all-reduce on shared memory is at least 3 times as fast as gloo's from 10,000 elements up with 2 ranks, at
least 2 times with 4 ranks on 2 cores, and at least as fast as Open MPI's from 1 million elements up.

python -m benchmarks all_reduce --world_size 2 --peers mpi --sizes 1000 10000 100000 1000000 16000000

Microseconds per call on float32 vectors; a block is many calls back to back, its time that of the slowest rank. Every
message of ours is recorded, as in a run. All sides run in the same processes, which are bound to no core, in turns.

PEER_us is the peer's own all-reduce, PEER_ratio how many times as fast the ring is, PEER_best_ratio the fastest of
ours, PEER_chosen_ratio that which `--strategy all_reduce` chooses before it is measured here: `chosen`. over_PEER_us
is the same ring with messages that the peer carries, on the transport process_group for gloo and mpi for MPI,
over_PEER_ratio how many times as fast it is as the peer's own. With --peers gloo mpi all take turns in one run, in
which MPI with more ranks than cores is slower than without gloo beside it. Ratios are taken repeat by repeat. copy_us
is what the ranks need to copy, all at once, as many bytes as each must move in the ring, 2 (N - 1) / N of the vector:
the machine's limit, of which copy_share is reached.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist

from benchmarks import common, under_mpirun
from benchmarks.common import Row, Seconds, alternate, figures, slowest
from gradwire import launch
from gradwire.baselines.ring_all_reduce_builtin import join
from gradwire.clusters.process_group import ProcessGroup
from gradwire.core.records.machine import usable_cores
from gradwire.core.records.recorder import Recorder
from gradwire.core.transports.base import Transport
from gradwire.core.transports.messages import Setup
from strategies.all_reduce.all_reduce import FASTEST, choose
from strategies.all_reduce.halving_doubling import halving_doubling
from strategies.all_reduce.predictions import all_reduces
from strategies.all_reduce.recursive_doubling import recursive_doubling
from strategies.collectives import gather_and_add, naive_all_reduce, ring_all_reduce

OURS = {
    "ring": ring_all_reduce, "naive": naive_all_reduce, "all_gather": gather_and_add,
    "recursive_doubling": recursive_doubling, "halving_doubling": halving_doubling,
}  # fmt: skip
Peer = Literal["gloo", "mpi"]
Peers = dict[Peer, tuple[Transport, Callable[[torch.Tensor], Any]]]  # our transport on it, and its own all-reduce


@dataclass(frozen=True)
class Settings(common.Settings):
    """Options of the all-reduce benchmark."""

    world_size: int = 2
    """Number of ranks."""
    sizes: tuple[int, ...] = (1000, 10_000, 100_000, 1_000_000, 4_000_000, 16_000_000)
    """Elements of the vectors."""
    peers: tuple[Peer, ...] = ("gloo",)
    """Whom the ring is compared with. With mpi, mpirun starts the ranks."""

    least = {"world_size": 2}


def calls_in_a_block(numel: int) -> int:
    """Return how many calls take some milliseconds, or more if one does."""
    return min(400, max(4, 10_000_000 // numel))


def on_rank(transport: Transport, settings: Settings) -> list[tuple[str, Seconds]]:
    """Measure all sizes on one rank: which all-reduce was chosen, and the seconds of each side's blocks."""
    setup, peers = Setup(transport.device, transport.timeout, Recorder(transport.rank, True)), Peers()
    with ExitStack() as stack:
        if "gloo" in settings.peers:
            join(transport, "gloo")
            group: Any = dist.new_group(backend="gloo")  # of its own: the transport uses the default one
            over_gloo = stack.enter_context(ProcessGroup(setup))
            peers["gloo"] = over_gloo, partial(dist.all_reduce, group=group)
        if "mpi" in settings.peers:
            from mpi4py import MPI

            from gradwire.clusters.mpi import Mpi

            over_mpi = stack.enter_context(Mpi(setup))
            peers["mpi"] = over_mpi, lambda vector: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, vector.numpy())
        return [measure_size(transport, peers, numel, settings.repeats) for numel in settings.sizes]


def measure_size(transport: Transport, peers: Peers, numel: int, repeats: int) -> tuple[str, Seconds]:
    """Return which all-reduce was chosen, and the seconds of each side's blocks."""
    N = transport.world_size
    ours = transport.allocate(numel)
    choice = choose(FASTEST, transport, ours, ours.nbytes)
    chosen = all_reduces()[choice.taken](**choice.options)
    chosen.transport = transport
    sides: dict[str, tuple[torch.Tensor, Callable[[torch.Tensor], Any]]] = {
        name: (ours, partial(all_reduce, transport=transport)) for name, all_reduce in OURS.items()
    }
    sides["chosen"] = ours, lambda vector: chosen.all_reduce(vector, 0)
    for peer, (over, all_reduce) in peers.items():
        sides[peer] = torch.zeros(numel), all_reduce
        sides[f"over_{peer}"] = over.allocate(numel), partial(ring_all_reduce, transport=over)
    for name, (vector, call) in sides.items():
        transport.barrier()  # no rank reads the vector any more
        vector.fill_(1)
        transport.barrier()
        call(vector)
        if not bool((vector == N).all()):
            raise RuntimeError(f"{name} gave a wrong sum of {numel} elements")
    transport.barrier()
    for vector, _ in sides.values():
        vector.zero_()  # a sum of zeros stays what it is, however often it is summed again
    source = torch.zeros(2 * (N - 1) * numel // N)
    sides["copy"] = torch.zeros_like(source), lambda target: target.copy_(source)

    def block(vector: torch.Tensor, call: Callable[[torch.Tensor], Any]) -> None:
        for _ in range(calls_in_a_block(numel)):
            call(vector)

    seconds = alternate(transport, {name: partial(block, *side) for name, side in sides.items()}, repeats)
    return choice.taken, seconds


def measure(settings: Settings) -> Iterator[Row]:
    """Yield one row per size."""
    threads = max(1, len(usable_cores()) // settings.world_size)
    start = under_mpirun.launch if "mpi" in settings.peers else launch
    print(f"ranks     {settings.world_size} processes, threads each: {threads}, bound to no core", flush=True)
    ranks = start(on_rank, settings.world_size, settings, record=True)
    for i, numel in enumerate(settings.sizes):
        calls = calls_in_a_block(numel)
        us = {name: seconds / calls * 1e6 for name, seconds in slowest([rank[i][1] for rank in ranks]).items()}
        columns = {f"{name}_us": us[name] for name in (*OURS, "chosen")}
        fastest = us[min(OURS, key=lambda name: float(np.median(us[name])))]
        for peer in settings.peers:
            columns |= {f"{peer}_us": us[peer], f"{peer}_ratio": us[peer] / us["ring"]}
            columns |= {f"{peer}_best_ratio": us[peer] / fastest, f"{peer}_chosen_ratio": us[peer] / us["chosen"]}
            over = us[f"over_{peer}"]
            columns |= {f"over_{peer}_us": over, f"over_{peer}_ratio": us[peer] / over}
        columns |= {"copy_us": us["copy"], "copy_share": us["copy"] / us["ring"]}
        yield {"world_size": settings.world_size, "numel": numel, "chosen": ranks[0][i][0], **figures(**columns)}
