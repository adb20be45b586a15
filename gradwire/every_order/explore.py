"""Run a small case in all orders of its messages: what holds in all, or the shortest order in which it does not.

python explore.py --strategy async_param_server --n_gpus 3 --steps 6

python explore.py --strategy hogwild --n_gpus 2 --steps 2 --own_steps

python explore.py --strategy yourmodule:YourClass --invariant yourmodule:function

python explore.py --script yourscript.py --n_gpus 3 -- --its_own_options

python explore.py --replay RESULTS_DIR/RUN_NAME    # an order that was found, once more
"""

import dataclasses
import sys
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, UseAppendAction, arg

from gradwire.arguments import read_options, value_of
from gradwire.command_line import refuse_unknown, run_command
from gradwire.core.records.atomic import check_writable_by
from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.core.records.options import check_limits
from gradwire.core.strategy.strategy import Strategy
from gradwire.core.workloads.lookup import call_user_function, import_user_object
from gradwire.every_order.invariants import Holds
from gradwire.every_order.report import Report, ask_again, examine
from gradwire.every_order.runs import Case, check_range
from gradwire.every_order.saved import load, save
from gradwire.names import make_strategy
from gradwire.strategies import STRATEGIES
from gradwire.torch_scripts.command import explore_script, is_script


@dataclass(frozen=True, kw_only=True)
class ExploreOptions:
    """What is run, and how often."""

    n_gpus: int | None = None
    """Number of ranks; a parameter server counts as one. Default: the fewest with two workers."""
    steps: int | None = None
    """Steps of each worker; where workers do not wait for each other, gradients of all of them that end an epoch.
    Default: two periods of what is sent, such as 2, or 2 x --local_steps."""
    own_steps: bool = False
    """Let each worker take --steps of its own there too, and then say goodbye."""
    epochs: int = 1
    """How often that."""
    deaths: int = 0
    """1: also every order in which one rank (a worker, where the others go on) dies before one of its sends."""
    at_most: int = 20_000
    """Orders that are run. If there are more, those with the fewest departures from the plain order are, and then
    --random."""
    random: int = 1000
    """Random orders that are run where not all are."""
    seed: int = 0
    """Seed of what the strategy draws, and of the random orders."""
    invariant: Annotated[tuple[str, ...], UseAppendAction] = ()
    """yourmodule:function: one more that must hold. It is given the run of each order, and returns None, or one line
    that says what is wrong."""
    replay: str | None = None
    """Run the order RESULTS_DIR/RUN_NAME, which was found before, once more."""
    results_dir: str = "results"
    """Where the order is written in which something does not hold."""


def explore(
    strategy: str | Strategy,
    n_gpus: int | None = None,
    steps: int | None = None,
    *,
    epochs: int = 1,
    own_steps: bool = False,
    seed: int = 0,
    invariant: Holds | None = None,
    **how: Any,
) -> Report:
    """Run a small case in all orders of its messages, and return the report; the command line describes the options.

    `how`: see `examine`. Raises UsageError.
    """
    made = make_strategy(strategy) if isinstance(strategy, str) else strategy
    more = [] if invariant is None else [(getattr(invariant, "__name__", "yours"), invariant)]
    return examine(Case(made, n_gpus, _steps(made, steps), epochs, own_steps, seed), more, **how)


def _steps(strategy: Strategy, steps: int | None) -> int:
    check_limits(strategy)  # before its period is asked for
    return 2 * strategy.period if steps is None else steps


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code: 1 if something does not hold."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    return run_command(lambda: explore_script(given, __doc__ or "") if is_script(given) else _run(given))


def _run(given: Sequence[str]) -> None:
    strategy, options = _parse(given)
    if options.replay:
        others = [text for text in given if text.startswith("--") and not text.startswith(("--replay", "--strategy"))]
        if others:
            raise UsageError(f"--replay: takes no {others[0]} beside it; leave it out")
        print(ask_again(*load(options.replay, value_of("--strategy", given))))
        return
    more = [(name, _invariant(name)) for name in options.invariant]
    for name, least, most in (("at_most", 1, 10**7), ("random", 1, 10**7), ("deaths", 0, 1), ("seed", 0, 2**63 - 1)):
        check_range(name, getattr(options, name), least, most)
    steps = _steps(strategy, options.steps)
    case = Case(strategy, options.n_gpus, steps, options.epochs, options.own_steps, options.seed)
    check_writable_by("results_dir", Path(options.results_dir))
    report = examine(case, more, options.at_most, options.random, options.deaths, quiet=False)
    print(report.text())
    if report.counterexample:
        path, why = save(report.counterexample, options.results_dir)
        print(f"written        {path}.{{csv,json,events.csv.gz}}; python -m gradwire page {path} shows it")
        by = "train.py" if why is None else "explore.py"
        named = f" --strategy {case.strategy.name}" if ":" in case.strategy.name else ""
        print(f"replay         python {by} --replay {path}{named}" + (f" (not train.py: {why})" if why else ""))
        raise RunFailed(f"{case.strategy.name}: {report.counterexample.broken}")


def _parse(given: Sequence[str]) -> tuple[Strategy, ExploreOptions]:
    """Return the strategy with its options, and the others. Raises UsageError."""
    default = make_strategy(value_of("--strategy", given) or "async_param_server")
    fields: list[Any] = [
        ("strategy", Annotated[str, arg(help=f"{', '.join(STRATEGIES)}, or yourmodule:YourClass.")], default.name)
    ]
    known = ["strategy"]
    for name, title, panel in (("more", "order", ExploreOptions()), ("own", "this strategy's", default)):
        known += [option.name for option in dataclasses.fields(panel)]
        kind: Any = type(panel)
        default_panel = dataclasses.field(default_factory=partial(copy, panel))
        fields.append((name, Annotated[kind, OmitArgPrefixes, arg(name=title)], default_panel))
    refuse_unknown(given, known)
    read: Any = read_options(given, dataclasses.make_dataclass("CommandLine", fields, kw_only=True), __doc__ or "")
    return read.own, read.more


def _invariant(name: str) -> Holds:
    """Return the user's function; errors in it name it."""
    import_user_object("--invariant", name)
    return partial(call_user_function, "--invariant", name)
