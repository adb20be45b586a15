"""Run a script with torch.distributed in virtual time, and name what is silently wrong in it.

python -m gradwire check train_ddp.py --n_gpus 3 -- --its_own_options
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from gradwire.arguments import read_options
from gradwire.checking import calls, data, files, gradients, loops, notes, parameters, replicas
from gradwire.checking.findings import Finding
from gradwire.checking.seen import Run
from gradwire.checking.watch import Watch
from gradwire.command_line import run_command
from gradwire.core.records.atomic import check_output, write_atomically
from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.torch_scripts.on_cpu import NOTE
from gradwire.torch_scripts.script import Program, Script
from gradwire.torch_scripts.simulate import ClusterScript, ScriptOptions, note_version, run_on_cluster
from gradwire.virtual_time.ranks import Deadlock


@dataclass(frozen=True, kw_only=True)
class CheckOptions(ScriptOptions):
    """A script of yours with torch.distributed, watched for silent errors."""

    script: Annotated[str, Positional, arg(metavar="SCRIPT")]
    """A Python file that torchrun would run, with gloo on the CPU, or that launches a loop with a WorkerOptimizer. Its
    own options follow after --."""
    n_gpus: int = 3
    """Ranks. With two, a half and one over the number of ranks are the same."""
    steps: int | None = None
    """Stop after so many steps of the first optimizer of each rank. Default: run to the end."""
    notes: bool = False
    """Print notes too: what may well be meant. They do not change the exit code."""
    json: str = ""
    """Write the findings here."""


@dataclass(frozen=True)
class Checked:
    """What was found. `failure`: why the run ended early; "": it did not. `has_steps`: an optimizer took some."""

    findings: list[Finding]
    failure: str
    summary: str
    has_steps: bool

    @property
    def wrong(self) -> list[Finding]:
        """The findings that are no notes."""
        return [finding for finding in self.findings if not finding.is_note]

    def text(self, folder: str, notes: bool) -> str:
        """Return the findings, the gravest first, and how many they are."""
        shown = [finding for finding in self.findings if notes or not finding.is_note]
        left = len(self.findings) - len(shown)
        lines = [finding.text(folder) for finding in shown]
        so_far = " until it failed" if self.failure else ""
        end = (f"{len(self.wrong)} wrong" if self.wrong else "nothing is found wrong") + so_far
        end += "" if self.has_steps else "; no optimizer took a step"
        end += f"; {left} note{'s' if left > 1 else ''}, shown by --notes" if left else ""
        return "\n".join([*lines, end])


def check(
    options: ClusterScript, program: Program, steps: int | None = None, quiet: bool = True, writes: bool = False
) -> Checked:
    """Run a program once, and return what is wrong in it; write its records if it `writes`. Raises UsageError."""
    watch = Watch(options.n_gpus, program.folder, steps)
    failure, summary = "", ""
    try:
        summary = run_on_cluster(options, program, quiet, writes, watcher=watch).text
    except Deadlock as error:
        failure = "" if steps is not None and not watch.run.is_whole else str(error)
    except RunFailed as error:
        failure = str(error)
    if failure:
        watch.run.is_whole = False
        watch.run.unwaited.clear()
    found: dict[tuple[str, str, str], Finding] = {}
    runs = [*watch.earlier, watch.run]
    for run in runs:
        for finding in judge(run):
            found.setdefault((finding.kind, finding.at, finding.cure), finding)
    has_steps = any(run.steps for run in runs)
    return Checked(sorted(found.values(), key=lambda finding: finding.is_note), failure, summary, has_steps)


def judge(run: Run) -> list[Finding]:
    """Return what is wrong in a run, the gravest first; of a cause and what follows from it, the cause."""
    loops.take_means(run)
    found = calls.judge(run)
    found += [] if found else replicas.judge(run) or notes.judge(run)
    follows = any(not finding.is_note for finding in found)
    found += [*parameters.judge(run), *([] if follows else gradients.judge(run))]
    return [*found, *data.judge(run), *files.judge(run)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a script; return 0 if nothing is found wrong, 1 if something is, 2 after bad usage, 128 + signal."""
    is_wrong = False

    def work() -> None:
        nonlocal is_wrong
        given = list(sys.argv[1:] if arguments is None else arguments)
        at = given.index("--") if "--" in given else len(given)
        if len(given) > 1 and not Path(given[0]).exists() and Path(given[1]).is_file():
            raise UsageError("gradwire check LAB FILE is now gradwire check_lab LAB FILE")
        options = read_options(given[:at], CheckOptions, __doc__ or "")
        options.check_ranks()
        if options.steps is not None and options.steps < 1:
            raise UsageError(f"--steps {options.steps}: must be at least 1")
        if options.json:
            try:
                check_output(options.json)
            except OSError as error:
                raise UsageError(f"--json {options.json}: cannot be written: {error.strerror or error}") from error
        note_version()
        if options.on_cpu:
            print(NOTE, file=sys.stderr)
        try:
            script = Script(options.script, given[at + 1 :], options.on_cpu)
        except UsageError as error:
            raise UsageError(str(error).removeprefix("--script ")) from error
        cluster = ClusterScript(script=options.script, n_gpus=options.n_gpus, seed=options.seed, flops=1e12)
        checked = check(cluster, script, options.steps, quiet=False)
        print(checked.text(script.folder, options.notes))
        if options.json:
            found = [finding.as_json() for finding in checked.findings]
            with write_atomically(Path(options.json)) as unfinished:
                unfinished.write_text(json.dumps({"findings": found, "failure": checked.failure}, indent=2) + "\n")
        if checked.failure:
            raise RunFailed(checked.failure)
        is_wrong = bool(checked.wrong)

    return run_command(work, "nothing was written") or int(is_wrong)
