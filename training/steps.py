"""Steps of a strategy without training: the two passes are only the time that they take.

On torch's meta device they need no memory either: what is sent has a length and no elements, so a model may be of any
size. Nothing that a strategy decides may depend on the value of an element.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from strategies import Replica
from training.options import Options
from transports.base import Transport


@dataclass(frozen=True)
class Sizes:
    """The lengths of a model's vectors: parameters x, and floating-point buffers b."""

    parameters: int
    buffers: int = 0


@dataclass(frozen=True)
class StepsJob:
    """What all ranks are told; `phases` are the seconds of the phases of a step, where time is not virtual."""

    options: Options
    sizes: Sizes
    samples: int  # of a worker in a step
    steps: int
    phases: dict[str, float] | None = None


@dataclass(frozen=True)
class Steps:
    """What one rank returns: when its steps began, and each of them ended (a server's: all); what it sent meanwhile."""

    begun: float
    ends: tuple[float, ...]
    messages: int
    nbytes: int
    optimizer_bytes: int  # of the optimizer's state


class Hollow(nn.Module):
    """A model of which a strategy sees all there is: vectors of these lengths."""

    def __init__(self, sizes: Sizes, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(sizes.parameters, device=device, dtype=dtype))
        self.register_buffer("b", torch.zeros(sizes.buffers, device=device, dtype=dtype))


def take_steps(transport: Transport, report: Callable[[str], None], job: StepsJob) -> Steps:
    """Be one rank that takes some steps; nothing but the passage of time stands for the two passes.

    `report` is told when they have "begun" and when they have "ended".
    """
    options, recorder = job.options, transport.recorder
    if job.phases is not None:
        phases = job.phases
        recorder.time_passes = lambda name, part: transport.sleep(phases.get(name, 0.0) * part)
    strategy = dataclasses.replace(options.strategy)
    roles = options.roles
    replica = Replica(Hollow(job.sizes, transport.device, options.torch_dtype), transport)
    strategy.start(replica, transport, options.make_optimizer(), options.clip_norm)
    strategy.until = job.steps * job.samples * roles.count("worker")
    _meet(transport)
    report("begun")
    begun, ends = transport.now(), []
    messages, nbytes = sum(transport.messages_sent), sum(transport.bytes_sent)
    if roles[transport.rank] == "server":
        strategy.serve()
    else:
        for i in strategy.steps_of_epoch(0, job.steps):
            recorder.step = i
            with recorder.phase("forward"):
                pass
            with recorder.phase("backward"):
                pass
            strategy.step(job.samples)
            ends.append(transport.now())
    ended = ends or [transport.now()]
    report("ended")
    messages, nbytes = sum(transport.messages_sent) - messages, sum(transport.bytes_sent) - nbytes
    strategy.finish()
    return Steps(begun, tuple(ended), messages, nbytes, strategy.descent.state_bytes)


def _meet(transport: Transport) -> None:
    """Return on all ranks at the same time, where that is possible: not when the last has heard of the others."""
    transport.barrier()
    t0 = transport.now()
    transport.barrier()
    if transport.rank == 0:
        start = transport.now() + 2 * (transport.now() - t0)
        for peer in transport.peers:
            transport.isend(start, peer, "start")
    else:
        start = transport.recv(0, "start").object
    transport.sleep(max(0.0, start - transport.now()))


def seconds_of_a_step(results: list[Steps], roles: list[str]) -> float:
    """Return the seconds in which every worker takes a step; of several steps, those of the last half count.

    The first of several is not like those after it where a worker begins its next step while others still wait for
    their parameters, as a server's do.
    """
    workers = [result for result, role in zip(results, roles, strict=True) if role == "worker"]
    rates = []
    for one in workers:
        ends = (one.begun, *one.ends)
        half = len(one.ends) // 2
        rates.append((len(one.ends) - half) / max(ends[-1] - ends[half], 1e-12))
    return len(workers) / sum(rates)
