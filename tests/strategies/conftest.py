"""Whoever is in the table of strategies is put through the suites of all; `--strategy` takes one, or yourmodule:Yours.

A test gets the classes that it is for by the name of its argument, one of SUITES. With `n_gpus` too it gets each of
them with every number of ranks that makes 1 to 4 workers, of which all but the one of 3 workers are marked exhaustive.
A test marked `corners(NAME, ...)` is exhaustive for all strategies of the table but these.
"""

from collections.abc import Callable

import pytest

from gradwire.baselines.fully_sharded_builtin import BuiltinFullySharded
from gradwire.baselines.param_server_builtin import BuiltinParamServer
from gradwire.baselines.ring_all_reduce_builtin import BuiltinRingAllReduce
from strategies import STRATEGIES, Strategy
from tests.selection import chosen_strategy
from tests.strategies.kinds import sizes, with_workers

Kind = type[Strategy]

SUITES: dict[str, Callable[[Kind], bool]] = {
    "kind": lambda kind: True,
    "punctual": lambda kind: kind.traits.punctual,
    "synchronous": lambda kind: not kind.traits.asynchronous and kind.traits.agree and kind.traits.steps_by_mean,
    "asynchronous": lambda kind: kind.traits.asynchronous,
    "determined": lambda kind: not kind.traits.asynchronous,
    "agreeing": lambda kind: kind.traits.agree,
    "survivor": lambda kind: kind.traits.workers_may_die,
    "returning": lambda kind: kind.traits.workers_may_return,
    "mortal": lambda kind: not kind.traits.workers_may_die,
    "complete": lambda kind: (
        not (kind.traits.asynchronous or kind.traits.workers_may_die)
    ),  # whose checkpoints hold all
    "served": lambda kind: (
        kind.traits.asynchronous or kind.traits.workers_may_die
    ),  # whose checkpoints hold what rank 0 has
}
BASELINES: list[Kind] = [BuiltinFullySharded, BuiltinParamServer, BuiltinRingAllReduce]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    suites = [name for name in metafunc.fixturenames if name in SUITES]
    if not suites:
        return
    (suite,) = suites
    kinds = [kind for kind in _kinds(metafunc) if SUITES[suite](kind)]
    corners = metafunc.definition.get_closest_marker("corners")
    if "n_gpus" not in metafunc.fixturenames:
        only = corners.args if corners and not chosen_strategy(metafunc.config) else [kind.name for kind in kinds]
        rest = [pytest.mark.exhaustive]
        metafunc.parametrize(
            suite, [pytest.param(kind, id=kind.name, marks=[] if kind.name in only else rest) for kind in kinds]
        )
        return
    cases = []
    for kind in kinds:
        for n_gpus in sizes(kind):
            marks = [] if n_gpus == with_workers(kind, 3) else [pytest.mark.exhaustive]
            cases.append(pytest.param(kind, n_gpus, id=f"{kind.name}-{n_gpus}", marks=marks))
    metafunc.parametrize((suite, "n_gpus"), cases)


def _kinds(metafunc: pytest.Metafunc) -> list[Kind]:
    if chosen := chosen_strategy(metafunc.config):
        return [chosen]
    baselines = BASELINES if metafunc.definition.get_closest_marker("with_baselines") else []
    return [*STRATEGIES.values(), *baselines]
