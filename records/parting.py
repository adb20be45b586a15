"""The hashes of runs that were made with --hashes, and where two of them part: see `records.why`."""

import zlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np

from records.files import HASHES
from records.finished import BadRun, Run


class Row(NamedTuple):
    """What is kept of the tensors of one vector: hashes, some elements of each, and norms."""

    hashes: np.ndarray
    elements: np.ndarray
    norms: np.ndarray


@dataclass
class Hashed:
    """A run and its hashes: of each worker, and of each update, one row a step."""

    run: Run
    names: list[str]
    workers: list[dict[str, np.ndarray]]
    updates: list[dict[str, np.ndarray]]  # of the ranks that make some

    def option(self, name: str) -> Any:
        """Return an option of the run; of several machines and versions too."""
        of_machine = self.run.metadata.get("machine", {}) | {"threads": self.run.metadata.get("threads")}
        return of_machine.get(name[8:]) if name.startswith("machine ") else self.run.options.get(name)

    def row(self, kind: str, step: int, who: int) -> Row | None:
        """Return what is kept of x, g or u; None: unknown."""
        of = self.updates if kind == "u" else self.workers
        if who >= len(of) or kind not in of[who] or step >= len(of[who][kind]):
            return None
        return Row(*(of[who][kind + what][step] for what in ("", " elements", " norms")))

    def elements(self, step: int) -> np.ndarray | None:
        """Return the elements of g of all workers [workers, tensors, elements]; None: some are unknown."""
        rows = [self.row("g", step, k) for k in range(len(self.workers))]
        found = np.array([row.elements for row in rows if row])
        return found if len(found) == len(rows) and not np.isnan(found).all(axis=(1, 2)).any() else None


@dataclass
class Parting:
    """Where two runs part: at a kind of thing in a step, of a worker or an update, in a tensor."""

    kind: str
    step: int
    who: int
    tensor: int


def load(run: Run) -> Hashed:
    """Return a run's hashes. Raises BadRun."""
    path = Path(f"{run.path}{HASHES}")
    ranks: defaultdict[int, dict[str, np.ndarray]] = defaultdict(dict)
    try:
        with np.load(path) as file:
            for name in file.files:
                rank, _, kind = name.partition(" ")
                ranks[int(rank)][kind] = file[name]
        rows = [ranks[rank] for rank in sorted(ranks)]
        workers = [row for row in rows if row.keys() >= {"x", "x norms", "g", "batch", "n", "step"}]
        return Hashed(run, list(workers[0]["names"]), workers, [row for row in rows if "u" in row])
    except (OSError, ValueError, EOFError, KeyError, IndexError, BadZipFile, zlib.error) as error:
        raise BadRun(f"{path}: cannot be read; repeat the run with --hashes") from error


def part(a: Hashed, b: Hashed) -> Parting | None:
    """Return where the runs part; None: nowhere in the steps that both took."""
    if a.names != b.names:
        raise BadRun(f"{b.run.path}: has another model than {a.run.path}; give two runs of one model")
    begins = [int(run.workers[0]["step"][0]) for run in (a, b)]
    if begins[0] != begins[1]:
        raise BadRun(f"{b.run.path}: begins at step {begins[1] + 1}, the other at {begins[0] + 1}: one was resumed")
    workers = min(len(a.workers), len(b.workers))
    for step in range(min(len(one["x"]) for one in [*a.workers, *b.workers])):
        for who in range(workers):
            if (tensor := differs(a.row("x", step, who), b.row("x", step, who))) is not None:
                return Parting("x", step, who, tensor)
        for who in range(workers):
            if a.workers[who]["batch"][step] != b.workers[who]["batch"][step]:
                return Parting("batch", step, who, 0)
        for kind, n in (("g", workers), ("u", min(len(a.updates), len(b.updates)))):
            for who in range(n):
                if (tensor := differs(a.row(kind, step, who), b.row(kind, step, who))) is not None:
                    return Parting(kind, step, who, tensor)
    return None


def differs(one: Row | None, other: Row | None) -> int | None:
    """Return the first tensor of two rows that has other bits; None: there is none, or it is not known."""
    if one is None or other is None:
        return None
    known = ~(np.isnan(one.norms) | np.isnan(other.norms))
    found = np.flatnonzero((one.hashes != other.hashes) & known)
    return int(found[0]) if len(found) else None
