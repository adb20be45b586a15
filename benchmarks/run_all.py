"""Run all benchmarks one after the other and keep their figures in results/HARDWARE/benchmarks: less than 20 minutes.

python -m benchmarks run_all      # with nothing else running; then: python -m benchmarks report

A benchmark that fails is reported, and the others are still run.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import TABLE
from experiments.grid import ROOT, hardware
from gradwire.core.records.errors import RunFailed
from gradwire.core.transports.timing import now


@dataclass(frozen=True)
class Settings:
    """Where the figures are kept."""

    results_dir: str | None = None
    """The folder. Default: results/HARDWARE/benchmarks."""


def main(settings: Settings) -> None:
    """Run all. Raises RunFailed at the end if a benchmark failed."""
    folder = Path(settings.results_dir or ROOT / "results" / hardware("cpu") / "benchmarks")
    failed = []
    for name, (line, _) in TABLE.items():
        print(f"\n{name}: {line}", flush=True)
        t0 = now()
        command = [sys.executable, "-m", "benchmarks", *line.split(), "--out", f"{folder.resolve()}/{name}.json"]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(name)
        print(f"{now() - t0:.0f} s", flush=True)
    if failed:
        raise RunFailed(f"{len(failed)} of {len(TABLE)} benchmarks failed: {', '.join(failed)}")
