"""Benchmarks: `python -m benchmarks NAME`. A module that is run as a script would measure nothing, and is refused."""

import sys

from gradwire.command import refuse_former

NAMES = (
    "accuracy", "all_reduce", "async_local_sgd", "backend", "bandwidths", "codec_defaults", "compression",
    "dgs_speedup", "goodput", "handling", "parameter_server", "prediction", "report", "scoreboard",
    "script", "startup", "training", "winners",
)  # fmt: skip
"""The modules of this folder that have `RUNS`, a grid, or `Settings`, the options of their `measure` or `main`."""

_started = " ".join(sys.orig_argv[:3])
for _name in NAMES:
    if f" -m benchmarks.{_name} " in f"{_started} " or f"benchmarks/{_name}.py " in f"{_started} ":
        refuse_former(f"benchmarks.{_name}", f"python -m benchmarks {_name}")
