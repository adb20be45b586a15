"""What processes that a script starts share: queues, pipes, events, locks, values, and the objects of a manager."""

import multiprocessing
import operator
import queue
import sys
from collections import deque
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from multiprocessing.context import BaseContext
from typing import Any

import torch.distributed as dist
import torch.multiprocessing

from gradwire.torch_scripts.starter import Spawned
from gradwire.torch_scripts.threads import RankThread, here


class Shared:
    """An object whose state all processes share; what they put into it is copied, as by pickling."""

    def __init__(self, state: Any) -> None:
        self.state = state
        rank = _rank()
        if rank.seconds() is None:
            raise NotImplementedError(
                f"multiprocessing's {type(self).__name__}: not every order of what processes do with it is run; "
                "send messages of torch.distributed"
            )
        rank.starter.note(self)

    def __deepcopy__(self, _: Any) -> "Shared":
        return self

    def __reduce__(self) -> Any:
        raise _only_for_ranks()

    def use(
        self, do: Callable[[], Any], what: str, ready: Callable[[], bool] = lambda: True, timeout: float | None = None
    ) -> Any:
        """Do something with the state when it is ready. Raises TimeoutError."""
        return _rank().starter.use(do, f"{what} of a {type(self).__name__}", ready, timeout)


class Queue(Shared):
    """See multiprocessing.Queue, which has room for `maxsize`."""

    def __init__(self, maxsize: int = 0) -> None:
        super().__init__(deque())
        self._most = maxsize

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        item = deepcopy(item)
        try:
            self.use(lambda: self.state.append(item), "put", lambda: not self._is_full(), timeout if block else 0.0)
        except TimeoutError:
            raise queue.Full from None

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        try:
            return self.use(lambda: self.state.popleft(), "get", lambda: bool(self.state), timeout if block else 0.0)
        except TimeoutError:
            raise queue.Empty from None

    def put_nowait(self, item: Any) -> None:
        self.put(item, block=False)

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return bool(self.use(lambda: not self.state, "empty"))

    def full(self) -> bool:
        return bool(self.use(self._is_full, "full"))

    def qsize(self) -> int:
        return int(self.use(lambda: len(self.state), "qsize"))

    def close(self) -> None:
        """See multiprocessing: nothing is to be freed."""

    join_thread = cancel_join_thread = close

    def _is_full(self) -> bool:
        return 0 < self._most <= len(self.state)


class Connection(Shared):
    """One end of a pipe, which reads what is put into `state` and writes to the other end."""

    other: "Connection"

    def __init__(self) -> None:
        super().__init__(deque())

    def send(self, item: Any) -> None:
        item = deepcopy(item)
        self.use(lambda: self.other.state.append(item), "send")

    def recv(self) -> Any:
        return self.use(lambda: self.state.popleft(), "recv", lambda: bool(self.state))

    def poll(self, timeout: float | None = 0.0) -> bool:
        try:
            return bool(self.use(lambda: True, "poll", lambda: bool(self.state), timeout))
        except TimeoutError:
            return False

    def close(self) -> None:
        """See multiprocessing: what was sent can still be read."""

    send_bytes, recv_bytes = send, recv

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Event(Shared):
    """See multiprocessing.Event."""

    def __init__(self) -> None:
        super().__init__(set())  # which has an element if the event is set

    def set(self) -> None:
        self.use(lambda: self.state.add(True), "set")

    def clear(self) -> None:
        self.use(lambda: self.state.clear(), "clear")

    def is_set(self) -> bool:
        return bool(self.use(lambda: bool(self.state), "is_set"))

    def wait(self, timeout: float | None = None) -> bool:
        try:
            return bool(self.use(lambda: True, "wait", lambda: bool(self.state), timeout))
        except TimeoutError:
            return False


class Lock(Shared):
    """See multiprocessing.RLock: the processes that hold it, as often as each does."""

    def __init__(self) -> None:
        super().__init__([])

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        me = _rank().rank if _rank().is_process else -1
        limit = timeout if block else 0.0
        try:
            self.use(lambda: self.state.append(me), "acquire", lambda: {*self.state} <= {me}, limit)
        except TimeoutError:
            return False
        return True

    def release(self) -> None:
        self.use(lambda: self.state.pop(), "release")

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Value(Shared):
    """See multiprocessing.Value, of a number."""

    def __init__(self, kind: Any, value: Any = 0, *, lock: Any = True) -> None:
        super().__init__([value])
        self._lock = Lock()

    @property
    def value(self) -> Any:
        return self.use(lambda: self.state[0], "value")

    @value.setter
    def value(self, value: Any) -> None:
        self.use(lambda: operator.setitem(self.state, 0, value), "value")

    def get_lock(self) -> Lock:
        return self._lock


