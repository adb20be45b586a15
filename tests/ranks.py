"""Start ranks on any transport and bring home what each of them saw."""

import pickle
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest
import torch
import torch.distributed as dist

from gradwire.clusters.process_group import ProcessGroup
from gradwire.core.launchers import launch, ranks
from gradwire.core.launchers.fork_server import start_context
from gradwire.core.records.errors import RunFailed
from gradwire.core.records.recorder import Recorder
from gradwire.core.transports.base import Message, Transport
from gradwire.core.transports.messages import Setup
from gradwire.core.transports.pipes import Endpoint, wire
from gradwire.core.transports.shared_memory import SharedMemory
from gradwire.core.transports.timing import now
from gradwire.networks.link import Link
from gradwire.virtual_time.launcher import Death, VirtualTime
from gradwire.virtual_time.network import OneSwitch
from tests.engines import LIMIT, SURVIVED, TOLD, Engine, import_engine
from tests.pools import MpiRanks, Pool, rank_here

PROCESSES = ("shared_memory", "process_group")
HELD_BACK = ("shared_memory, held back", "process_group, held back", "mpi, held back")
ENGINES = (*PROCESSES, "simulated", *HELD_BACK[:2])  # that need nothing else


class Processes(Engine):
    """Processes of this machine; where some are to die, they are started by the launcher of the house."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.in_place = name.startswith("shared_memory")
        self.deaths = SURVIVED if self.in_place else TOLD

    def run(
        self, check: Callable[..., Any], world_size: int, *args: Any, record: bool = False, device: str = "cpu"
    ) -> list[Any]:
        """See Engine. On the CPU, in ranks that are kept."""
        link = held_back(self._name)
        if device != "cpu":
            return launch(check, world_size, *args, device=device, timeout=LIMIT, record=record, link=link)
        ranks, job = Pool.running("processes"), (check, args, record, link)
        if not self.in_place:
            with tempfile.TemporaryDirectory() as folder:
                return ranks.run(world_size, partial(_on_process_group, folder, world_size, *job))
        endpoints, notices = wire(world_size, start_context())
        try:
            return ranks.run(world_size, partial(_on_shared_memory, *job), endpoints=endpoints)
        finally:
            for notice in notices:
                notice.close()

    def run_with_deaths(
        self, check: Callable[..., Any], world_size: int, *args: Any, timeout: float = LIMIT
    ) -> dict[int, Any]:
        """See Engine."""
        with tempfile.TemporaryDirectory() as folder:
            with (
                patch.object(ranks, "_GRACE_S", LIMIT),  # on a busy machine the others need longer to their end
                pytest.raises(RunFailed, match=r"was killed by SIGKILL|ended with exit code 3|has not answered"),
            ):
                launch(_rank, world_size, self._name, folder, check, *args, timeout=timeout, link=held_back(self._name))
            return {int(path.stem): pickle.loads(path.read_bytes()) for path in Path(folder).glob("*.result")}


class InVirtualTime(Engine):
    """Coroutines on a network of numbers. That they die is tested elsewhere, for there is no process that could."""

    in_place = True
    real_time = False

    def run(self, check: Callable[..., Any], world_size: int, *args: Any, record: bool = False) -> list[Any]:
        """See Engine."""
        return virtual_time(world_size).launch(check, world_size, *args, record=record)


def engine_named(name: str) -> Engine:
    """Return what starts ranks on this kind of transport: one of the house, or yourmodule:YourEngine."""
    if ":" in name:
        return import_engine(name)
    if name == "simulated":
        return InVirtualTime()
    return MpiRanks(held_back(name)) if name.startswith("mpi") else Processes(name)


def run(engine: str, check: Callable[..., Any], world_size: int, *args: Any, **options: Any) -> list[Any]:
    """Run `check(transport, *args)` on `world_size` ranks; return what each returned, in rank order."""
    return engine_named(engine).run(check, world_size, *args, **options)


def run_with_deaths(
    engine: str, check: Callable[..., Any], world_size: int, *args: Any, **options: Any
) -> dict[int, Any]:
    """Like `run`, for a check in which ranks are lost: return by rank what those returned that reached its end."""
    return engine_named(engine).run_with_deaths(check, world_size, *args, **options)


def held_back(engine: str) -> Link | None:
    """Where messages are held back, one takes half a millisecond and 20 microseconds a kilobyte."""
    return Link(50e6, 5e-4) if engine in HELD_BACK else None


def virtual_time(world_size: int, deaths: Sequence[Death] = ()) -> VirtualTime:
    """A cluster in which a message takes 1 ms and a microsecond a byte, and computing takes no time."""
    return VirtualTime(OneSwitch(world_size, 1e6, 1e-3), lambda rank, phase, part: 0.0, deaths)


def _on_shared_memory(
    check: Callable[..., Any], args: tuple[Any, ...], record: bool, link: Link | None, endpoint: Endpoint
) -> Any:
    setup = Setup(torch.device("cpu"), LIMIT, Recorder(endpoint.rank, record), link)
    with SharedMemory(endpoint, setup) as transport:
        return check(transport, *args)


def _on_process_group(
    folder: str, world_size: int, check: Callable[..., Any], args: tuple[Any, ...], record: bool, link: Link | None
) -> Any:
    setup = Setup(torch.device("cpu"), LIMIT, Recorder(rank_here(), record), link)
    with _process_group(folder, world_size, setup) as transport:
        return check(transport, *args)


def _process_group(folder: str, world_size: int, setup: Setup) -> ProcessGroup:
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=rendezvous, rank=setup.recorder.rank, world_size=world_size)
    transport = ProcessGroup(setup)
    transport.align_clocks()
    return transport


def _rank(transport: Transport, engine: str, folder: str, check: Callable[..., Any], *args: Any) -> Any:
    if engine.startswith("process_group"):
        setup = Setup(transport.device, transport.timeout, Recorder(transport.rank), held_back(engine))
        transport = _process_group(folder, transport.world_size, setup)
    result = check(transport, *args)
    unfinished = Path(folder, f"{transport.rank}.unfinished")
    unfinished.write_bytes(pickle.dumps(result))
    unfinished.rename(unfinished.with_suffix(".result"))
    transport.close()
    return result


def wait_until(condition: Callable[[], bool], limit: float = LIMIT) -> bool:
    """Look again and again until the condition holds; return whether it does within `limit` seconds."""
    give_up = now() + limit
    while not condition():
        if now() > give_up:
            return False
        time.sleep(0.01)
    return True


def left_in_shared_memory() -> set[str]:
    """Return the names of what torch has left in /dev/shm for a process of any run that has ended."""
    found = Path("/dev/shm").glob("torch_*")  # torch_PID_...
    return {path.name for path in found if not psutil.pid_exists(int(path.name.split("_")[1]))}


def outcome(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what the call returns, or ("PeerLost", rank), or the name and text of the exception it raised."""
    try:
        return call(*args, **kwargs)
    except Exception as error:
        kind = type(error).__name__
        return (kind, error.rank) if hasattr(error, "rank") else (kind, str(error))


def values(message: Message) -> list[Any]:
    """Return the elements of the message's tensor, and release it."""
    with message:
        return message.vector.tolist()


def pattern(numel: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Return a vector that differs from its neighbours', and from what another seed gives."""
    numbers = (torch.arange(numel) * 7 + seed) % 101
    return (numbers % 2 if dtype == torch.bool else numbers).to(dtype)
