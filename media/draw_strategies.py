"""Draw how the two strategies work, and what they send: media/how_*.png.

python media/draw_strategies.py
"""

import math
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from strategies import Strategy
from strategies.all_reduce.ring_all_reduce import RingAllReduce
from strategies.common.forms import closed_form
from strategies.synchronous_server.param_server import ParamServer

HERE = Path(__file__).parent
SERVER, WORKER, PUSH, PULL = "#c25b4e", "#3b6ea5", "#3b6ea5", "#c25b4e"
CHUNKS = ("#3b6ea5", "#d9903d", "#5a9e6f", "#8c6bb1")


def _node(axes: Axes, x: float, y: float, text: str, colour: str) -> None:
    axes.text(
        x, y, text, ha="center", va="center", color="white", fontsize=11,
        bbox={"boxstyle": "round,pad=0.55", "facecolor": colour, "edgecolor": "none"},
    )  # fmt: skip


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, bend: float = 0.0) -> None:
    axes.annotate(
        "", xy=end, xytext=start,
        arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 2, "connectionstyle": f"arc3,rad={bend}",
                    "shrinkA": 4, "shrinkB": 4},
    )  # fmt: skip


def _axes(width: float, height: float) -> Axes:
    _, axes = plt.subplots(figsize=(width, height), dpi=150)
    axes.axis("off")
    return axes


def param_server() -> None:
    """One server above three workers, gradients up, parameters down."""
    axes = _axes(7, 3.1)
    axes.set(xlim=(0, 7), ylim=(0, 3.1))
    _node(axes, 3.5, 2.6, "server, rank 0:  x", SERVER)
    for k, x in enumerate((1.2, 3.5, 5.8), start=1):
        _node(axes, x, 0.45, f"worker {k}:  shard {k}", WORKER)
        top = 3.5 + (x - 3.5) * 0.35
        _arrow(axes, (x - 0.13, 0.8), (top - 0.13, 2.25), PUSH)
        _arrow(axes, (top + 0.13, 2.25), (x + 0.13, 0.8), PULL)
    axes.text(1.25, 1.75, "1  gradient $g_k$ of\n$n_k$ samples", color=PUSH, ha="center", fontsize=10)
    axes.text(6.15, 1.6, "3  new parameters x", color=PULL, ha="center", fontsize=10)
    axes.text(5.1, 2.6, r"2  x $\leftarrow$ optimizer(x, $\sum n_k g_k / \sum n_k$)", color=SERVER, va="center",
              ha="left", fontsize=8.5)  # fmt: skip
    plt.savefig(HERE / "how_param_server.png", bbox_inches="tight")
    plt.close()


def ring_all_reduce(N: int = 4) -> None:
    """The ring of N ranks; beside it, who holds which partial sum after every step of both halves."""
    axes = _axes(8.7, 5.1)
    axes.set(xlim=(0, 8.7), ylim=(-1.7, 3.4))
    centre, radius = (1.6, 0.9), 1.15
    angles = [math.pi / 2 - 2 * math.pi * r / N for r in range(N)]
    places = [(centre[0] + radius * math.cos(a), centre[1] + radius * math.sin(a)) for a in angles]
    for r in range(N):
        _arrow(
            axes, _towards(places[r], places[(r + 1) % N]), _towards(places[(r + 1) % N], places[r]), "#777777", -0.25
        )
    for r, (x, y) in enumerate(places):
        _node(axes, x, y, f"rank {r}", WORKER)
    axes.text(*centre, "each sends only\nto the right", ha="center", va="center", fontsize=9, color="#555555")

    left, top = 4.0, {"share-reduce": 2.3, "share-only": -0.25}
    for half, y0 in top.items():
        for s in range(N):
            x0 = left + s * 1.2
            step = s if half == "share-reduce" else N - 1 + s
            title = "at first" if step == 0 else f"after step {step}"
            axes.text(x0 + N * _SIZE * 0.37, y0 + 0.47, title, ha="center", fontsize=9)
            _state(axes, x0, y0, N, s, half)
        for r in range(N):
            axes.text(left - 0.1, y0 - r * 0.42 + _SIZE / 2, f"rank {r}", ha="right", va="center", fontsize=9)
        axes.text(left, y0 + 0.73, _HALVES[half], fontsize=8.5, va="center")
    plt.savefig(HERE / "how_ring_all_reduce.png", bbox_inches="tight")
    plt.close()


_SIZE = 0.34
_HALVES = {
    "share-reduce": "Share-reduce: a number counts the ranks summed in that chunk; framed: finished.",
    "share-only": "Share-only: the finished chunks travel round once more and overwrite.",
}


