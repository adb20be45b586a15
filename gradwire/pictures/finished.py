"""The finished runs that a command line names, read from their files; a bad file is reported in one line."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from glob import glob
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pandas as pd

from gradwire.core.records.atomic import write_together
from gradwire.core.records.events import EVALUATE, HIDDEN, MARKS, OPS, PHASES
from gradwire.core.records.tables import finished_epochs
from gradwire.core.records.unfinished import EVENTS_SUFFIX, SUFFIXES
from gradwire.ending import exit_code_of, unread_output_is_no_error
from gradwire.results import CALIBRATION, TRACE_SUFFIX, load_events, load_metadata, load_table, worker_spans

Loaded = TypeVar("Loaded")
_CURE = "; copy the files of the run again, or repeat the run"


class BadRun(Exception):
    """A run that cannot be shown; the message is one line that names the file or option, and the cure."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadRun(f"{message}; see --help")


Settings = dict[str, dict[str, Any]]
RUN: Settings = {"run": {"metavar": "RUN", "help": "RESULTS_DIR/RUN_NAME, or one of the run's files"}}
RUNS: Settings = {
    "paths": {
        "nargs": "*", "metavar": "RUN", "default": ["results/*.json"],
        "help": "the .json or .csv of a run (each finds the other), or a quoted pattern (default: %(default)s)",
    },
    "--last": {"type": int, "metavar": "N", "help": "only the N runs that ended last, the newest at the end"},
}  # fmt: skip
"""The arguments of a command that shows one run; and those of `find_runs`."""


