"""The hashes of runs that were made with --hashes, and where two of them part: see `gradwire.diagnosis.why`."""

import zlib
from collections import defaultdict
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np

from gradwire.pictures.finished import BadRun, Run, find_runs
from gradwire.results import HASHES

CLOSE = 1e-4


class Row(NamedTuple):
    """The kept values of the tensors of one vector: hashes, some elements of each, and norms."""

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
        """Return the row of x, g or u, or of a batch, as if it were one tensor; None: unknown."""
        of = self.updates if kind == "u" else self.workers
        if who >= len(of) or kind not in of[who] or step >= len(of[who][kind]):
            return None
        if kind == "batch":
            return Row(of[who][kind][[step]], np.empty((1, 0)), np.zeros(1))
        return Row(*(of[who][kind + what][step] for what in ("", " elements", " norms")))

    def elements(self, step: int) -> np.ndarray | None:
        """Return the elements of g of all workers [workers, tensors, elements]; None: some are unknown."""
        rows = [self.row("g", step, k) for k in range(len(self.workers))]
        found = np.array([row.elements for row in rows if row])
        return found if len(found) == len(rows) and not np.isnan(found).all(axis=(1, 2)).any() else None


@dataclass
class Divergence:
    """The first difference of two runs: its kind, step, worker or update, and tensor, and the value of each run."""

    a: Hashed
    b: Hashed
    kind: str
    step: int
    who: int
    tensor: int
    ours: Row
    theirs: Row

    @property
    def names(self) -> list[str]:
        """The tensors of the worker, or of the update."""
        return self.a.names if self.kind == "u" else list(self.a.workers[self.who]["names"])

    @property
    def name(self) -> str:
        """The tensor."""
        return self.names[self.tensor]

    @property
    def are_close(self) -> bool:
        """Whether the kept elements, and the norms of the tensors, are the same but for rounding."""
        (_, ours, norms), (_, theirs, of_theirs) = self.ours, self.theirs
        least = 1e-6 * float(np.nanmax(np.abs(ours)))
        same = np.allclose(norms, of_theirs, rtol=CLOSE, atol=least, equal_nan=True)
        return same and np.allclose(ours, theirs, rtol=1e-3, atol=least, equal_nan=True)

    @property
    def factor(self) -> float:
        """The number that all elements of A's are multiplied with in B; 0: it is not one, or it is 1."""
        ours, theirs = self.ours.elements, self.theirs.elements
        known = np.isfinite(ours) & np.isfinite(theirs) & (np.abs(ours) > 1e-12)
        if not known.any():
            return 0.0
        ratios = theirs[known] / ours[known]
        middle = float(np.median(ratios))
        return middle if np.allclose(ratios, middle, rtol=CLOSE) and abs(middle - 1) > CLOSE else 0.0


def load(path: str) -> Hashed:
    """Return the hashes of the run RESULTS_DIR/RUN_NAME, or of that with this .json. Raises BadRun."""
    (run,) = find_runs([path if path.endswith(".json") else f"{path}.json"])
    hashes = Path(f"{run.path}{HASHES}")
    ranks: defaultdict[int, dict[str, np.ndarray]] = defaultdict(dict)
    try:
        with np.load(hashes) as file:
            for name in file.files:
                rank, _, kind = name.partition(" ")
                ranks[int(rank)][kind] = file[name]
        rows = [ranks[rank] for rank in sorted(ranks)]
        workers = [row for row in rows if row.keys() >= {"x", "x norms", "g", "batch", "n", "step"}]
        return Hashed(run, list(workers[0]["names"]), workers, [row for row in rows if "u" in row])
    except (OSError, ValueError, EOFError, KeyError, IndexError, BadZipFile, zlib.error) as error:
        raise BadRun(f"{hashes}: cannot be read; repeat the run with --hashes, or GRADWIRE_HASHES=1") from error


def first_divergence(a: Hashed, b: Hashed) -> Divergence | None:
    """Return where the runs part; None: nowhere in the steps that both took, nor at the end of both."""
    if any(list(ours["names"]) != list(theirs["names"]) for ours, theirs in zip(a.workers, b.workers, strict=False)):
        raise BadRun(f"{b.run.path}: has another model than {a.run.path}; give two runs of one model")
    begins = [int(run.workers[0]["step"][0]) for run in (a, b)]
    if begins[0] != begins[1]:
        raise BadRun(f"{b.run.path}: begins at step {begins[1] + 1}, the other at {begins[0] + 1}: one was resumed")
    workers = [*a.workers, *b.workers]
    steps = min(len(worker["g"]) for worker in workers)
    end = [(steps, "x")] if {len(worker["g"]) for worker in workers} == {steps} else []
    for step, kind in [*product(range(steps), ("x", "batch", "g", "u")), *end]:
        for who in range(len(a.updates if kind == "u" else a.workers)):
            ours, theirs = (run.row(kind, step, who) for run in (a, b))
            if ours and theirs and len(tensors := differing(ours, theirs)):
                return Divergence(a, b, kind, step, who, int(tensors[0]), ours, theirs)
    return None


def differing(ours: Row, theirs: Row) -> np.ndarray:
    """Return which tensors have other bits, of those that are known."""
    known = ~(np.isnan(ours.norms) | np.isnan(theirs.norms))
    return np.flatnonzero((ours.hashes != theirs.hashes) & known)
