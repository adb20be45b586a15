"""The picture of a pipeline: what each rank computes when, of a student's run and of the reference's."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.patches import Patch

from lessons.lab import Run

_MOST_LABELS = 120  # side by side
_COLOURS = ("#3b6ea5", "#d9903d", "#8cb4d9", "#f0c48a", "#5a9e6f", "#b3565f")


def draw_lanes(yours: Run, reference: Run) -> Picture:
    """Return a figure of two runs of one case on one clock; gaps in a lane are the bubble."""
    picture = Picture(figsize=(10, 1.1 + 2 * (0.6 + 0.3 * yours.case.n)), layout="constrained")
    panels = picture.subplots(2, 1, sharex=True)
    groups = dict.fromkeys(lane.group for run in (reference, yours) for lane in run.lanes)
    colours = dict(zip(groups, _COLOURS * len(groups), strict=False))
    for axes, name, run in zip(panels, ("yours", "reference"), (yours, reference), strict=True):
        axes.set_title(name, loc="left", fontsize=10)
        _draw(axes, run, colours)
    panels[-1].set_xlabel(f"virtual seconds ({yours.case}); numbers are micro-batches")
    handles = [Patch(color=colour, label=group) for group, colour in colours.items()]
    picture.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=8)
    return picture


def _draw(axes: Axes, run: Run, colours: dict[str, str]) -> None:
    latest = max((lane.end for lane in run.lanes), default=0.0)
    for lane in run.lanes:
        width = lane.end - lane.begin
        axes.barh(lane.rank, width, left=lane.begin, color=colours[lane.group], edgecolor="white", linewidth=0.5)
        if width > latest / _MOST_LABELS:
            at = lane.begin + width / 2, lane.rank
            axes.text(*at, lane.label, ha="center", va="center", fontsize=6, color="white")
    axes.set(ylim=(run.case.n - 0.5, -0.5))
    axes.set_yticks(range(run.case.n), [f"rank {rank}" for rank in range(run.case.n)])
    axes.spines[["top", "right", "left"]].set_visible(False)
