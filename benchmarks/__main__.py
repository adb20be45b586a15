"""Run a benchmark, draw what one has kept, or write the tables: python -m benchmarks NAME [options]

python -m benchmarks all_reduce --world_size 2    # what both sides take, in turns; --out keeps the figures

python -m benchmarks winners                      # a grid in virtual time, its table and its picture

python -m benchmarks report --measure             # all of the Speed table of benchmarks/README.md

python -m benchmarks NAME --help                  # what it measures, and its options
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from benchmarks import NAMES, common
from gradwire.command_line import parse, run_command
from gradwire.core.records.errors import UsageError, unknown


@dataclass(frozen=True)
class NoOptions:
    """The options of a grid, which has none."""


def start(arguments: Sequence[str]) -> None:
    """Load a benchmark and run it. Raises UsageError, RunFailed."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"{__doc__}\nNAME: {', '.join(NAMES)}")
        if not arguments:
            raise UsageError("name a benchmark, such as python -m benchmarks startup")
        return
    name, *given = arguments
    if name not in NAMES:
        raise unknown("benchmark", name, NAMES)
    module = import_module(f"benchmarks.{name}")
    settings = parse(given, getattr(module, "Settings", NoOptions), module.__doc__ or "")
    if isinstance(settings, NoOptions):
        module.RUNS.complete()
    elif isinstance(settings, common.Settings):
        common.run(module.__doc__ or "", settings, module.measure)
    else:
        module.main(settings)


if __name__ == "__main__":
    sys.argv[0] = " ".join(["python -m benchmarks", *sys.argv[1:2]])  # in the usage line of --help
    sys.exit(run_command(lambda: start(sys.argv[1:]), "what is kept is whole"))
