"""The baseline of ring_all_reduce: torch.nn.parallel.DistributedDataParallel, with the options of train.py.

python ring_all_reduce_builtin.py --n_gpus 4
python -m gradwire compare results/*.json

Same data, batches, seed, optimizer and records. NCCL with a GPU for each process, gloo otherwise. DDP averages over
ranks where the others average over samples, so each rank's loss is weighted by n_k N / sum n; tasks whose n varies need
an all-reduce of that one number in each step, which the formula of bytes leaves out. It communicates inside
the backward pass: its `communicate` and `wait` stay empty, and its bytes are those of a ring all-reduce, from formula.
DDP also sends rank 0's BatchNorm statistics to all before each forward pass; the formula leaves that out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire import command_line
from gradwire.baselines.builtin import Builtin
from gradwire.clusters.rendezvous import serve_store
from gradwire.core.records.events import HIDDEN
from gradwire.core.strategy.tensors import float_buffers, trained
from gradwire.core.strategy.traits import Cost, Traffic
from gradwire.core.transports.base import Transport

# Kept until the process ends: in some versions of torch, taking DDP down waits, holding the interpreter's lock, for
# a thread of gloo's that needs that lock.
_KEPT: list[DistributedDataParallel] = []


def join(transport: Transport, backend: str) -> None:
    """Initialise torch.distributed for the ranks of `transport`. Rank 0 listens on a free port and sends it."""
    limit = timedelta(seconds=transport.timeout)
    if transport.rank == 0:
        store = serve_store("127.0.0.1", transport.timeout)
        for peer in transport.peers:
            transport.isend(store.port, peer, "port")
    else:
        port = transport.recv(0, "port").object
        store = dist.TCPStore("127.0.0.1", port, transport.world_size, False, limit)
    dist.init_process_group(backend, store=store, rank=transport.rank, world_size=transport.world_size, timeout=limit)


@dataclass(kw_only=True)
class BuiltinRingAllReduce(Builtin):
    """torch's DistributedDataParallel: gradients are summed in buckets during the backward pass."""

    name = "ring_all_reduce_builtin"
    transport_name = "torch.distributed: NCCL with a GPU for each rank, else gloo"
    bytes_source = "from formula: 2 (N - 1) / N of the gradient per rank and step"

    def cost(self, kind: str | None = None) -> Cost:
        """A ring's: what gloo sends is not counted."""
        return Cost(worker=Traffic("2 (N - 1)", "2 (N - 1) P / N"))

    def parallel(self, model: nn.Module, n_gpus: int) -> nn.Module:
        """Start torch.distributed and wrap the model in DDP."""
        gpu_each = self.connect()
        self.ddp = DistributedDataParallel(model, device_ids=[self.transport.device] if gpu_each else None)
        _KEPT.append(self.ddp)
        return self.ddp

    def connect(self) -> bool:
        """Start torch.distributed; return whether each rank has a GPU."""
        transport = self.transport
        gpu_each = transport.device.type == "cuda" and torch.cuda.device_count() >= transport.world_size
        join(transport, "nccl" if gpu_each else "gloo")
        self.n_of_all = 0  # how many terms of the loss the global batch has, where the loop says so
        return gpu_each

    def loss_weight(self, n: int, n_of_all: int) -> float:
        """n_k N / sum n: DDP divides the sum of the gradients by N."""
        self.n_of_all = n_of_all
        return n * self.transport.world_size / n_of_all

    def sum_of_all(self, n: int) -> int:
        """An all-reduce of one number."""
        total = torch.tensor(n, device=self.transport.device)
        dist.all_reduce(total)
        return int(total)

    def begin_microbatch(self, last: bool) -> None:
        """All-reduce only with the last piece of an accumulated gradient."""
        self.ddp.require_backward_grad_sync = last

    def count_bytes(self) -> float:
        """Return the bytes that this rank has sent in a step."""
        P = sum(p.nbytes for p in trained(self.original))
        return self.cost().worker.count({"N": self.transport.world_size, "P": P})[1]

    def step(self, n: int) -> None:
        """The optimizer, on each rank; the gradients have been averaged in the backward pass."""
        N = self.transport.world_size
        if N > 1:
            nbytes, now = int(self.count_bytes()), self.transport.now()
            for op, peer in (("send", self.transport.rank + 1), ("recv", self.transport.rank - 1)):
                self.transport.recorder.add(HIDDEN, now, now, op, peer % N, "from formula", nbytes)
        self.updater.step(None, self.n_of_all or N * n)
        self.updater.optimizer.zero_grad()

    def finish(self) -> None:
        """Average the floating-point buffers over the ranks, as the strategies do."""
        for buffer in float_buffers(self.original):
            dist.all_reduce(buffer)
            buffer.div_(self.transport.world_size)

    def close(self) -> None:
        """Leave torch.distributed."""
        dist.destroy_process_group()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return command_line.main(arguments, BuiltinRingAllReduce(), __doc__ or "")