def _forwarded(name: str) -> Callable[..., Any]:
    def call(thing: Shared, *arguments: Any) -> Any:
        given = deepcopy(arguments)

        def do() -> Any:
            result = getattr(thing.state, name)(*given)
            is_view = isinstance(result, Iterator) or type(result).__name__.startswith("dict_")
            return list(result) if is_view else result

        result = thing.use(do, name)
        return iter(result) if name == "__iter__" else result

    return call


_OF_BOTH = ("__getitem__", "__setitem__", "__delitem__", "__len__", "__iter__", "__contains__", "__repr__", "__str__",
            "pop", "clear", "copy")  # fmt: skip
_OF_DICTS = ("get", "keys", "values", "items", "setdefault", "update", "popitem")
_OF_LISTS = ("append", "extend", "insert", "remove", "index", "count", "sort", "reverse")
Dict: Any = type("Dict", (Shared,), {name: _forwarded(name) for name in (*_OF_BOTH, *_OF_DICTS)})
List: Any = type("List", (Shared,), {name: _forwarded(name) for name in (*_OF_BOTH, *_OF_LISTS)})


class Array(List):
    """See multiprocessing.Array."""

    def __init__(self, kind: Any, size_or_initializer: Any, *, lock: Any = True) -> None:
        is_size = isinstance(size_or_initializer, int)
        super().__init__([0] * size_or_initializer if is_size else list(size_or_initializer))
        self._lock = Lock()

    def get_lock(self) -> Lock:
        return self._lock


class Manager:
    """See multiprocessing.Manager."""

    Queue, Event, Lock, RLock, Value = Queue, Event, Lock, Lock, Value

    def dict(self, *arguments: Any, **more: Any) -> Any:
        return Dict(dict(*arguments, **more))

    def list(self, *arguments: Any) -> Any:
        return List(list(*arguments))

    def shutdown(self) -> None:
        """See multiprocessing: there is no process that serves."""

    def __enter__(self) -> "Manager":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def pipe(duplex: bool = True) -> tuple[Connection, Connection]:
    """See multiprocessing.Pipe."""
    ends = Connection(), Connection()
    ends[0].other, ends[1].other = ends[1], ends[0]
    return ends


def replacements() -> list[tuple[Any, str, Any]]:
    """Return (owner, name, value) of each function that makes such an object, as a script finds it."""
    made: dict[str, Callable[..., Any]] = {
        "Queue": Queue, "SimpleQueue": Queue, "Pipe": pipe, "Event": Event, "Lock": Lock,
        "RLock": Lock, "Value": Value, "Array": Array, "Manager": Manager,
    }  # fmt: skip
    owners = (multiprocessing, torch.multiprocessing, BaseContext)
    return [(owner, name, _maker(getattr(owner, name), make)) for owner in owners for name, make in made.items()]


def spawn(fn: Callable[..., Any], args: tuple[Any, ...], nprocs: int, join: bool) -> "Spawned | None":
    """Start ranks: see torch.multiprocessing.spawn."""
    starter = _rank().starter
    spawned = Spawned([starter.start(partial(fn, i, *args), nprocs) for i in range(nprocs)])
    if not join:
        return spawned
    spawned.join()
    return None


def _maker(real: Callable[..., Any], make: Callable[..., Any]) -> Callable[..., Any]:
    """Return `make` for the part of a script that starts ranks, and for these ranks; and `real` for all others."""

    def made(*arguments: Any, **more: Any) -> Any:
        rank = here()
        calls_it = rank is not None and rank.is_source(sys._getframe(1).f_code.co_filename)
        if rank is None or not calls_it or (dist.is_initialized() and not rank.is_process):
            return real(*arguments, **more)
        more.pop("ctx", None)
        return make(*(value for value in arguments if not isinstance(value, BaseContext)), **more)

    return made


def _rank() -> RankThread:
    rank = here()
    if rank is None:
        raise _only_for_ranks()
    return rank


def _only_for_ranks() -> NotImplementedError:
    return NotImplementedError("what ranks share, in a process that is no rank: make it after init_process_group")
