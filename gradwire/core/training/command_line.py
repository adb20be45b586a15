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
from typing import Annotated, Any, TypeVar

from tyro.conf import OmitArgPrefixes, arg

from gradwire.checkpoints import files, replay
from gradwire.checkpoints.folder import latest
from gradwire.clusters.mpirun import end_all
from gradwire.compression import CODECS, NoCodec
from gradwire.core.records.errors import UsageError, nearest
from gradwire.core.records.interrupts import guarded as guarded
from gradwire.core.records.known import listed, read_options, value_of
from gradwire.core.records.options import OF_THIS_RUN
from gradwire.core.strategy.base import Strategy
from gradwire.core.strategy.forms import describe
from gradwire.core.training.catalogue import catalogue
from gradwire.core.training.names import codec_class, make_strategy, naming, options_from, owners_of, strategy_class
from gradwire.core.training.options import PANELS, Options, option_names
from gradwire.core.training.run import run
from gradwire.core.training.short_help import FIRST, help_of, is_asked_for, short_help
from gradwire.core.workloads.lookup import NAMING_CODE
from gradwire.strategies import INSTEAD, STRATEGIES

T = TypeVar("T")
_TITLES = ("run", "data and model", "record", "checkpoint")  # of the panels of --help; tyro adds "options"

_OWN, _CODEC, _MORE = "this_strategy", "this_codec", "more"


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
            print(listed() or catalogue())
        else:
            run(parse_run(given, builtin, description))

    if code := guarded(work):
        end_all(code)
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
    recorded = _from_record(given, builtin)
    before = recorded or Options()
    name = value_of("--strategy", given)
    chosen: dict[str, Any] = {}
    if builtin is not None:
        if name is not None and name != builtin.name:
            raise UsageError(f"--strategy {name}: this script runs {builtin.name}; start train.py for the others")
        chosen["strategy"] = builtin
    elif name is not None and before.strategy.name != strategy_class(name).name:
        chosen["strategy"] = make_strategy(name)
    if (coder := value_of("--codec", given)) is not None and coder != before.codec.name:
        chosen["codec"] = codec_class(coder)()
    if not recorded and (optimizer := value_of("--optimizer", given)) is not None:
        chosen["optimizer"] = optimizer  # on which other defaults depend
    default = dataclasses.replace(recorded, **chosen) if recorded else Options(**chosen)
    strategy, codec = type(default.strategy), type(default.codec)
    own = [option.name for one in (strategy, codec, more) for option in dataclasses.fields(one)]  # type: ignore[arg-type]
    known = ["strategy", *own, *option_names(), "list"]
    for option in _names_given(given):
        if new := INSTEAD.get((strategy.name, option.removeprefix("no_"))):
            raise UsageError(f"--{option}: {strategy.name} has no such option; take --strategy {new}")
        if not _is_known(option, known) and (owners := owners_of(option.removeprefix("no_")) or owners_of(option)):
            chosen_codec = f" --codec {codec.name}" if dataclasses.fields(codec) else ""
            raise UsageError(
                f"--{option}: not an option of --strategy {strategy.name}{chosen_codec}, but of {', '.join(owners)}"
            )
    if twice := [name for name in own if own.count(name) > 1]:
        raise UsageError(
            f"--codec {codec.name}: {strategy.name} is a codec itself, with --{twice[0]}; leave --codec out"
        )
    refuse_unknown(given, known)
    if is_asked_for(given):
        is_chosen = name is not None or coder is not None
        print(_short_help(default, builtin, description, is_chosen, first, (more, *PANELS)))
        raise SystemExit(0)
    options = read_options(given, _command_line(default, more), description + _about(default))
    values = {name: value for panel in PANELS for name, value in vars(getattr(options, panel.__name__)).items()}
    made = Options(
        strategy=getattr(options, _OWN, default.strategy), codec=getattr(options, _CODEC, default.codec), **values
    )
    return made, getattr(options, _MORE, more())


