"""Pictures in a notebook: of the messages of a run in virtual time, yours above the reference's, and others."""

import base64
import html
import io
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lessons.lab import Lab, Run, counted

_MOST = 200  # messages that are drawn of a run
_LABELLED = 60  # a run of no more has the label of each message beside its arrow
_LABELLED_ALIKE = 20  # the same, where all messages have one label
_COLOURS = ("#3b6ea5", "#d9903d", "#5a9e6f", "#8c6bb1", "#b3565f", "#4f8f97", "#8a7a4d", "#6b6b6b")


@dataclass(frozen=True, repr=False)
class Shown:
    """Lines of text, and below them a picture, which `about` describes for those who cannot see it."""

    text: str
    picture: Figure
    about: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text)}</pre>{as_html(self.picture, self.about)}"


def as_html(figure: Figure, about: str) -> str:
    """Return a figure as an image of HTML, with its description."""
    data = base64.b64encode(picture_bytes(figure, "png")).decode()
    return f'<img alt="{html.escape(about)}" style="max-width:100%" src="data:image/png;base64,{data}">'


def picture_bytes(figure: Figure, kind: str) -> bytes:
    """Return a figure as a file of this kind: png, svg, pdf."""
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=110)
    return file.getvalue()


def new_picture(**properties: Any) -> tuple[Figure, Axes]:
    """Return a figure, and its axes with these properties."""
    picture = Figure(figsize=(9, 3.4), layout="constrained")
    axes = picture.subplots()
    axes.set(**properties)
    axes.spines[["top", "right"]].set_visible(False)
    return picture, axes


def draw(lab: Lab, yours: Run, reference: Run) -> Figure:
    """Return a figure of two runs of one case on one clock, that of the longer one."""
    figure = Figure(figsize=(10, 0.9 + 2 * (0.9 + 0.55 * yours.case.n)), layout="constrained")
    # One colour for each label, in the order in which the reference sends.
    labels = dict.fromkeys(lab.label(message, run.case) for run in (reference, yours) for message in run.sent[:_MOST])
    colours = {label: _COLOURS[i % len(_COLOURS)] for i, label in enumerate(labels)}
    most = _LABELLED if len(labels) > 1 else _LABELLED_ALIKE
    latest = 0.0
    panels = figure.subplots(2, 1, sharex=True)
    for axes, name, run in zip(panels, ("yours", "reference"), (yours, reference), strict=True):
        shown = run.sent[:_MOST]
        for message in shown:
            # One that never arrived ends where it would have.
            end = message.sent + 1e-4 if message.arrived is None else message.arrived
            latest = max(latest, end)
            label = lab.label(message, run.case)
            style = {"color": colours[label], "linestyle": "-" if message.arrived is not None else "--"}
            axes.annotate(
                "", (1000 * end, message.dst), (1000 * message.sent, message.rank),
                arrowprops={"arrowstyle": "-|>", "lw": 1.6, "shrinkA": 0, "shrinkB": 0, **style},
            )  # fmt: skip
            if len(shown) <= most:
                # Near its beginning, where arrows that cross are apart.
                x = 1000 * (message.sent + 0.2 * (end - message.sent))
                y = message.rank + 0.2 * (message.dst - message.rank)
                axes.text(
                    x, y, label.removeprefix("chunk "), fontsize=8, ha="center", va="center", color=colours[label],
                    parse_math=False,
                    bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": colours[label], "lw": 0.6},
                )  # fmt: skip
        left_out = f", of which {_MOST} are drawn" if len(run.sent) > _MOST else ""
        unread = any(message.arrived is None for message in shown)
        of_all = f"{counted(len(run.sent), 'message')}{left_out}, {counted(run.rounds, 'round')} in the whole run"
        legend = "; dashed: sent, never received" if unread else ""
        axes.set_title(f"{name}: {of_all}{legend}", loc="left", fontsize=10)
        axes.set(ylim=(run.case.n - 0.5, -0.5))
        axes.set_yticks(range(run.case.n), [f"rank {rank}" for rank in range(run.case.n)])
        axes.grid(axis="y", color="#dddddd")
        axes.spines[["top", "right", "left"]].set_visible(False)
    panels[-1].set_xlim(-0.02 * 1000 * latest, 1.02 * 1000 * max(latest, 1e-6))
    chunks = "; numbers are chunks where a message carries one" if any("chunk" in label for label in labels) else ""
    alike = f"; each arrow carries {label}" if len(labels) == 1 else ""
    panels[-1].set_xlabel(f"virtual milliseconds ({yours.case}){chunks}{alike}", parse_math=False)
    return figure
