"""The memory use of ranks, as `memory.py` counts it: written beside a run, printed, and drawn."""

import gzip
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gradwire.core.records import tables
from gradwire.core.records.atomic import AnyPath

if TYPE_CHECKING:
    from matplotlib.axes import Axes  # which takes long to load

PARAMETERS, GATHERED, GRADIENTS, STATE = "parameters", "gathered parameters", "gradients", "optimizer state"
BUCKETS, MESSAGES, CODECS, ACTIVATIONS = "buckets", "messages", "codec state", "activations"
TEMPORARIES, OTHER = "temporaries", "other"
COLOURS = {
    PARAMETERS: "#3b6ea5", GATHERED: "#8fb4d9", GRADIENTS: "#c25b4e", STATE: "#d9a441", BUCKETS: "#8c6bb1",
    MESSAGES: "#5a9e6f", CODECS: "#a3c586", ACTIVATIONS: "#b8b8b8", TEMPORARIES: "#e8b5ad", OTHER: "#666666",
}  # fmt: skip
KINDS = tuple(COLOURS)
SUFFIX = ".memory.csv.gz"
_COLUMNS = ["rank", "phase", "kind", "bytes"]


@dataclass(frozen=True)
class Curve:
    """The memory of one step: at its beginning, and each change in its order.

    `changes`: the phase, the kind and the bytes that came, or, if negative, went.
    """

    start: Mapping[str, int]
    changes: list[tuple[str, str, int]]


@dataclass(frozen=True)
class MemoryUse:
    """The memory that a rank has used in training; evaluation is left out.

    `peak`: the most bytes at a time; `phase`: the one in which that was, the last time; `at_peak`: these bytes by kind;
    `most`: the most bytes of each kind but temporaries, which optimizer state is at first; `curve`: of the step that
    came highest, if the rank takes steps.
    """

    peak: int
    phase: str
    at_peak: Mapping[str, int]
    most: Mapping[str, int]
    curve: Curve | None = None

    def recorded(self) -> dict[str, Any]:
        """Return all but the curve."""
        return {"peak": self.peak, "phase": self.phase, "at_peak": dict(self.at_peak), "most": dict(self.most)}


def summary(ranks: Mapping[int, Mapping[str, Any]]) -> str:
    """Return as text the peak memory of each rank, and the kinds of memory of the rank with the highest peak.

    `ranks`: the result of `recorded` of each.
    """
    highest = max(ranks, key=lambda rank: ranks[rank]["peak"])
    of, found = ranks[highest], {rank: recorded["peak"] * 1e-6 for rank, recorded in ranks.items()}
    kinds = ", ".join(f"{kind} {nbytes * 1e-6:.3f}" for kind, nbytes in of["at_peak"].items())
    peaks = f"memory MB      peak by rank {tables.by_rank(found)}"
    line = f"{peaks}; rank {highest}, in {of['phase'] or 'no phase'}: {kinds}"
    return textwrap.fill(line, tables.WIDTH, subsequent_indent=" " * 15)


def packed(ranks: Mapping[int, MemoryUse]) -> bytes:
    """Return the curves of all ranks as a file: a row for each change, after rows without a phase for the start."""
    rows = [
        (rank, *row)
        for rank, use in ranks.items()
        if use.curve
        for row in [*(("", kind, n) for kind, n in use.curve.start.items() if n), *use.curve.changes]
    ]
    return gzip.compress(pd.DataFrame(rows, columns=_COLUMNS).to_csv(index=False).encode(), mtime=0)


def load_changes(path: AnyPath) -> pd.DataFrame:
    """Return what `packed` has written, by columns rank, phase, kind, bytes. Raises OSError, ValueError."""
    return pd.read_csv(path, keep_default_na=False)


def draw(changes: pd.DataFrame, axes: "Axes", unit: float = 1e6) -> None:
    """Stack the memory of one rank by kind, in units of bytes, against its changes; name the phases below."""
    began = changes["phase"].eq("").sum()
    by_kind = np.zeros((len(changes), len(KINDS)))
    by_kind[np.arange(len(changes)), [KINDS.index(kind) for kind in changes["kind"]]] = changes["bytes"]
    heights = by_kind.cumsum(0)[max(0, began - 1) :] / unit
    used = [i for i in range(len(KINDS)) if heights[:, i].any()]
    axes.stackplot(
        range(len(heights)), heights[:, used].T, step="post", colors=[COLOURS[KINDS[i]] for i in used],
        labels=[KINDS[i] for i in used],
    )  # fmt: skip
    at = 0
    for phase, run in groupby(changes["phase"][began:]):
        start, at = at, at + len([*run])
        if at - start > len(heights) / 12:
            axes.text((start + at) / 2, -0.02, phase, ha="center", va="top", transform=axes.get_xaxis_transform())
        axes.axvline(at, color="#999999", lw=0.6, ls=":")
    axes.set(xlim=(0, max(1, len(heights) - 1)), ylim=(0, None), xticks=[])
