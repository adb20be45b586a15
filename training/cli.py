"""The command line: options from arguments, errors as one line, exit codes."""

import contextlib
import dataclasses
import difflib
import io
import re
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TypeVar, cast

import tyro

from records.errors import RunFailed, UsageError
from strategies import Strategy
from training import checkpoints, replay
from training.options import Options
from training.run import run

T = TypeVar("T")


def main(description: str, builtin: type[Strategy] | None = None, arguments: Sequence[str] | None = None) -> int:
    """Run with the options of the command line; return the exit code: 0, 1 (failed), 2 (usage) or 128 + signal.

    `builtin` is the baseline to run in the place of a strategy of ours.
    """
    default = Options(strategy=builtin.name, builtin=builtin) if builtin else Options()
    given = sys.argv[1:] if arguments is None else arguments
    return guarded(lambda: run(parse(given, Options, _from_record(given, default), description)), "nothing was written")


def _from_record(arguments: Sequence[str], default: Options) -> Options:
    """Return `default`, or the options of the checkpoint or run that --resume or --replay names. Raises UsageError."""
    if path := _value("--resume", arguments):
        checkpoint = checkpoints.latest(path)
        with checkpoints.naming_resume():
            return dataclasses.replace(default, **checkpoints.load_options(checkpoint))
    if path := _value("--replay", arguments):
        recorded = replay.load(path).options
        return dataclasses.replace(default, **{name: recorded[name] for name in recorded if name not in replay.OFF})
    return default


def _value(option: str, arguments: Sequence[str]) -> str | None:
    for argument, following in zip(arguments, [*arguments[1:], None], strict=True):
        name, equals, value = argument.partition("=")
        if name == option:
            return value if equals else following
    return None


def guarded(work: Callable[[], object], kept: str) -> int:
    """Call `work` and return the exit code; what goes wrong becomes one line. `kept`: what an interrupt leaves."""
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    try:
        work()
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as interrupt:
        number = interrupt.args[0] if interrupt.args else signal.SIGINT
        print(f"\nerror: ended by {signal.Signals(number).name}; {kept}", file=sys.stderr)
        return 128 + number
    return 0


def parse(arguments: Sequence[str], kind: type[T], default: T | None, description: str) -> T:
    """Return the options of a command line, `kind` being a dataclass of them.

    Raises UsageError, in one line; SystemExit(0) after --help.
    """
    names = [field.name for field in dataclasses.fields(kind) if field.name != "builtin"]  # type: ignore[arg-type]
    for argument in arguments:
        name = argument.split("=")[0].removeprefix("--").replace("-", "_")
        if argument.startswith("--") and name.removeprefix("no_") not in (*names, "help"):
            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean --{near[0]}?" if near else "see --help"
            raise UsageError(f"--{name}: there is no such option; {hint}")
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            options = tyro.cli(kind, description=description, default=default, args=arguments, use_underscores=True)
            return cast(T, options)
    except SystemExit as stop:
        if not stop.code:
            raise
        # tyro draws a box of several lines; what is wrong stands above its first rule.
        text = re.split("─{5,}|Got errors:", said.getvalue().split("╮", 1)[-1])[0]
        raise UsageError(" ".join(text.replace("│", " ").split()).rstrip(".") + "; see --help") from None


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(number)