def command(
    name: str, description: str, settings: Settings, work: Callable[[argparse.Namespace], str]
) -> Callable[..., int]:
    """Return the `main` of `gradwire NAME`: it prints the text that `work` returns for the arguments.

    An error becomes one line on stderr. `main` takes the command line (default: that of this process) and
    returns the exit status: 2 after a BadRun, 130 after Ctrl-C, else that of `exit_code_of`.
    """

    def main(arguments: Sequence[str] | None = None) -> int:
        parser = _Parser(prog=f"gradwire {name}", description=description)
        for argument, of_argument in settings.items():
            parser.add_argument(argument, **of_argument)
        try:
            text = work(parser.parse_args(arguments))
            with unread_output_is_no_error() as output:
                print(text)
        except BadRun as error:
            print(f"{name}:", *str(error).splitlines(), file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print(f"\n{name}: ended by SIGINT", file=sys.stderr)
            return 130
        return exit_code_of(output, 0)

    return main


@contextmanager
def writing(paths: Sequence[str | Path], cure: str) -> Iterator[Sequence[Path]]:
    """Yield temporary paths, as `write_together` does; an OSError becomes a BadRun with the `cure`."""
    try:
        with write_together([Path(path) for path in paths]) as temporaries:
            yield temporaries
    except OSError as error:
        names = " and ".join(map(str, paths))
        raise BadRun(f"cannot write {names}: {error.strerror or error}; {cure}") from error


@dataclass(frozen=True)
class Run:
    """A finished run: RESULTS_DIR/RUN_NAME, its table of epochs and ranks, and its metadata ({} without a .json)."""

    path: Path
    table: pd.DataFrame
    metadata: dict[str, Any]

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def options(self) -> dict[str, Any]:
        """The options of the run by name; {} if they are not known."""
        options = self.metadata.get("options")
        return options if isinstance(options, dict) else {}

    @property
    def ended(self) -> str:
        """When it ended, as YYYY-MM-DD HH:MM:SS; without metadata, when its table was written."""
        written = datetime.fromtimestamp(os.path.getmtime(f"{self.path}.csv"))
        return str(self.metadata.get("ended") or f"{written:%Y-%m-%d %H:%M:%S}")


def find_runs(paths: Sequence[str], last: int | None = None) -> list[Run]:
    """Return the runs behind `paths`, in the order given and each once; or the `last` that ended, by their end.

    A path is the .csv or the .json of a run, or a pattern of such; traces and calibrations beside the runs are passed
    over. Raises BadRun.
    """
    if last is not None and last < 1:
        raise BadRun(f"--last {last}: must be 1 or more")
    stems = dict.fromkeys(stem for path in paths for stem in _stems(path))
    if not stems:
        raise BadRun(f"{paths[0]}: not the record of a run; give its .json")
    runs = []
    for stem in stems:
        table, metadata = _load(load_table, f"{stem}.csv"), f"{stem}.json"
        if not finished_epochs(table):
            raise BadRun(f"{stem}.csv: the run finished no epoch; repeat it, or leave it out")
        runs.append(Run(stem, table, _load(load_metadata, metadata) if os.path.exists(metadata) else {}))
    return runs if last is None else sorted(runs, key=lambda run: run.ended)[-last:]


def _stems(path: str) -> Iterator[Path]:
    """Yield RESULTS_DIR/RUN_NAME of the runs that a path or pattern names."""
    matches = [path] if os.path.exists(path) else sorted(glob(path))
    if not matches:
        raise BadRun(f"{path}: no such file; give the .json of a run")
    for match in matches:
        stem, suffix = os.path.splitext(match)
        if suffix not in (".csv", ".json"):
            raise BadRun(f"{match}: neither the .csv nor the .json of a run")
        if not match.endswith((TRACE_SUFFIX, CALIBRATION)):
            yield Path(stem)


def _load(read: Callable[[str], Loaded], path: str, cure: str = "") -> Loaded:
    try:
        return read(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise BadRun(f"{path}: {reason.splitlines()[0]}{cure}") from error


@dataclass(frozen=True)
class Recorded:
    """A finished run, RESULTS_DIR/RUN_NAME, with the events of its ranks, without those of evaluation."""

    path: str
    events: pd.DataFrame
    metadata: dict[str, Any]

    @property
    def roles(self) -> list[str]:
        """The role of each rank."""
        return list(self.metadata["roles"])

    @property
    def died(self) -> set[int]:
        """The ranks that have died, and perhaps returned; their events until then are lost."""
        return {death["rank"] for death in self.metadata.get("deaths", ())}

    @cached_property
    def steps(self) -> pd.DataFrame:
        """The spans of the workers that belong to a step."""
        return worker_spans(self.events, self.roles)

    @property
    def begins(self) -> float:
        """When the first epoch begins."""
        return float(self.steps["t0"].min())

    @property
    def about(self) -> str:
        """A title: strategy, ranks, model and data."""
        options, n = self.metadata["options"], len(self.roles)
        ranks = "1 rank" if n == 1 else f"{n} ranks"
        trained = f", {options['model']} on {options.get('dataset')}" if "model" in options else ""
        return f"{self.metadata['strategy']}, {ranks}{trained}"


def load(path: str) -> Recorded:
    """Return the run RESULTS_DIR/RUN_NAME, `path` being that or one of its files. Raises BadRun."""
    suffix = next((suffix for suffix in SUFFIXES if path.endswith(suffix)), "")
    stem = path.removesuffix(suffix)
    # `path` itself first: the name of a run may end like a file.
    run = next((name for name in (path, stem) if os.path.exists(name + EVENTS_SUFFIX)), None)
    if run is None:
        if os.path.exists(f"{path}.json") or os.path.exists(f"{stem}.json"):
            raise BadRun(f"{path}: the events of this run were not kept; repeat the run")
        raise BadRun(f"{path}: no such run (there is no {stem}{EVENTS_SUFFIX}); give RESULTS_DIR/RUN_NAME")
    events = _load(load_events, run + EVENTS_SUFFIX, _CURE)
    metadata = _load(load_metadata, f"{run}.json", _CURE)
    roles, options = metadata.get("roles"), metadata.get("options")
    if not (isinstance(roles, list) and "worker" in roles and isinstance(options, dict)):
        raise BadRun(f"{run}.json: has no roles of the ranks, or no options{_CURE}")
    known = events["phase"].isin([*PHASES, *MARKS, HIDDEN, EVALUATE]) & events["op"].isin(OPS)
    known &= events["rank"].between(0, len(roles) - 1)
    if not (known & events["t0"].between(0, events["t1"]) & (events["t1"] < 1e9)).all():
        raise BadRun(f"{run}{EVENTS_SUFFIX}: damaged, or not of the same run as {run}.json{_CURE}")
    if worker_spans(events, roles).empty:
        raise BadRun(f"{run}{EVENTS_SUFFIX}: the run was recorded without events; repeat it without --no_events")
    with suppress(TypeError, KeyError):
        found = Recorded(run, events[events["phase"] != EVALUATE], metadata)
        if found.died <= set(range(len(roles))):
            return found
    raise BadRun(f"{run}.json: its deaths are not a list of ranks{_CURE}")


LEFT_OUT = ("strategy", "n_gpus", "epochs", "run_name", "results_dir", "save", "checkpoint_dir")


def differing_options(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return the options that differ between the runs, by name: a value a run, "-" where a run has no such option.

    Without what says only where files are, and without strategy, n_gpus and epochs, which every table shows.
    """
    names = dict.fromkeys(name for run in runs for name in run.options if name not in LEFT_OUT)
    values = {name: [_shown(run.options.get(name)) for run in runs] for name in names}
    return {name: of_runs for name, of_runs in values.items() if len(set(of_runs)) > 1}


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return "-" if value is None or not text else text


def shortened(text: str, width: int) -> str:
    """Return `text` in at most `width` (3 or more) characters: where it is longer, without its middle."""
    tail = (width - 2) // 2
    return text if len(text) <= width else text[: width - 2 - tail] + ".." + text[len(text) - tail :]
