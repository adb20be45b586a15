# mypy: disable-error-code="override,assignment"
"""The process group that takes gloo's place: every collective and message of a script, handed to an engine."""

from datetime import timedelta
from functools import partial

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from typing_extensions import override

from gradwire.backend.calls import Collective, Message, Tensors
from gradwire.backend.process_group import CollectiveGroup
from gradwire.torch_scripts.calls import Pending
from gradwire.torch_scripts.threads import here


class ScriptGroup(CollectiveGroup):
    """A process group whose collectives and messages an engine carries; made in the thread of its rank."""

    kind = group_desc = "virtual"

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta | None = None) -> None:
        super().__init__(rank, size, timeout)
        thread = here()
        assert thread is not None, "made by a script"
        self._thread = thread
        self._kept: list[Pending] = []  # C++ may hold one that Python does not

    @override
    def seconds(self) -> float:
        return self._thread.seconds() or 0.0

    @override
    def enter(
        self, call: Collective, result: Tensors, limit: timedelta | None, given: Tensors, is_awaited: bool
    ) -> Pending:
        limit = limit if limit is not None and limit > timedelta(0) else self.limit
        return self._begin(call, result, limit, given)

    @override
    def begin(self, call: Message, tensors: Tensors) -> Pending:
        return self._begin(call, tensors, self.limit, tensors)

    def _begin(self, call: Collective | Message, result: Tensors, limit: timedelta | None, given: Tensors) -> Pending:
        limit = None if limit == c10d.default_pg_timeout else limit  # not the user's: report a deadlock instead
        pending = Pending(self._thread, call, result, self.ranks(), limit, given or result)
        self._kept = [*(earlier for earlier in self._kept if not earlier.ended), pending]
        self._thread.watcher.entered(pending)
        self._thread.ask(partial(self._thread.engine.enter, pending))
        return pending
