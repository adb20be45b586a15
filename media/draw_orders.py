"""Draw all orders of two Hogwild ranks whose updates are a load and a store: python media/draw_orders.py"""

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from experiments import drawing
from gradwire.every_order.invariants import ask, chosen
from gradwire.every_order.problem import LoadsAndStores
from gradwire.every_order.runs import LR, Case, run_once
from gradwire.every_order.scheduler import ACCESS
from gradwire.every_order.search import Orders
from strategies import Hogwild

COLOURS = ("#3b6ea5", "#d08c2e")
CASE = Case(Hogwild(), 2, 1, own_steps=True, optimizer=partial(LoadsAndStores, lr=LR))


def orders() -> dict[tuple[int, ...], bool]:
    """Return, for each order of the accesses (which rank makes each), whether an update is lost in it."""
    found, held = {}, chosen(CASE)
    for run in Orders(partial(run_once, CASE), 1000):
        accesses = tuple(rank for rank, (kind, *_) in run.happened if kind == ACCESS)
        found[accesses] = any(ask(run, held).values())
    return found


def main() -> None:
    """Draw the tree: each order is a path from the left to the right."""
    found = dict(sorted(orders().items()))
    length = len(next(iter(found)))
    heights = {order: float(-i) for i, order in enumerate(found)}
    for depth in reversed(range(length)):  # a node lies in the middle of those behind it
        for node in {order[:depth] for order in found}:
            behind = [heights[(*node, rank)] for rank in (0, 1) if (*node, rank) in heights]
            heights[node] = sum(behind) / len(behind)
    figure, axes = drawing.sheet(6, width=8)
    for node, height in heights.items():
        if node:
            axes.plot([len(node) - 1, len(node)], [heights[node[:-1]], height], color=COLOURS[node[-1]], lw=2, zorder=1)
            access = ("reads", "loads", "stores")[node.count(node[-1]) - 1]
            axes.text(
                len(node) - 0.5, (heights[node[:-1]] + height) / 2, access, fontsize=8, ha="center", va="center",
                color=COLOURS[node[-1]], bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
            )  # fmt: skip
    for lost, mark, says in ((False, "o", "both updates are in x"), (True, "X", "one update is lost")):
        ends = [heights[order] for order, is_lost in found.items() if is_lost == lost]
        colour = "#b3261e" if lost else "#2a7d46"
        label = f"{says}: {len(ends)} of {len(found)} orders"
        axes.scatter([length] * len(ends), ends, marker=mark, s=45, color=colour, zorder=2, label=label)
    for rank, colour in enumerate(COLOURS):
        axes.plot([], [], color=colour, lw=2, label=f"access by rank {rank}")
    axes.set(xlabel="accesses to x, one after the other", yticks=[], xlim=(-0.1, length + 0.2),
             title="Two ranks, one step each: all orders in which they read, load and store x")  # fmt: skip
    axes.spines[["left", "top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    drawing.save(figure, Path(__file__).with_name("orders.png"), 130)


if __name__ == "__main__":
    main()
