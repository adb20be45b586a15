"""`simulate.py --script FILE` and `explore.py --script FILE`: their options and output."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from tqdm import tqdm

from gradwire.arguments import read_options
from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.torch_scripts.every_order import examine
from gradwire.torch_scripts.on_cpu import NOTE
from gradwire.torch_scripts.script import Script
from gradwire.torch_scripts.simulate import ClusterScript, ScriptOptions, note_version, run_on_cluster
from gradwire.torch_scripts.sweep import sweep

T = TypeVar("T", bound=ScriptOptions)


@dataclass(frozen=True, kw_only=True)
class OrderedScript(ScriptOptions):
    """A script of yours with torch.distributed, in every order of its messages."""

    at_most: int = 20_000
    """Orders that are run."""


def is_script(given: Sequence[str]) -> bool:
    """Return whether a command line names a script of the user's."""
    return any(argument == "--script" or argument.startswith("--script=") for argument in given)


def explore_script(given: Sequence[str], description: str) -> None:
    """Run a script in every order, and print what holds in all. Raises UsageError, RunFailed: something does not."""
    options, script, _ = _read(given, OrderedScript, description)
    if not 1 <= options.at_most <= 10**7:
        raise UsageError(f"--at_most {options.at_most}: must be from 1 to {10**7}")
    with tqdm(unit="order", leave=False, disable=None) as bar:
        report = examine(script, options.n_gpus, options.seed, options.at_most, bar.update)
    found = [finding.text(script.folder) for finding in report.findings]
    print("\n".join([report.text(f"{options.script}, {options.n_gpus} ranks"), *found]))
    if report.broken:
        raise RunFailed(f"{options.script}: {report.broken}")


def simulate_script(given: Sequence[str], description: str) -> None:
    """Run a script on a cluster, write its records, and print a summary. Raises UsageError, RunFailed."""
    options, script, named = _read(given, ClusterScript, description)
    if options.check:
        _check(options, script)
    elif options.sweep:
        sweep(named, options, script)
    else:
        print(run_on_cluster(options, script))


def _check(options: ClusterScript, script: Script) -> None:
    from gradwire.checking.command import check  # which stands on this

    if options.sweep:
        raise UsageError("--check: goes with one run; leave out --sweep")
    checked = check(options, script, quiet=False, writes=True)
    print("\n".join(text for text in (checked.summary, checked.text(script.folder, notes=False)) if text))
    if checked.failure or checked.wrong:
        raise RunFailed(checked.failure or f"{options.script}: {len(checked.wrong)} wrong")


def _read(given: Sequence[str], kind: type[T], description: str) -> tuple[T, Script, list[str]]:
    """Return the options before the first --, the script with its own, which follow, and the former as given.

    Raises UsageError.
    """
    at = list(given).index("--") if "--" in given else len(given)
    named = list(given[:at])
    i = named.index("-m") if "-m" in named else 0
    if i and named[i - 1] == "--script":
        named[i - 1 : i + 2] = [f"--script=-m {''.join(named[i + 1 : i + 2])}"]
    options = read_options(named, kind, description)
    options.check_ranks()
    note_version()
    if options.on_cpu:
        print(NOTE, file=sys.stderr)
    return options, Script(options.script, given[at + 1 :], options.on_cpu), named
