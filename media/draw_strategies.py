"""Draw how the two strategies work, and what they send: media/how_*.png.

python media/draw_strategies.py
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from experiments import drawing
from gradwire.core.strategy.cost_model import evaluate_cost
from strategies import ParamServer, RingAllReduce, Strategy

HERE = Path(__file__).parent
SERVER, WORKER = "#c25b4e", "#3b6ea5"
CHUNKS = ("#3b6ea5", "#d9903d", "#5a9e6f", "#8c6bb1")
HALVES = {  # the place of the drawing, and its caption
    "share-reduce": (2.3, "Share-reduce: a number counts the ranks summed in that chunk; framed: finished."),
    "share-only": (-0.25, "Share-only: the finished chunks travel round once more and overwrite."),
}
_SIZE = 0.34  # of a chunk
_POINTS_FOR_P, _POINTS_FOR_UNIT = 6, 62.0  # the width of an arrow of P bytes; a unit of the axes, about
Place = Sequence[float] | np.ndarray


def _node(axes: Axes, place: Place, text: str, colour: str) -> None:
    box = {"boxstyle": "round,pad=0.55", "facecolor": colour, "edgecolor": "none"}
    axes.text(place[0], place[1], text, ha="center", va="center", color="white", fontsize=11, bbox=box)


def _arrow(axes: Axes, start: Place, end: Place, colour: str, bend: float = 0.0) -> None:
    look = {"arrowstyle": "-|>", "color": colour, "lw": 2, "shrinkA": 4, "shrinkB": 4}
    axes.annotate("", tuple(end), tuple(start), arrowprops=look | {"connectionstyle": f"arc3,rad={bend}"})


def _canvas(width: float, low: float, high: float) -> tuple[Figure, Axes]:
    """Return axes from (0, low) to (width, high), an inch per unit."""
    figure = Figure((width, high - low), dpi=150)
    axes = figure.subplots()
    axes.axis("off")
    axes.set(xlim=(0, width), ylim=(low, high))
    return figure, axes


def _circle(N: int, radius: float) -> np.ndarray:
    """Return the places [N, 2] of ranks around (0, 0), clockwise from the top."""
    angles = np.pi / 2 - 2 * np.pi * np.arange(N) / N
    return radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def param_server() -> None:
    """One server above three workers, gradients up, parameters down."""
    figure, axes = _canvas(7, 0, 3.1)
    _node(axes, (3.5, 2.6), "server, rank 0:  x", SERVER)
    for k, x in enumerate((1.2, 3.5, 5.8), start=1):
        _node(axes, (x, 0.45), f"worker {k}:  shard {k}", WORKER)
        top = 3.5 + (x - 3.5) * 0.35
        _arrow(axes, (x - 0.13, 0.8), (top - 0.13, 2.25), WORKER)
        _arrow(axes, (top + 0.13, 2.25), (x + 0.13, 0.8), SERVER)
    axes.text(1.25, 1.75, "1  gradient $g_k$ of\n$n_k$ samples", color=WORKER, ha="center", fontsize=10)
    axes.text(6.15, 1.6, "3  new parameters x", color=SERVER, ha="center", fontsize=10)
    axes.text(5.1, 2.6, r"2  x $\leftarrow$ optimizer(x, $\sum n_k g_k / \sum n_k$)", color=SERVER, va="center",
              ha="left", fontsize=8.5)  # fmt: skip
    drawing.save(figure, HERE / "how_param_server.png", 150, bbox_inches="tight")


def ring_all_reduce(N: int = 4) -> None:
    """The ring of N ranks; beside it, the partial sums of every rank after every step of both halves."""
    figure, axes = _canvas(8.7, -1.7, 3.4)
    centre = (1.6, 0.9)
    places = _circle(N, 1.15) + centre
    for here, there in zip(places, np.roll(places, -1, axis=0), strict=True):
        gap = 0.24 * (there - here)
        _arrow(axes, here + gap, there - gap, "#777777", -0.25)
    for r, place in enumerate(places):
        _node(axes, place, f"rank {r}", WORKER)
    axes.text(*centre, "each sends only\nto the right", ha="center", va="center", fontsize=9, color="#555555")

    left = 4.0
    for half, (y0, about) in HALVES.items():
        for s in range(N):
            x0 = left + s * 1.2
            step = s if half == "share-reduce" else N - 1 + s
            title = "at first" if step == 0 else f"after step {step}"
            axes.text(x0 + N * _SIZE * 0.37, y0 + 0.47, title, ha="center", fontsize=9)
            _state(axes, x0, y0, N, s, half)
        for r in range(N):
            axes.text(left - 0.1, y0 - r * 0.42 + _SIZE / 2, f"rank {r}", ha="right", va="center", fontsize=9)
        axes.text(left, y0 + 0.73, about, fontsize=8.5, va="center")
    drawing.save(figure, HERE / "how_ring_all_reduce.png", 150, bbox_inches="tight")


def _state(axes: Axes, x0: float, y0: float, N: int, s: int, half: str) -> None:
    """Draw what the ranks hold after `s` steps of one half: a row a rank, a box a chunk."""
    for r, c in np.ndindex(N, N):
        came = (r - c) % N  # the step in which chunk c comes to rank r, with the sum of those before it
        summed = came + 1 if half == "share-only" or came <= s else 1
        if half == "share-only" and (came + 1) % N <= s:
            summed = N
        x, y = x0 + c * _SIZE * 0.74, y0 - r * 0.42
        edge, alpha = "black" if summed == N else "none", 0.18 + 0.82 * (summed - 1) / (N - 1)
        axes.add_patch(Rectangle((x, y), _SIZE * 0.7, _SIZE, facecolor=CHUNKS[c], ec=edge, lw=1.4, alpha=alpha))
        axes.text(x + _SIZE * 0.35, y + _SIZE / 2, str(summed), ha="center", va="center", fontsize=7.5,
                  color="white" if summed > 2 else "black")  # fmt: skip


def bottleneck(N: int = 5) -> None:
    """What goes through each rank's link while every worker takes one step, by the strategies' own formulas."""
    figure = Figure((8.7, 4.4), dpi=150)
    strategies: list[Strategy] = [ParamServer(), RingAllReduce()]
    for axes, strategy in zip(figure.subplots(1, 2), strategies, strict=True):
        axes.set(xlim=(-1.8, 1.8), ylim=(-2.1, 1.7), aspect="equal")
        axes.axis("off")
        sent = {
            role: evaluate_cost(strategy, formulas, N, nbytes=1)[1]
            for role, formulas in strategy.cost().by_role.items()
        }
        # A server gets what its workers send, and they what it sends; in a ring all get as much as they send.
        got = {"server": (N - 1) * sent["worker"], "worker": sent["server"] / (N - 1)} if "server" in sent else sent
        roles = strategy.roles(N)
        for r, (role, place) in enumerate(zip(roles, _circle(N, 1.35), strict=True)):
            colour = SERVER if role == "server" else WORKER
            _link(axes, place, sent[role], got[role], colour)
            _node(axes, place, f"rank {r}", colour)
        box = {"boxstyle": "round,pad=0.4", "facecolor": "#e6e6e6", "edgecolor": "#999999"}
        axes.text(0, 0, "switch", ha="center", va="center", fontsize=9, color="#333333", bbox=box)
        axes.set_title(f"{strategy.name}, {N} ranks", fontsize=11)
        who = {"server": "the server, rank 0,", "worker": "each worker"}
        words = "; ".join(f"{who[role]} sends {sent[role]:.3g} P" for role in dict.fromkeys(roles))
        axes.text(0, -1.85, words, ha="center", va="center", fontsize=9.5)
    note = "One step. P: bytes of the parameters. Each rank's arrows, out and in, are as wide as the bytes in them."
    figure.text(0.5, 0.02, note, ha="center", fontsize=9, color="#555555")
    figure.subplots_adjust(left=0.01, right=0.99, top=0.93, bottom=0.05, wspace=0.02)
    drawing.save(figure, HERE / "how_bottleneck.png", 150, bbox_inches="tight")


def _link(axes: Axes, place: np.ndarray, out: float, into: float, colour: str) -> None:
    """Draw what a rank sends (full) and what it gets (pale), side by side on the way to the middle."""
    across = np.array((place[1], -place[0])) / np.hypot(*place)
    for nbytes, side, alpha in ((out, 1, 0.9), (into, -1, 0.45)):
        width = _POINTS_FOR_P * nbytes
        aside = side * (width / 2 + 1.5) / _POINTS_FOR_UNIT * across
        first, last = [tuple(share * place + aside) for share in (0.78, 0.2)][::side]
        style = f"simple,tail_width={width},head_width={width + 5},head_length=8"
        arrow = FancyArrowPatch(first, last, arrowstyle=style, color=colour, alpha=alpha, shrinkA=0, shrinkB=0, lw=0)
        axes.add_patch(arrow)


if __name__ == "__main__":
    param_server()
    ring_all_reduce()
    bottleneck()
