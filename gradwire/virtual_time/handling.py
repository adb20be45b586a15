"""The processor time of a message at its sender and its receiver: measured on this machine, over sockets.

Two processes send each other messages with gloo over TCP, as `process_group.py` does between machines. What counts is
the processor time of the whole process, since a rank of a calibrated simulation has one core: the threads in which gloo
and the transport send and receive take that core from the rank's computing. Processor time, not wall time, so that
other processes of this machine do not count.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gradwire.core.launchers import launch
from gradwire.core.records.recorder import Recorder
from gradwire.core.transports.base import Transport
from gradwire.core.transports.messages import Setup
from gradwire.core.transports.timing import process_seconds, sleep

_ROUNDS, _REPEATS, _WARM_UP = 5, 5, 2
_MESSAGES = 4  # in a row, for one repeat
_PAUSE_S = 2e-3  # between two of them, so that each comes by itself, as in a training
_LONG = 4_000_000  # bytes of the message that shows the time of a byte
_LIMIT_S = 60.0
_TAG = "timed"
SPREAD = ", interquartile range"


@dataclass(frozen=True)
class Handling:
    """The seconds of a processor that it takes to send a message, and to receive it: some, and some for each byte."""

    send: float = 0.0
    send_byte: float = 0.0
    receive: float = 0.0
    receive_byte: float = 0.0

    def to_send(self, nbytes: int) -> float:
        """Return the seconds of the sender's processor."""
        return self.send + self.send_byte * nbytes

    def to_receive(self, nbytes: int) -> float:
        """Return the seconds of the receiver's processor."""
        return self.receive + self.receive_byte * nbytes

    def text(self) -> str:
        """Return it in one line."""
        return (
            f"{self.send * 1e6:.0f} us + {self.send_byte * 1e9:.2f} ns a byte to send, "
            f"{self.receive * 1e6:.0f} us + {self.receive_byte * 1e9:.2f} ns a byte to receive"
        )


def measure_handling() -> dict[str, float]:
    """Measure each field of `Handling` on this machine; return it, and its spread. Raises RunFailed."""
    ends = launch(_exchange, 2, timeout=_LIMIT_S)
    return {name: value for found in ends for name, value in found.items()}


def handling_of(measured: dict[str, float]) -> Handling:
    """Return the measured times, without the spread."""
    return Handling(*(measured[name] for name in Handling.__dataclass_fields__))


def _exchange(beside: Transport) -> dict[str, float]:
    """Send messages from rank 0 to rank 1 over sockets; return their processor time."""
    import torch.distributed as dist  # slow to load

    from gradwire.clusters.rendezvous import connect, serve_store

    host = "127.0.0.1"
    if beside.rank == 0:
        store = serve_store(host, _LIMIT_S)
        beside.isend(store.port, 1, "port")
    else:
        store = dist.TCPStore(host, beside.recv(0, "port").object, is_master=False)
    setup = Setup(torch.device("cpu"), _LIMIT_S, Recorder(beside.rank, enabled=False))
    none, empty, full = list[float](), list[float](), list[float]()
    with connect(setup, False, (store, beside.rank, 2)) as transport:
        vector = transport.allocate(_LONG // 4)
        for i in range(_WARM_UP + _ROUNDS * _REPEATS):
            for value, samples in ((None, none), (vector[:0], empty), (vector, full)):
                seconds = _seconds(beside, transport, value)
                if i >= _WARM_UP:
                    samples.append(seconds)
        beside.barrier()
    name = ("send", "receive")[beside.rank]
    return {
        name: max(0.0, _least(empty) - _least(none)),
        f"{name}{SPREAD}": _spread(empty),
        f"{name}_byte": max(0.0, _least(full) - _least(empty)) / _LONG,
        f"{name}_byte{SPREAD}": _spread(full) / _LONG,
    }


def _least(samples: Sequence[float]) -> float:
    """Return the least of the medians of the rounds: whatever else the machine does makes them only longer."""
    return min(statistics.median(samples[i : i + _REPEATS]) for i in range(0, len(samples), _REPEATS))


def _spread(samples: Sequence[float]) -> float:
    low, _, high = statistics.quantiles(samples)
    return high - low


def _seconds(beside: Transport, transport: Transport, value: torch.Tensor | None) -> float:
    """Return the processor time of this process for a message, or for None, from rank 0 to rank 1."""
    beside.barrier()
    begun = process_seconds()
    for _ in range(_MESSAGES):
        sleep(_PAUSE_S)
        if value is not None and transport.rank == 0:
            transport.isend(value, 1, _TAG).wait()
        elif value is not None:
            message: Any = transport.recv(0, _TAG)
            message.release()
    beside.barrier()  # by then the threads of both have done their part
    return (process_seconds() - begun) / _MESSAGES