_HELPS = {
    "strategy": f"How the ranks work together: {', '.join(STRATEGIES)}, or yourmodule:YourClass. "
                "--strategy NAME --help shows what NAME has, --list a table of all.",
    "codec": f"What gradients are sent as: {', '.join(CODECS)}. --codec NAME --help shows what NAME has.",
}  # fmt: skip


def _short_help(
    default: Options, builtin: Strategy | None, description: str, is_chosen: bool, first: Sequence[str], kinds: Any
) -> str:
    """Return the text of --help: examples, or the strategy and codec that are chosen with their own options."""
    title, *lines = description.splitlines()
    about = [line for line in lines if line.startswith(("python ", "torchrun ", "mpirun "))]
    if is_chosen:
        about = _about(default).split("\n\n")
    options: list[tuple[str, str, Any]] = []
    for owner in (default.strategy, default.codec) if is_chosen or builtin else ():
        options += [(name, text, getattr(owner, name)) for name, text in help_of(type(owner)).items()]
    for name, text in _HELPS.items():
        if not is_chosen and not (builtin and name == "strategy"):
            options.append((name, text, getattr(default, name).name))
    own = {option.name: option.default for option in dataclasses.fields(kinds[0])}
    texts = {name: text for kind in kinds for name, text in help_of(kind).items()}
    options += [(name, texts[name], own[name] if name in own else getattr(default, name)) for name in first]
    return short_help(title, about, options)


def _command_line(default: Options, more: type[Any]) -> type[Any]:
    """Return a dataclass of the options of a run with this strategy, and more; a field for each panel of --help."""
    fields: list[Any] = [
        (option, Annotated[str, arg(help=text)], dataclasses.field(default=getattr(default, option).name))
        for option, text in _HELPS.items()
    ]
    panels: list[tuple[str, str, Any]] = [
        (_OWN, "this strategy's", default.strategy), (_CODEC, "this codec's", default.codec), (_MORE, "cluster", more())
    ]  # fmt: skip
    for title, kind in zip(_TITLES, PANELS, strict=True):
        values = {option.name: getattr(default, option.name) for option in dataclasses.fields(kind)}
        panels.append((kind.__name__, title, kind(**values)))
    fields += [_panel(*panel) for panel in panels if dataclasses.fields(panel[2])]
    return dataclasses.make_dataclass("CommandLine", fields, frozen=True, kw_only=True)


def _panel(name: str, title: str, options: Any) -> tuple[str, Any, Any]:
    kind: Any = type(options)
    return name, Annotated[kind, OmitArgPrefixes, arg(name=title)], dataclasses.field(default_factory=lambda: options)


def _about(default: Options) -> str:
    text, strategy, codec = "", default.strategy, default.codec
    for owner, defaults in ((strategy, strategy.traits.defaults), (codec, codec.defaults)):
        if not isinstance(owner, NoCodec):
            text += f"\n\n{owner.name}: {describe(type(owner))}"
        if defaults:
            text += " Its own defaults: " + ", ".join(f"--{name} {value}" for name, value in defaults.items())
    return text


def _from_record(arguments: Sequence[str], builtin: Strategy | None) -> Options | None:
    """Return the options of the checkpoint or run that --resume or --replay names. Raises UsageError."""
    named = {option: value_of(f"--{option}", arguments) for option in NAMING_CODE}
    if path := value_of("--resume", arguments):
        checkpoint = latest(path)
        with naming("--resume"):
            new = ["launcher", "scheduler"]
            return options_from(files.load_run(checkpoint)["options"], checkpoint / "run.json", builtin, new, named)
    if path := value_of("--replay", arguments):
        new = [option.name for option in dataclasses.fields(Options) if option.metadata == OF_THIS_RUN]
        recorded = replay.load(path).options
        with naming("--replay"):
            return options_from(recorded, path, builtin, new, named)
    return None


def _names_given(arguments: Sequence[str]) -> list[str]:
    return [one.split("=")[0].removeprefix("--").replace("-", "_") for one in arguments if one.startswith("--")]


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