def _state(axes: Axes, x0: float, y0: float, N: int, s: int, half: str) -> None:
    """Draw what the ranks hold after `s` steps of one half: a row a rank, a box a chunk."""
    for r in range(N):
        for c in range(N):
            came = (r - c) % N  # the step in which chunk c comes to rank r, with the sum of those before it
            summed = came + 1 if half == "share-only" or came <= s else 1
            if half == "share-only" and (came + 1) % N <= s:
                summed = N
            done = summed == N
            place = (x0 + c * _SIZE * 0.74, y0 - r * 0.42)
            chunk = plt.Rectangle(
                place, _SIZE * 0.7, _SIZE, facecolor=CHUNKS[c], ec="black" if done else "none", lw=1.4
            )
            chunk.set_alpha(0.18 + 0.82 * (summed - 1) / (N - 1))
            axes.add_patch(chunk)
            axes.text(place[0] + _SIZE * 0.35, place[1] + _SIZE / 2, str(summed), ha="center", va="center",
                      fontsize=7.5, color="white" if summed > 2 else "black")  # fmt: skip


def bottleneck(N: int = 5) -> None:
    """What goes through each rank's link while every worker takes one step, by the strategies' own formulas."""
    figure, grid = plt.subplots(1, 2, figsize=(8.7, 4.4), dpi=150)
    strategies: list[Strategy] = [ParamServer(), RingAllReduce()]
    for axes, strategy in zip(grid, strategies, strict=True):
        axes.set(xlim=(-1.8, 1.8), ylim=(-2.1, 1.7), aspect="equal")
        axes.axis("off")
        sent = {role: closed_form(strategy, one, N, nbytes=1)[1] for role, one in strategy.cost().by_role.items()}
        roles = strategy.roles(N)
        for r, role in enumerate(roles):
            colour = SERVER if role == "server" else WORKER
            angle = math.pi / 2 - 2 * math.pi * r / N
            place = (1.35 * math.cos(angle), 1.35 * math.sin(angle))
            _link(axes, place, sent[role], _received(sent, role, N), colour)
            _node(axes, *place, f"rank {r}", colour)
        axes.text(0, 0, "switch", ha="center", va="center", fontsize=9, color="#333333",
                  bbox={"boxstyle": "round,pad=0.4", "facecolor": "#e6e6e6", "edgecolor": "#999999"})  # fmt: skip
        axes.set_title(f"{strategy.name}, {N} ranks", fontsize=11)
        words = [f"{'the server, rank 0,' if role == 'server' else 'each ' + role} sends {sent[role]:.3g} P"
                 for role in dict.fromkeys(roles)]  # fmt: skip
        axes.text(0, -1.85, "; ".join(words), ha="center", va="center", fontsize=9.5)
    note = "One step. P: bytes of the parameters. Each rank's arrows, out and in, are as wide as the bytes in them."
    figure.text(0.5, 0.02, note, ha="center", fontsize=9, color="#555555")
    figure.subplots_adjust(left=0.01, right=0.99, top=0.93, bottom=0.05, wspace=0.02)
    plt.savefig(HERE / "how_bottleneck.png", bbox_inches="tight")
    plt.close()


def _received(sent: dict[str, float], role: str, N: int) -> float:
    """Return what a rank gets: a server what its workers send, and they what it sends; in a ring all as they send."""
    if "server" not in sent:
        return sent["worker"]
    return (N - 1) * sent["worker"] if role == "server" else sent["server"] / (N - 1)


def _link(axes: Axes, place: tuple[float, float], out: float, into: float, colour: str) -> None:
    """Draw what a rank sends (full) and what it gets (pale), side by side on the way to the middle."""
    per_unit = 62.0  # points to a unit of the axes, about
    length = math.hypot(*place)
    across = (place[1] / length, -place[0] / length)
    for sent, side, outward, alpha in ((out, 1, False, 0.9), (into, -1, True, 0.45)):
        width = _POINTS_FOR_P * sent
        aside = side * (width / 2 + 1.5) / per_unit
        ends = [(x * share + across[0] * aside, y * share + across[1] * aside)
                for share in (0.78, 0.2) for x, y in (place,)]  # fmt: skip
        style = f"simple,tail_width={width},head_width={width + 5},head_length=8"
        first, last = reversed(ends) if outward else ends
        arrow = FancyArrowPatch(first, last, arrowstyle=style, color=colour, alpha=alpha, shrinkA=0, shrinkB=0, lw=0)
        axes.add_patch(arrow)


_POINTS_FOR_P = 6


def _towards(here: tuple[float, float], there: tuple[float, float], share: float = 0.24) -> tuple[float, float]:
    return here[0] + share * (there[0] - here[0]), here[1] + share * (there[1] - here[1])


if __name__ == "__main__":
    param_server()
    ring_all_reduce()
    bottleneck()
