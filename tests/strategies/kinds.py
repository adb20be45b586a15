"""Which runs of a strategy there are: of how many ranks, with which options, and on what they are started."""

import contextlib
import dataclasses
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.baselines.builtin import Builtin
from gradwire.core.records.errors import UsageError
from gradwire.core.strategy.run_size import check_strategy
from gradwire.core.transports.base import Transport
from strategies import RunSize, Strategy
from tests.ranks import LIMIT, launch, run, virtual_time
from tests.strategies.loops import Rank, Task, make_model, trajectories

EXACT: dict[str, dict[str, Any]] = {
    "backup_workers": {"n_backup": 0},  # else the order of arrival decides
    "all_reduce": {"algorithm": "halving_doubling"},  # else, in processes, time decides
}


def exact(kind: type[Strategy]) -> Strategy:
    """The strategy with the options with which it takes the steps of one process."""
    return kind(**EXACT.get(kind.name, {}))


def allows(strategy: Strategy, n_gpus: int) -> bool:
    """Whether the strategy runs on so many processes: it may refuse some numbers."""
    try:
        check_strategy(strategy, Task(strategy, n_gpus).size)
    except UsageError:
        return False
    return True


def fit(kind: type[Strategy], n_gpus: int) -> int:
    """The number of processes nearest to `n_gpus` that the strategy can be, of two the smaller."""
    least, most = kind.traits.ranks
    numbers = range(least, 1 + (most or 2 * n_gpus + least))
    return min((n for n in numbers if allows(exact(kind), n)), key=lambda n: abs(n - n_gpus))


def is_virtual(kind: type[Strategy]) -> bool:
    """Whether its ranks can run in virtual time: they share no memory, and torch does not carry their messages."""
    size = dataclasses.replace(Task(exact(kind), fit(kind, 4)).size, shared_memory=False)
    try:
        check_strategy(exact(kind), size)
    except UsageError:
        return False
    return not issubclass(kind, Builtin)


def start(kind: type[Strategy], work: Callable[..., Any], n: int, *args: Any, **options: Any) -> list[Any]:
    """Run `work(transport, *args)` on n ranks: in virtual time, or in processes where the strategy needs them.

    These are kept for the next test, unless the strategy leaves a process group behind.
    """
    if is_virtual(kind):
        return virtual_time(n).launch(work, n, *args, timeout=LIMIT, **options)
    if issubclass(kind, Builtin):
        return launch(work, n, *args, timeout=LIMIT, **options)
    return run("shared_memory", work, n, *args, **options)


def sizes(kind: type[Strategy]) -> Iterator[int]:
    """Each number of processes that makes 1 to 4 workers, and that the strategy allows."""
    least, most = kind.traits.ranks
    for n_gpus in range(least, 1 + (most or 8)):
        if 1 <= exact(kind).count_workers(n_gpus) <= 4 and allows(exact(kind), n_gpus):
            yield n_gpus


def with_workers(kind: type[Strategy], most: int) -> int:
    """The largest number of processes that makes at most so many workers."""
    return [n_gpus for n_gpus in sizes(kind) if exact(kind).count_workers(n_gpus) <= most][-1]


NEEDS: dict[str, dict[str, Any]] = {
    "outer_lr": {"outer_optimizer": "nesterov"},
    "outer_momentum": {"outer_optimizer": "nesterov"},
    "momentum_every": {"outer_momentum": 0.5},
}


def needs(strategy: Strategy | type[Strategy], option: str) -> dict[str, Any]:
    """What the option needs of the others that the strategy has."""
    return {name: value for name, value in NEEDS.get(option, {}).items() if hasattr(strategy, name)}


def other_value(strategy: Strategy, option: str) -> int | float | str:
    """A value, not the one that it has, that the strategy accepts for the option in a small run."""
    if isinstance(had := getattr(strategy, option), bool):
        return not had
    if option == "block_modules":
        return "2"  # of `make_model`
    for value in ("nesterov", "average", "exponential", "ring") if isinstance(had, str) else (2, 0.5, 1, 3, 0.25):
        other = dataclasses.replace(strategy, **{option: value} | needs(strategy, option))
        with contextlib.suppress(UsageError):
            check_strategy(other, RunSize(4, 3, 4))
            if getattr(other, option) != getattr(strategy, option):
                return value
    raise AssertionError(f"{strategy.name} accepts no number for {option}: give this function one")


def variants(kind: type[Strategy], n_gpus: int) -> list[Strategy]:
    """The strategy with its defaults, its exact options, its int options at 2 and at 3, and each away from its default.

    Only those that so many processes may be.
    """
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind) if hints[field.name] in (int, int | None)]
    settings = [{}, EXACT.get(kind.name, {}), *(dict.fromkeys(names, value) for value in (2, 3))]
    for option in dataclasses.fields(kind):
        with contextlib.suppress(AssertionError):  # another option may fix this one, as in `own`
            settings.append({option.name: other_value(kind(), option.name)} | needs(kind, option.name))
    settings.append({name: 2 + place % 2 for place, name in enumerate(names)})
    found: list[Strategy] = []
    for options in settings:
        strategy = kind(**options)
        if allows(strategy, n_gpus) and strategy not in found:
            found.append(strategy)
    return found


EXHAUSTIVE = pytest.mark.parametrize("exhaustive", [False, pytest.param(True, marks=pytest.mark.exhaustive)])


def some(strategies: list[Strategy], all_of_them: bool) -> list[Strategy]:
    """All, or the last of them, with other values of its options, where it has any."""
    return strategies if all_of_them else strategies[-1:]


def determined_variants(kind: type[Strategy], n_gpus: int) -> list[Strategy]:
    """Those of them whose result the order of arrival does not decide."""
    found = variants(kind, n_gpus)
    return [b for b in found if not kind.traits.asynchronous and (not kind.traits.workers_may_die or b == exact(kind))]


def on_ranks(
    task: Task, work: Callable[[Rank], Any], make: Callable[[], nn.Module] = make_model, **options: Any
) -> list[Any]:
    """Call `work(rank)` on each rank of the task, which may end in the middle of an epoch; return the results."""

    def whole(transport: Transport) -> Any:
        rank = Rank(transport, task, make())
        found = work(rank)
        rank.stop()
        rank.close()
        return found

    return start(type(task.strategy), whole, len(task.roles), **options)


def assert_same(first: Task, second: Task, rtol: float = 0.0, steps: int | None = None) -> None:
    """Both have the same parameters after every step (the first so many), to the bit or nearly; of a single, a worker.

    A server has them after every epoch.
    """
    found = [start(type(task.strategy), trajectories, len(task.roles), [task]) for task in (first, second)]
    for ours, theirs in zip(*map(reversed, found), strict=False):
        x, expected = (torch.tensor(seen[0][:steps], dtype=torch.float64) for seen in (ours, theirs))
        torch.testing.assert_close(x, expected, rtol=rtol, atol=rtol / 100)
