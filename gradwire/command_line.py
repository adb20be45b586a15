"""Train one network on several processes of this machine.

python train.py --strategy param_server --n_gpus 4        # rank 0 serves, the others train

python train.py --strategy ring_all_reduce --n_gpus 4     # four ranks in a ring

python train.py --strategy single --workers_like 4        # one process, the same batches

torchrun --nproc-per-node 3 train.py --strategy ring_all_reduce    # over torch.distributed

mpirun -n 2 python train.py --strategy ring_all_reduce    # over MPI

python train.py --strategy ring_all_reduce --launcher dask    # on Dask's workers

python train.py --strategy yourmodule:YourClass           # a strategy of your own

python train.py --list                                    # all strategies

python -m gradwire compare results/*.json                 # runs side by side

python -m gradwire plot results/*.json                    # scores against epochs, seconds, bytes
"""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar, get_type_hints

from tyro.conf import OmitArgPrefixes, arg

from gradwire.arguments import read_options, value_of
from gradwire.core.records.errors import UsageError, nearest
from gradwire.core.strategy.cost_model import describe
from gradwire.core.strategy.strategy import Strategy
from gradwire.core.training.run import run
from gradwire.early_arguments import listed
from gradwire.ending import run_command as run_command
from gradwire.help_texts import FIRST, help_of, is_asked_for
from gradwire.names import class_of, default_name, owners_of
from gradwire.options import Options, option_names
from gradwire.strategies import INSTEAD
from gradwire.wings import WINGS

T = TypeVar("T")
_MORE = "more"


