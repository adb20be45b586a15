"""What a legend says of lines that cannot be seen, because others lie on them, and how long its own lines are."""

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

DASHED = {"handlelength": 3.6}
"""Options of a legend in which dashes are seen as dashes."""
_NEAR = 2.0  # points


def notes_on_covered(panels: Iterable[Axes], names: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return, by the label of each line on which another lies that was drawn later: "under b", b being that one.

    "partly under b" where it does so in some of the `panels` alone. `names`: what labels stand for, if not for
    themselves. The axes have their final limits, as after `Figure.draw_without_rendering`.
    """
    panels_of: Counter[str] = Counter()
    covers: dict[str, Counter[str]] = {}
    for axes in panels:
        lines = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_") and len(_points(line))]
        for i, line in enumerate(lines):
            label = str(line.get_label())
            panels_of[label] += 1
            above = [str(other.get_label()) for other in lines[i + 1 :] if _lies_on(other, line)]
            covers.setdefault(label, Counter()).update(above)
    notes = {}
    for label, of_label in covers.items():
        for by, times in of_label.most_common(1):
            partly = "partly " if times < panels_of[label] else ""
            notes[label] = f"{partly}under {names[by] if names else by}"
    return notes


def _points(line: Line2D) -> np.ndarray:
    data = np.asarray(line.get_xydata(), dtype=float)
    return np.asarray(line.get_transform().transform(data[np.isfinite(data).all(1)]))


def _lies_on(one: Line2D, other: Line2D) -> bool:
    a, b = _points(one), _points(other)
    return a.shape == b.shape and bool(np.abs(a - b).max() <= _NEAR)
