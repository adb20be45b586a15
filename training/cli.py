"""The command line: options from arguments, errors as one line, exit codes."""

import contextlib
import difflib
import io
import os
import re
import signal
import sys
from collections.abc import Sequence
from types import FrameType

import tyro

from strategies import Strategy
from training.failures import RunFailed
from training.options import Options, option_names
from training.run import run
from transports.base import PeerLost, WaitTimeout
from workloads.errors import UsageError


def main(description: str, builtin: type[Strategy] | None = None, arguments: Sequence[str] | None = None) -> int:
    """Run with the options of the command line; return the exit code: 0, 1 (failed), 2 (usage) or 128 + signal.

    `builtin` is the baseline to run in the place of a strategy of ours.
    """
    default = Options(strategy=builtin.name, builtin=builtin) if builtin else Options()
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    try:
        run(parse(sys.argv[1:] if arguments is None else arguments, default, description))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except (PeerLost, WaitTimeout) as error:  # only under torchrun: otherwise the launcher hears of them
        print(f"error: rank {os.environ.get('RANK')}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        number = interrupt.args[0] if interrupt.args else signal.SIGINT
        print(f"\nerror: ended by {signal.Signals(number).name}; nothing was written", file=sys.stderr)
        return 128 + number
    return 0


def parse(arguments: Sequence[str], default: Options, description: str) -> Options:
    """Return the options of a command line. Raises UsageError, in one line; SystemExit(0) after --help."""
    names = option_names()
    for argument in arguments:
        name = argument.split("=")[0].removeprefix("--").replace("-", "_")
        if argument.startswith("--") and name.removeprefix("no_") not in (*names, "help"):
            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean --{near[0]}?" if near else "see --help"
            raise UsageError(f"--{name}: there is no such option; {hint}")
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(Options, description=description, default=default, args=arguments, use_underscores=True)
    except SystemExit as stop:
        if not stop.code:
            raise
        # tyro draws a box of several lines; what is wrong stands above its first rule.
        text = re.split("─{5,}|Got errors:", said.getvalue().split("╮", 1)[-1])[0]
        raise UsageError(" ".join(text.replace("│", " ").split()).rstrip(".") + "; see --help") from None


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(number)
