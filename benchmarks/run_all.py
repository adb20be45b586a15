"""Run all benchmarks one after the other and keep their figures in results/HARDWARE/benchmarks: 20 minutes on 2 cores.

python -m benchmarks.run_all      # with nothing else running; then: python -m benchmarks.report

A benchmark that fails is reported, and the others are still run.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import TABLE
from experiments.measured import hardware
from records.errors import RunFailed
from training.command_line import guarded, parse
from transports.timing import now

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = {
    "all_reduce_2": "--world_size 2",
    "all_reduce_4": "--world_size 4",
    "all_reduce_mpi_2": "--world_size 2 --peers mpi",
    "all_reduce_mpi_4": "--world_size 4 --peers mpi",
    "parameter_server": "--repeats 7",
}
"""Of the kept files that are not made with the defaults."""


@dataclass(frozen=True)
class Settings:
    """Where the figures are kept."""

    results_dir: str | None = None
    """The folder. Default: results/HARDWARE/benchmarks."""


def main(settings: Settings) -> None:
    """Run all. Raises RunFailed at the end if a benchmark failed."""
    folder = Path(settings.results_dir or ROOT / "results" / hardware("cpu") / "benchmarks")
    failed = []
    for name in TABLE:
        script = "all_reduce" if name.startswith("all_reduce") else name
        command = [f"benchmarks/{script}.py", *OPTIONS.get(name, "").split()]
        print(f"\n{name}: {' '.join(command)}", flush=True)
        t0 = now()
        command = [sys.executable, *command, "--out", str(folder.resolve() / f"{name}.json")]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(name)
        print(f"{now() - t0:.0f} s", flush=True)
    if failed:
        raise RunFailed(f"{len(failed)} of {len(TABLE)} benchmarks failed: {', '.join(failed)}")


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(parse(sys.argv[1:], Settings, __doc__)), "finished benchmarks are kept"))
