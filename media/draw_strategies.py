"""Draw how the two strategies work: media/how_param_server.png and media/how_ring_all_reduce.png.

python media/draw_strategies.py
"""

import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

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
    """The ring of N ranks; beside it, who holds which partial sum after every step of share-reduce."""
    axes = _axes(8.7, 3.4)
    axes.set(xlim=(0, 8.7), ylim=(0, 3.4))
    centre, radius = (1.6, 1.6), 1.15
    angles = [math.pi / 2 - 2 * math.pi * r / N for r in range(N)]
    places = [(centre[0] + radius * math.cos(a), centre[1] + radius * math.sin(a)) for a in angles]
    for r in range(N):
        _arrow(
            axes, _towards(places[r], places[(r + 1) % N]), _towards(places[(r + 1) % N], places[r]), "#777777", -0.25
        )
    for r, (x, y) in enumerate(places):
        _node(axes, x, y, f"rank {r}", WORKER)
    axes.text(*centre, "each sends only\nto the right", ha="center", va="center", fontsize=9, color="#555555")

    left, size = 4.0, 0.34
    for s in range(N):
        x0 = left + s * 1.2
        title = "at first" if s == 0 else f"after step {s}"
        axes.text(x0 + N * size * 0.37, 2.95, title, ha="center", fontsize=9)
        for r in range(N):
            for c in range(N):
                came = (r - c) % N  # the step in which chunk c comes to rank r, with the sum of those before it
                summed = came + 1 if came <= s else 1
                done = summed == N
                axes.add_patch(
                    plt.Rectangle(
                        (x0 + c * size * 0.74, 2.45 - r * 0.5), size * 0.7, size,
                        facecolor=CHUNKS[c], alpha=0.18 + 0.82 * (summed - 1) / (N - 1), ec="black" if done else "none",
                        lw=1.4,
                    )
                )  # fmt: skip
                axes.text(x0 + c * size * 0.74 + size * 0.35, 2.45 - r * 0.5 + size / 2, str(summed), ha="center",
                          va="center", fontsize=7.5, color="white" if summed > 2 else "black")  # fmt: skip
    for r in range(N):
        axes.text(left - 0.1, 2.45 - r * 0.5 + size / 2, f"rank {r}", ha="right", va="center", fontsize=9)
    axes.text(left, 0.2, "share-reduce: a number counts the ranks summed in that chunk so far;\n"
              "framed: finished. Share-only then sends the framed chunks round once more.", fontsize=8.5,
              va="center")  # fmt: skip
    plt.savefig(HERE / "how_ring_all_reduce.png", bbox_inches="tight")
    plt.close()


def _towards(here: tuple[float, float], there: tuple[float, float], share: float = 0.24) -> tuple[float, float]:
    return here[0] + share * (there[0] - here[0]), here[1] + share * (there[1] - here[1])


if __name__ == "__main__":
    param_server()
    ring_all_reduce()