def main(
    arguments: Sequence[str] | None = None, builtin: Strategy | None = None, description: str = __doc__ or ""
) -> int:
    """Run with the options of the command line; return the exit code: 0, 1 (failed), 2 (usage) or 128 + signal.

    `builtin` is the baseline to run instead of a strategy of ours, `description` its text for `--help`.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)

    def work() -> None:
        if "--list" in given and builtin is None:
            if len(given) > 1:
                raise UsageError("--list: stands alone; leave the rest out")
            from gradwire.catalogue import catalogue  # which loads every strategy

            print(listed() or catalogue())
        else:
            run(parse_run(given, builtin, description))

    if code := run_command(work):
        for wing in WINGS:
            wing.fail(code)
    return code


def parse_run(given: Sequence[str], builtin: Strategy | None, description: str) -> Options:
    """Return the options of a run: `parse_with`, without others."""
    return parse_with(given, builtin, description, dataclasses.make_dataclass("NoMore", []))[0]


def parse_with(
    given: Sequence[str], builtin: Strategy | None, description: str, more: type[T], first: Sequence[str] = FIRST
) -> tuple[Options, T]:
    """Return the options of a command line: first its strategy and codec are read, then the options that they have.

    `more` is a dataclass of options that the command has beside those of every run; `first`: those that --help shows
    beside the strategy's. Raises UsageError, in one line; SystemExit(0) after --help.
    """
    found = (wing.recorded(given, builtin) for wing in WINGS)
    recorded: Options | None = next((options for options in found if options), None)
    named = {of: value_of(f"--{of}", given) for of in Options.choices()}
    chosen: dict[str, Any] = {}
    if builtin is not None:
        if named["strategy"] not in (None, builtin.name):
            raise UsageError(
                f"--strategy {named['strategy']}: this script runs {builtin.name}; start train.py for the others"
            )
        chosen["strategy"] = builtin
    for of, name in named.items():
        if name is not None and of not in chosen:
            kind = class_of(of, name)
            if recorded is None or recorded.chosen[of].name != kind.name:
                chosen[of] = kind()
    if not recorded and (optimizer := value_of("--optimizer", given)) is not None:
        chosen["optimizer"] = optimizer  # on which other defaults depend
    default = dataclasses.replace(recorded, **chosen) if recorded else Options(**chosen)
    kinds = {of: type(choice) for of, choice in default.chosen.items()}
    own = [option.name for kind in (*kinds.values(), more) for option in dataclasses.fields(kind)]
    known = ["strategy", *own, *option_names(), "list"]
    strategy = default.strategy.name
    for option in _names_given(given):
        if new := INSTEAD.get((strategy, option.removeprefix("no_"))):
            raise UsageError(f"--{option}: {strategy} has no such option; take --strategy {new}")
        if not _is_known(option, known) and (owners := owners_of(option.removeprefix("no_")) or owners_of(option)):
            having = {of: kind.name for of, kind in kinds.items() if of == "strategy" or dataclasses.fields(kind)}
            here = " ".join(f"--{of} {name}" for of, name in having.items())
            raise UsageError(f"--{option}: not an option of {here}, but of {', '.join(owners)}")
    if twice := [name for name in own if own.count(name) > 1]:
        of, coder = next((of, kind) for of, kind in reversed(kinds.items()) if twice[0] in _fields(kind))
        raise UsageError(f"--{of} {coder.name}: {strategy} is a {of} itself, with --{twice[0]}; leave --{of} out")
    refuse_unknown(given, known)
    if is_asked_for(given):
        from gradwire.short_help import help_of_run

        is_chosen = any(name is not None for name in named.values())
        print(help_of_run(default, builtin, description, is_chosen, first, (more, *Options.panels.values())))
        raise SystemExit(0)
    options = read_options(given, _command_line(default, more), description + about(default))
    values: dict[str, Any] = {}
    for panel in Options.panels.values():
        values |= vars(getattr(options, panel.__name__))
    values |= {of: getattr(options, _this(of), choice) for of, choice in default.chosen.items()}
    return Options(**values), getattr(options, _MORE, more())


def _fields(kind: type[Any]) -> list[str]:
    return [option.name for option in dataclasses.fields(kind)]


def _this(choice: str) -> str:
    """Return the name of the panel of the options that the strategy, or the codec, has."""
    return f"this_{choice}"


def _command_line(default: Options, more: type[Any]) -> type[Any]:
    """Return a dataclass of the options of a run with this strategy, and more; a field for each panel of --help."""
    fields: list[Any] = [
        (name, Annotated[str, arg(help=choice.help)], dataclasses.field(default=default.chosen[name].name))
        for name, choice in Options.choices().items()
    ]
    panels = [(_this(name), f"this {name}'s", choice) for name, choice in default.chosen.items()]
    panels.append((_MORE, "cluster", more()))
    for title, kind in Options.panels.items():
        shown = _without_choices(kind)
        values = {name: getattr(default, name) for name in _fields(shown)}
        panels.append((kind.__name__, title, shown(**values)))
    fields += [_panel(*panel) for panel in panels if dataclasses.fields(panel[2])]
    return dataclasses.make_dataclass("CommandLine", fields, frozen=True, kw_only=True)


def _without_choices(kind: type[Any]) -> type[Any]:
    """Return a panel without its strategy or codec, which the command line has by name."""
    options, helps = dataclasses.fields(kind), help_of(kind)
    hints: dict[str, Any] = get_type_hints(kind)
    if all(option.name not in Options.choices() for option in options):
        return kind
    shown: list[Any] = []
    for option in options:
        if option.name not in Options.choices():
            hint: Any = hints[option.name]
            text = helps[option.name]
            shown.append((option.name, Annotated[hint, arg(help=text)], dataclasses.field(default=option.default)))
    return dataclasses.make_dataclass(kind.__name__, shown, frozen=True, kw_only=True)


def _panel(name: str, title: str, options: Any) -> tuple[str, Any, Any]:
    kind: Any = type(options)
    return name, Annotated[kind, OmitArgPrefixes, arg(name=title)], dataclasses.field(default_factory=lambda: options)


def about(default: Options) -> str:
    """Return what the strategy and codec are, and the defaults that they have of their own."""
    text = ""
    for name, choice in Options.choices().items():
        owner = default.chosen[name]
        if owner.name != default_name(name):
            text += f"\n\n{owner.name}: {describe(type(owner))}"
        if defaults := choice.defaults(owner):
            text += " Its own defaults: " + ", ".join(f"--{name} {value}" for name, value in defaults.items())
    return text


def _names_given(arguments: Sequence[str]) -> list[str]:
    return [
        argument.split("=")[0].removeprefix("--").replace("-", "_")
        for argument in arguments
        if argument.startswith("--")
    ]


def parse(arguments: Sequence[str], kind: type[T], description: str) -> T:
    """Return the options of a command line, `kind` being a dataclass of them.

    Raises UsageError, in one line; SystemExit(0) after --help.
    """
    refuse_unknown(arguments, [option.name for option in dataclasses.fields(kind)])  # type: ignore[arg-type]
    return read_options(arguments, kind, description)


def _is_known(name: str, known: Sequence[str]) -> bool:
    return name in known or name.removeprefix("no_") in (*known, "help")


def refuse_unknown(arguments: Sequence[str], known: Sequence[str]) -> None:
    """Check that a command line gives `known` options only. Raises UsageError."""
    for name in _names_given(arguments):
        if not _is_known(name, known):
            hint = nearest(name, known).replace("you mean ", "you mean --").rstrip() or "see --help"
            raise UsageError(f"--{name}: there is no such option; {hint}")
