"""The command line: options from arguments, errors as one line, exit codes."""

import signal
import sys
from collections.abc import Sequence
from types import FrameType

import tyro

from strategies import Strategy
from training.failures import RunFailed
from training.options import Options
from training.run import run
from workloads.errors import UsageError


def main(description: str, builtin: type[Strategy] | None = None, arguments: Sequence[str] | None = None) -> int:
    """Run with the options of the command line; return the exit code: 0, 1 (failed), 2 (usage) or 128 + signal.

    `builtin` is the baseline to run in the place of a strategy of ours.
    """
    default = Options(strategy=builtin.name, builtin=builtin) if builtin else Options()
    options = tyro.cli(Options, description=description, default=default, args=arguments, use_underscores=True)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        run(options)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as interrupt:
        number = interrupt.args[0] if interrupt.args else signal.SIGINT
        print(f"\nended by {signal.Signals(number).name}; nothing was written", file=sys.stderr)
        return 128 + number
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(number)
