"""Draw the ring all-reduce from the recorded events of a real run of 4 processes: media/ring_all_reduce.gif.

`experiments/run.py` records it, `experiments/report.py` has it drawn. Nothing of the algorithm is computed here: which
chunk a message carried, its value, and what became of it at the receiver are read from the trace.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from PIL import Image

from gradwire import launch
from gradwire.core.records.atomic import AnyPath, write_atomically
from gradwire.core.records.errors import UsageError, as_usage_error
from gradwire.core.records.observer import Observer
from gradwire.core.records.recorder import Recorder
from gradwire.core.transports.base import Transport
from strategies.collectives import ring_all_reduce

N = 4  # ranks, and chunks of one element each
VALUES = [f"v{chunk}" for chunk in range(N)]
TYPES = {
    "rank": "int64", "t0_us": "float64", "t1_us": "float64", "phase": "str", "op": "str", "peer": "int64",
    "tag": "str", "bytes": "int64", **dict.fromkeys(VALUES, "float64"),
}  # fmt: skip
RULES = {"share-reduce": "add what comes in", "share-only": "take over what comes in"}
Hop = Any  # a row of the messages that `load` returns
WARM_UP = 20  # exchanges of another vector before the recorded one: the first ones touch pages and wake threads

WIDTH, HEIGHT, SCALE = 800, 600, 1.25  # of the canvas, in points of the drawing; pixels to a point
PLACES = ((400, 520), (676, 312), (400, 104), (124, 312))  # of the ranks: clockwise
SIDES = (1, -1, -1, 1)  # where a rank's title is, 1 above its cells or -1 below: messages come in on the other side
CELL = np.array((48, 40))
CHUNKS = ("#3b6ea5", "#d9903d", "#5a9e6f", "#8c6bb1")
INK, GREY, LINE = "#222222", "#666666", "#c4c4c0"
MOVING_MS, PAUSE_MS, RESULT_MS, CHAPTER_MS, END_MS = 80, 500, 1000, 2500, 5000


def _exchange(transport: Transport) -> pd.DataFrame:
    """Take part in the exchange as one rank; return its events with the values after each."""
    vector, other = transport.allocate(N), transport.allocate(N)
    vector.fill_(10 * (transport.rank + 1))
    for _ in range(WARM_UP):
        ring_all_reduce(other, transport)
    transport.barrier()
    transport.recorder = recorder = Recorder(transport.rank)
    values: list[torch.Tensor] = []

    class Values(Observer):
        def span(self, *_: object) -> None:
            values.append(vector.clone())

    recorder.observers.append(Values())
    recorder.add("wait", now := transport.now(), now, tag="start")  # of no length: only to have the values at first
    ring_all_reduce(vector, transport)
    return recorder.frame().assign(**dict(zip(VALUES, torch.stack(values).T.numpy(), strict=True)))


def record(path: AnyPath) -> None:
    """Run one ring all-reduce on 4 processes and write its trace to `path`: a CSV, a row per event, in order per rank.

    Rank r starts with 10 (r + 1) in each of 4 elements. Times are microseconds since the first rank started; v0 to v3
    are the rank's vector right after the event, "start" its first row. Raises RunFailed, OSError.
    """
    events = pd.concat(launch(_exchange, N))
    start = events["t0"].min()
    for name in ("t0", "t1"):
        events[f"{name}_us"] = ((events[name] - start) * 1e6).round(3)
    with write_atomically(path) as temporary:
        events[list(TYPES)].to_csv(temporary, index=False)


def load(path: AnyPath) -> tuple[np.ndarray, pd.DataFrame]:
    """Return the values at first [rank, chunk], and the messages, step by step in the order of their receipt.

    A message: src sent the `value` of `chunk` in `bytes`, and dst then held `after`, at `received_us`; it was the k-th
    of its tag between the two. Raises OSError if the file cannot be read, UsageError if it is not such a trace.
    """
    with as_usage_error(f"{path}: not a trace", kinds=(ValueError, KeyError)):
        trace = pd.read_csv(path, dtype=TYPES, na_filter=False)[list(TYPES)]
    ranks = trace.groupby("rank")[VALUES]
    changed = trace[VALUES] != ranks.shift().fillna(trace[VALUES])  # by a receipt one element, by all else none
    trace["chunk"] = changed.to_numpy().argmax(axis=1)
    trace["value"] = trace[VALUES].to_numpy()[np.arange(len(trace)), trace["chunk"]]
    trace["k"] = trace.groupby(["rank", "op", "peer", "tag"]).cumcount()  # of one peer and tag, they arrive in order
    sends = trace[trace["op"] == "send"].rename(columns={"rank": "src", "peer": "dst"})
    receipts = trace[trace["op"] == "recv"].rename(columns={"peer": "src", "rank": "dst", "t1_us": "received_us"})
    hops = receipts.rename(columns={"value": "after"}).drop(columns=VALUES)
    hops = hops.merge(sends[["src", "dst", "tag", "k", *VALUES]], on=["src", "dst", "tag", "k"])
    steps = hops.groupby(["tag", "k"])
    whole = len(hops) == len(receipts) == len(sends) == 2 * N * (N - 1) and steps.ngroups == 2 * (N - 1)
    if not whole or (changed.sum(axis=1) != (trace["op"] == "recv")).any() or ranks.last().nunique().max() > 1:
        raise UsageError(f"{path}: damaged: not the trace of one whole ring all-reduce of {N} ranks")
    hops["value"] = hops[VALUES].to_numpy()[np.arange(len(hops)), hops["chunk"]]
    hops["step"] = steps["received_us"].transform("min")
    columns = ["src", "dst", "tag", "k", "chunk", "value", "after", "bytes", "received_us"]
    return ranks.first().to_numpy(), hops.sort_values(["step", "received_us"])[columns].reset_index(drop=True)


class Scene:
    """What the ranks hold and have sent at one moment of a recording, drawn on one canvas."""

    def __init__(self, first: np.ndarray, hops: pd.DataFrame) -> None:
        self.values = first  # [rank, chunk]
        self.sent: list[list[int]] = [[] for _ in range(N)]  # the bytes of each rank's messages
        self.final = dict(zip(hops["chunk"], hops["after"], strict=True))  # what the recording ends with
        self.arrows = set(zip(hops["src"], hops["dst"], strict=True))
        self.canvas = FigureCanvasAgg(Figure(figsize=(WIDTH / 72, HEIGHT / 72), dpi=72 * SCALE))
        self.axes = self.canvas.figure.add_axes((0, 0, 1, 1))

    def draw(
        self, caption: Sequence[str], flying: Sequence[tuple[Hop, np.ndarray]] = (), landed: Sequence[Hop] = (),
        sign: str = "",
    ) -> Image.Image:  # fmt: skip
        """Return the picture, with the `flying` messages at their places and the cells just `landed` on framed."""
        self.axes.clear()
        self.axes.set(xlim=(0, WIDTH), ylim=(0, HEIGHT))
        self.axes.axis("off")
        panels = [self._box(place, (220, 82), fc="white", ec=LINE, lw=2) for place in PLACES]
        for src, dst in self.arrows:
            arrow = FancyArrowPatch(
                PLACES[src], PLACES[dst], patchA=panels[src], patchB=panels[dst], shrinkA=4, shrinkB=4,
                connectionstyle="arc3,rad=-0.4", arrowstyle="-|>", mutation_scale=28, lw=4, color=LINE,
            )  # fmt: skip
            self.axes.add_patch(arrow)
        for rank, (x, y) in enumerate(PLACES):
            y += 27 * SIDES[rank]
            self._text(x - 101, y, f"rank {rank}", 17, ha="left", weight="bold")
            self._text(x + 101, y, f"sent {sum(self.sent[rank])} bytes", 16, ha="right", color=GREY)
            for chunk in range(N):
                fresh = any((hop.dst, hop.chunk) == (rank, chunk) for hop in landed)
                self._cell(_cell_at(rank, chunk), chunk, self.values[rank, chunk], fresh)
        for hop, at in flying:
            self._box(at - (-1, 3), CELL, fc=LINE, ec="none", zorder=4)  # its shadow
            self._cell(at, hop.chunk, hop.value, True, sign, zorder=5)
        self._text(400, 356, caption[0], 27, weight="bold")
        for line, text in enumerate(caption[1:]):
            self._text(400, 322 - 27 * line, text, 18, color=INK if line == 0 else GREY)
        self._text(400, 18, f"recorded run of {N} processes; steps drawn one after another", 15, color=GREY)
        self.canvas.draw()
        return Image.fromarray(np.asarray(self.canvas.buffer_rgba())).convert("RGB")

    def _cell(self, at: np.ndarray, chunk: int, value: float, framed: bool, sign: str = "", zorder: int = 3) -> None:
        final = self.final[chunk]
        shade = 0.12 + 0.88 * min(1, abs(value / final))  # the fuller the sum, the fuller the colour
        colour = [1 - shade * (1 - part) for part in to_rgb(CHUNKS[chunk])]
        edge = INK if value == final else CHUNKS[chunk] if framed else "none"
        self._box(at, CELL, fc=colour, ec=edge, lw=3.5 if framed else 2.5, zorder=zorder)
        ink = "white" if shade > 0.6 else INK
        self._text(at[0], at[1], f"{sign}{value:g}", 19, weight="bold", color=ink, zorder=zorder)

    def _box(self, at: Sequence[float] | np.ndarray, size: Sequence[float] | np.ndarray, **look: Any) -> FancyBboxPatch:
        (x, y), (width, height) = at, size
        corner = (x - width / 2, y - height / 2)
        patch = FancyBboxPatch(corner, width, height, boxstyle="round,pad=0,rounding_size=7", **look)
        self.axes.add_patch(patch)
        return patch

    def _text(self, x: float, y: float, text: str, size: float, ha: str = "center", **look: Any) -> None:
        self.axes.text(x, y, text, fontsize=size, ha=ha, va="center_baseline", **{"color": INK, "zorder": 3, **look})


def _cell_at(rank: int, chunk: int) -> np.ndarray:
    """Return the centre (x, y) of a cell."""
    x, y = PLACES[rank]
    return np.array((x + (chunk - (N - 1) / 2) * (CELL[0] + 4), y - 13 * SIDES[rank]))


def _on_the_way(hop: Hop, share: float) -> np.ndarray:
    """Return where (x, y) a message is after a share (0 to 1) of its way, which ends beside the cell it is for."""
    start, end = _cell_at(hop.src, hop.chunk), _cell_at(hop.dst, hop.chunk)
    end = end - (0, SIDES[hop.dst] * (CELL[1] + 6))
    height = 0.68 * max(start[1], end[1], key=lambda y: abs(y - HEIGHT / 2)) + 0.32 * HEIGHT / 2  # round the caption
    t = share * share * (3 - 2 * share)  # slow at both ends
    weights = ((1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t**2, t**3)
    return np.array(weights) @ np.array((start, (start[0], height), (end[0], height), end))


def frames(trace_path: AnyPath, between: int) -> Iterator[tuple[Image.Image, int]]:
    """Yield the pictures of a trace and how long each stands (ms). Raises OSError, UsageError."""
    first, hops = load(trace_path)
    scene = Scene(first, hops)
    start = ("ring all-reduce", f"{N} ranks, {N} chunks on each", "all ranks want the sums;", "each sends to the right")
    yield scene.draw(start), CHAPTER_MS
    for (tag, k), rows in hops.groupby(["tag", "k"], sort=False):
        step = list(rows.itertuples())
        of_phase = hops[hops["tag"] == tag]["k"].max() + 1
        caption = [tag, f"step {k + 1} of {of_phase}", RULES[tag]]
        sign = "+" if tag == "share-reduce" else ""
        for hop in step:
            scene.sent[hop.src].append(hop.bytes)
        for i in range(between + 1):
            flying = [(hop, _on_the_way(hop, i / between)) for hop in step]
            yield scene.draw(caption, flying), MOVING_MS if i else PAUSE_MS
        yield scene.draw(caption, flying, sign=sign), PAUSE_MS
        for nearer in (0.4, 0.8):
            landing = [(hop, at + nearer * (_cell_at(hop.dst, hop.chunk) - at)) for hop, at in flying]
            yield scene.draw(caption, landing, sign=sign), MOVING_MS
        for hop in step:
            scene.values[hop.dst, hop.chunk] = hop.after
        caption.append(f"all received after {rows['received_us'].max():,.0f} µs")
        yield scene.draw(caption, landed=step), RESULT_MS
        if tag == "share-reduce" and k + 1 == of_phase:
            yield scene.draw((tag, "done", "framed: finished sums;", "now these go round")), CHAPTER_MS
    held = {", ".join(f"{value:g}" for value in row) for row in scene.values}
    sent = {(f"each sent {len(sent)} messages,", f"{len(sent)} x {sent[0]} bytes:") for sent in scene.sent}
    yield scene.draw(("every rank holds", *held, *chain(*sent), "2 (N - 1)/N of the vector")), END_MS


def animate(trace_path: AnyPath, gif_path: AnyPath, between: int = 9) -> None:
    """Draw a trace as a looping GIF, a message's way in `between` moves. Raises OSError, UsageError."""
    pictures, milliseconds = zip(*frames(trace_path, between), strict=True)
    some = pictures[:: 1 + len(pictures) // 12] + pictures[-1:]
    sheet = Image.fromarray(np.concatenate([np.asarray(picture) for picture in some]))
    palette = sheet.quantize(256, Image.Quantize.MAXCOVERAGE)  # one for all, so that nothing flickers
    first, *rest = (picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures)
    with write_atomically(gif_path) as path:
        first.save(path, "GIF", save_all=True, append_images=rest, duration=milliseconds, loop=0, optimize=True)
