"""evaluate.py beside a run, in a process of its own, which ends when its launcher does."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from gradwire.checkpoints.folder import SCORES
from gradwire.core.records.errors import RunFailed
from gradwire.core.records.interrupts import interrupts_wait, number_of
from gradwire.core.transports.timing import RunningClock, sleep

_COMMAND = [sys.executable, "-m", "gradwire", "evaluate"]
_LONGEST_START_S = 60.0
_OF_LAUNCHERS = ("TORCHELASTIC_", "OMPI_", "PMIX_", "PMI_", "PRTE_")


def environment_of_others() -> dict[str, str]:
    """Return the environment for a process that a rank starts and that is to be no rank itself."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OF_LAUNCHERS)}


class Evaluator(AbstractContextManager["Evaluator"]):
    """The process that scores the checkpoints in `directory`.

    It ends with the `with` block, and with the process that this is in. `code`: the --dataset, --model and --task of
    the run, which it is to trust.
    """

    def __init__(self, directory: Path, timeout: float, code: Mapping[str, str | None]) -> None:
        self._directory = directory
        self._code = [f"--{option}={name}" for option, name in code.items() if name and ":" in name]
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._failure = ""

    def start(self) -> None:
        """Start it; called when the run holds the folder of its checkpoints."""
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process lives
        environment = {
            **environment_of_others(),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),  # for data and models of the user's own
        }
        try:
            with interrupts_wait():  # until it is known here, so that it can be ended
                self._process = subprocess.Popen(
                    [*_COMMAND, f"--checkpoint_dir={self._directory}", "--attached", *self._code],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._errors, env=environment,
                    process_group=0,  # Ctrl-C is for the launcher, which ends it
                )  # fmt: skip
        except OSError as error:
            self._failure = f"could not be started: {error.strerror}"

    def finish(self, quiet: bool) -> None:
        """Wait until it has scored the rest, and print where the scores are, or why some are missing.

        Raises RunFailed if interrupted: the run itself is done.
        """
        if self._process:
            if not quiet:
                print("waiting for the evaluator to score the last checkpoints", file=sys.stderr)
            try:
                self._failure = self._wait(self._process)
            except KeyboardInterrupt as interrupt:
                why = f"the evaluator was interrupted; {self._rest}"
                raise RunFailed(why, 128 + number_of(interrupt)) from interrupt
        if self._failure:
            print(f"warning: the evaluator {self._failure}; {self._rest}", file=sys.stderr)
        elif not quiet:
            print(f"scores         {self._directory / SCORES}")

    @property
    def _rest(self) -> str:
        return f"the run itself is written, and python evaluate.py --checkpoint_dir {self._directory} scores the rest"

    def _wait(self, process: "subprocess.Popen[bytes]") -> str:
        """Wait for the end, for each score as long as --timeout; return what went wrong."""
        running, size, since = RunningClock(), self._size(), 0.0
        limit = max(self._timeout, _LONGEST_START_S)  # until it has scored one
        while process.poll() is None:
            if (grown := self._size()) != size:
                size, since, limit = grown, running(), self._timeout
            elif running() - since > limit:
                process.kill()  # one that is stopped takes notice of nothing else
                return f"has not scored anything for more than {limit:g} s (--timeout)"
            sleep(0.05)
        if process.returncode == 0:
            return ""
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        if process.returncode < 0 or not said:
            return f"ended with exit code {process.returncode}"
        return "failed (" + said[-1].removeprefix("error: ") + ")"

    def _size(self) -> int:
        """Return the bytes of the scores so far."""
        scores = self._directory / SCORES
        return scores.stat().st_size if scores.exists() else 0

    def __exit__(self, *_: object) -> None:
        if process := self._process:
            process.terminate()  # if it has not ended
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._errors.close()
