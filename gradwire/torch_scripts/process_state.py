"""What a process has of its own, and ranks that are threads of one process do not: it is changed when another runs."""

import os
import random
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, ClassVar, Optional

import numpy.random
import torch
import torch.distributed.distributed_c10d as c10d

numpy_random: Any = numpy.random  # whose stub lacks the two functions below
# The module's names of groups: of each rank as at the start of a process.
_OF_GROUPS = [
    name
    for name, value in vars(c10d).items()
    if name.startswith(("_pg_", "_group_count", "_tags_to_pg", "_default_pg_init_method", "_backend"))
    and (value is None or isinstance(value, dict | int))
]
_ATTRIBUTES: list[tuple[Any, str]] = [
    (os, "environ"), (sys, "argv"), (sys, "stdout"), (sys, "stderr"), (sys, "excepthook"),
    (warnings, "filters"), (warnings, "showwarning"), (warnings, "_showwarnmsg_impl"),  # what catch_warnings replaces
    *((c10d, name) for name in _OF_GROUPS), (c10d._world, "__dict__"),
]  # fmt: skip


def _of_libraries() -> Iterator[tuple[Any, str, Callable[[], Any]]]:
    """Yield what each library that is loaded keeps for its process: the owner, the name, and how it begins."""
    if accelerate := sys.modules.get("accelerate.state"):
        for name in ("PartialState", "AcceleratorState", "GradientState"):
            yield getattr(accelerate, name), "_shared_state", dict
    if ignite := sys.modules.get("ignite.distributed.utils"):
        yield ignite, "_model", ignite._SerialModel
        yield ignite, "_need_to_sync", lambda: True
    if debug := sys.modules.get("torch.distributed.fsdp._debug_utils"):
        yield debug.SimpleProfiler, "results", lambda: defaultdict(float)
        yield debug.SimpleProfiler, "profiling", set


class ProcessState:
    """What one rank has: see the names below, and `__main__`, folder, default dtype and random states."""

    installed: ClassVar[Optional["ProcessState"]] = None

    def __init__(self, rank: int, world_size: int, arguments: Sequence[str], seed: int, outputs: Sequence[Any]) -> None:
        environment = {
            **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size), "GROUP_RANK": "0", "ROLE_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
        }  # fmt: skip
        self._values: list[Any] = [
            environment, list(arguments), *outputs, sys.excepthook,
            [*warnings.filters], warnings.showwarning, vars(warnings)["_showwarnmsg_impl"],
            *(type(value)() if isinstance(value := getattr(c10d, name), dict | int) else None for name in _OF_GROUPS),
            type(c10d._world)().__dict__,
        ]  # fmt: skip
        self.main = ModuleType("__main__")
        self._libraries: dict[tuple[Any, str], Any] = {}
        self.handlers: dict[int, Any] = {}  # of signals, which reach no rank
        self._folder, self._dtype = os.getcwd(), torch.get_default_dtype()
        # As in a process of its own: torch begins with the same numbers on every rank, the others differ.
        self._torch = torch.Generator().get_state()
        self._random = random.Random(seed + rank).getstate()
        self._numpy: Any = numpy.random.MT19937(seed + rank)

    def install(self) -> None:
        """Make this the state of the process, and keep what the one before it had."""
        before = ProcessState.installed
        if before is self:
            return
        if before is not None:
            before.keep()
        filters = warnings.filters
        for (owner, name), value in zip(_ATTRIBUTES, self._values, strict=True):
            setattr(owner, name, value)
        if warnings.filters != filters:
            with warnings.catch_warnings():  # after which those are shown that the other filters have hidden
                pass
        sys.modules["__main__"] = self.main
        if before is None or before._folder != self._folder:
            os.chdir(self._folder)
        torch.set_default_dtype(self._dtype)
        for owner, name, begin in _of_libraries():
            setattr(owner, name, self._libraries[owner, name] if (owner, name) in self._libraries else begin())
        torch.default_generator.set_state(self._torch)
        random.setstate(self._random)
        numpy_random.set_bit_generator(self._numpy)
        ProcessState.installed = self

    def keep(self) -> None:
        """Note what this process has now as this rank's."""
        self._values = [getattr(owner, name) for owner, name in _ATTRIBUTES]
        self.main = sys.modules["__main__"]
        self._folder, self._dtype = os.getcwd(), torch.get_default_dtype()
        self._libraries = {(owner, name): getattr(owner, name) for owner, name, _ in _of_libraries()}
        self._torch, self._random = torch.default_generator.get_state(), random.getstate()
        self._numpy = numpy_random.get_bit_generator()

    @classmethod
    def of_this_process(cls) -> "ProcessState":
        """Return the state that this process has now, to be installed again."""
        state = cls.__new__(cls)
        state.keep()
        cls.installed = state
        return state
