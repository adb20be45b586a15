"""Draw who did what when in a finished run: `python -m gradwire timeline RESULTS_DIR/RUN_NAME`.

Writes a picture of a few steps, RUN_NAME.timeline.png (white is time that belongs to no phase), and the whole run as
RUN_NAME.trace.json, in the trace event format of Chrome, for https://ui.perfetto.dev and chrome://tracing.
"""

import json
import math
import textwrap
from argparse import Namespace
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gradwire.core.records.events import MARKS, PHASES
from gradwire.core.records.tables import SERVER, applied
from gradwire.pictures.finished import RUN, BadRun, Recorded, Settings, command, load, writing
from gradwire.pictures.messages import with_messages
from gradwire.results import TRACE_SUFFIX, worker_spans

# The colours of Okabe and Ito, which the colour-blind can distinguish; pale: a rank is blocked.
COLOURS = {
    "data": "#000000", "forward": "#56b4e9", "backward": "#0072b2", "compress": "#cc79a7", "communicate": "#d55e00",
    "wait": "#e6e6e6", "update": "#009e73",
}  # fmt: skip
_LABEL_POINTS = 7


def middle(events: pd.DataFrame, roles: Sequence[str], n_steps: int) -> int:
    """Return the first (counted from 1) of `n_steps` steps in the middle of the run's middle epoch.

    Inside an epoch, because between two lies an evaluation, in which nothing is recorded.
    """
    spans = worker_spans(events, roles)
    epochs = spans.groupby("epoch")["step"].agg(["min", "max"])
    start, last = map(int, epochs.iloc[len(epochs) // 2])
    first = start + 1 + max(0, (last + 1 - start - n_steps) // 2)
    return max(1, min(first, int(spans["step"].max()) + 2 - n_steps))


def window(events: pd.DataFrame, roles: Sequence[str], first_step: int, n_steps: int) -> tuple[float, float]:
    """Return when (seconds) the first worker began step `first_step` and the last one ended the last of `n_steps`.

    Steps count from 1, over all epochs. Raises BadRun if the run does not have these steps.
    """
    spans = worker_spans(events, roles)
    steps = spans["step"] + 1
    if n_steps < 1 or not {first_step, first_step + n_steps - 1} <= set(steps):
        has = f"the run has the steps {steps.min()} to {steps.max()}; ask for one or more of these"
        raise BadRun(f"--step {first_step} --steps {n_steps}: {has}")
    inside = spans[steps.between(first_step, first_step + n_steps - 1)]
    return float(inside["t0"].min()), float(inside["t1"].max())


def draw(axes: Axes, events: pd.DataFrame, roles: Sequence[str], first_step: int, n_steps: int) -> set[str]:
    """Draw what all ranks did in `n_steps` steps from `first_step` (from 1) on; return the phases that occur.

    One lane a rank, milliseconds from the window's start on the x axis, a line where the first worker begins a step;
    in a wait stands the rank that was waited for. If there were stale gradients, the server's lane says of each which
    version of x it was computed on and which it was applied to. Raises BadRun if the run does not have these steps.
    """
    # By time, because the events of a server do not carry the workers' steps.
    start, stop = window(events, roles, first_step, n_steps)
    total = 1e3 * (stop - start) or 1.0
    spans = events[events["phase"].isin(PHASES) & (events["t1"] >= start) & (events["t0"] <= stop)]
    t0 = 1e3 * (spans["t0"].clip(lower=start) - start)
    spans = spans.assign(t0=t0, ms=1e3 * (spans["t1"].clip(upper=stop) - start) - t0)
    spans = spans.sort_values("ms", ascending=False, kind="stable")  # short ones on top
    for rank, lane in spans.groupby("rank"):
        colours = [COLOURS[phase] for phase in lane["phase"]]
        bars = list(zip(lane["t0"], lane["ms"], strict=True))
        # The edge makes a span of microseconds a pixel wide.
        axes.broken_barh(bars, (rank - 0.4, 0.8), facecolor=colours, edgecolor=colours, linewidth=0.4)
    points_per_ms = axes.bbox.width / axes.figure.dpi * 72 / total
    shown = events[events["t0"].between(start, stop - 0.02 * (stop - start))]  # at the edge a label would be cut
    labelled = _label_versions(axes, shown, roles, start) if has_stale(events) else set()
    for wait in spans[(spans["phase"] == "wait") & (spans["peer"] >= 0) & ~spans["rank"].isin(labelled)].itertuples():
        place = (wait.t0 + wait.ms / 2, wait.rank)
        for text in (f"← {wait.peer}", str(wait.peer)):  # the longest that has room
            if wait.ms * points_per_ms > 0.75 * _LABEL_POINTS * len(text):
                axes.text(*place, text, ha="center", va="center", fontsize=_LABEL_POINTS, color="#333333")
                break
    begins = worker_spans(events, roles).query("rank == rank.min()").groupby("step")["t0"].min()
    begins = 1e3 * (begins.loc[first_step - 1 : first_step + n_steps - 2] - start)
    every = math.ceil(n_steps / 8)
    names = [f"step {step + 1}" if i % every == 0 else "" for i, step in enumerate(begins.index)]
    axes.vlines(begins, -0.5, len(roles) - 0.5, color="black", linewidth=0.7, linestyle=":")
    top = axes.secondary_xaxis("top")
    top.set_xticks(begins, names, fontsize=8)
    axes.set(xlim=(0, total), ylim=(len(roles) - 0.5, -0.5))
    axes.set_xlabel("time (ms)", fontsize=8)
    axes.set_yticks(range(len(roles)), lane_names(roles))
    axes.tick_params(labelsize=8)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    top.spines["top"].set_visible(False)
    return set(spans["phase"])


def _label_versions(axes: Axes, events: pd.DataFrame, roles: Sequence[str], start: float) -> set[int]:
    """Write "read→applied" where a gradient was applied, each worker's at a height of its own, the first on top.

    Returns the ranks that applied them.
    """
    gradients = applied(events)
    workers = [rank for rank, role in enumerate(roles) if role != SERVER]
    box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none"}
    for gradient in gradients.itertuples():
        height = (workers.index(gradient.peer) + 0.5) / len(workers) - 0.5
        axes.text(
            1e3 * (gradient.t0 - start), gradient.rank + 0.95 * height,
            f"{gradient.version_read}→{gradient.version_applied}", ha="center", va="center", fontsize=6.5, bbox=box,
            clip_on=True,
        )  # fmt: skip
    return set(gradients["rank"])


def has_stale(events: pd.DataFrame) -> bool:
    """Return whether some gradient was applied to another version of x than it was computed on."""
    return bool((applied(events)["staleness"] > 0).any())


def legend(figure: Figure, phases: Collection[str] = PHASES, versions: bool = False) -> None:
    """Explain the colours of `phases` below all that is in `figure`, which must have layout="constrained".

    `versions`: also explain the numbers at the gradients.
    """
    about = "3→5 on the server's lane: computed on version 3 of the parameters, applied to version 5; worker 1 on top"
    names = {"wait": "wait (← for rank)"}
    patches = [Patch(color=COLOURS[phase], label=names.get(phase, phase)) for phase in PHASES if phase in phases]
    figure.legend(
        handles=patches, loc="outside lower center", ncols=7, frameon=False, fontsize=7.5,
        title=about if versions else None, title_fontsize=7.5, handlelength=1.2, handletextpad=0.5, columnspacing=1.0,
    )  # fmt: skip


def picture(run: Recorded, first_step: int, n_steps: int) -> Figure:
    """Return `draw` of a run with title and legend, 900 pixels wide. Raises BadRun."""
    # Not of pyplot, which would choose a backend for the whole process.
    figure = Figure(figsize=(6, 1.3 + 0.4 * len(run.roles)), dpi=150, layout="constrained")
    legend(figure, draw(figure.subplots(), run.events, run.roles, first_step, n_steps), has_stale(run.events))
    steps = f"step {first_step}" if n_steps == 1 else f"steps {first_step} to {first_step + n_steps - 1}"
    of_all = run.steps["step"].max() + 1
    figure.suptitle(textwrap.fill(f"{run.about}, {steps} of {of_all}", 90), fontsize=9, parse_math=False)
    return figure


def lane_names(roles: Sequence[str]) -> list[str]:
    """Return the name of each rank's lane."""
    return [f"rank {rank} ({role})" for rank, role in enumerate(roles)]


def trace(
    events: pd.DataFrame,
    roles: Sequence[str],
    name: str = "run",
    about: Mapping[str, str] | None = None,
    dead: Collection[int] = (),
) -> dict[str, Any]:
    """Return all spans, marks and messages of a run in the JSON object format of Chrome's trace events.

    A thread is a rank (tid), `name` the process, `about` other facts; a rank of the `dead` may have returned, and
    no message of an earlier life has an arrow. In `args`, step counts from 1 and what is unknown is left out,
    as are messages counted by formula: their times are unknown.
    """
    # In eighths of a microsecond, which floats hold exactly: then no rounding, here or in a viewer, makes a slice
    # reach out of the one around it. That one comes first, as viewers want it.
    known = pd.concat([with_messages(events, roles, dead), events[events["phase"].isin(MARKS)]])
    known = known.assign(**{t: (known[t] * 8e6).round().astype("int64") for t in ("t0", "t1")})
    slices: list[dict[str, Any]] = []
    lanes: dict[int, list[list[int]]] = {rank: [[]] for rank in range(len(roles))}
    sent: dict[int, dict[str, Any]] = {}
    received: dict[int, tuple[str, dict[str, Any]]] = {}
    for event in known.sort_values(["t0", "t1"], ascending=[True, False], kind="stable").itertuples():
        place = {"pid": 1, "tid": event.rank, "ts": event.t0 / 8}
        args = {"epoch": event.epoch}
        if event.phase in MARKS:
            args |= {"step": event.step, "value": event.value if math.isfinite(event.value) else None}
            slices.append({"ph": "i", "s": "t", "name": event.phase, "cat": "mark", **place, "args": args})
            continue
        place["tid"] += len(roles) * _lane(lanes[event.rank], event.t0, event.t1)
        if event.epoch > 0 and roles[event.rank] != SERVER:  # the start is no step; a server knows none
            args["step"] = event.step + 1
        moved = ["bytes"] if event.op not in ("", "drop") else []
        fields = ("peer", "tag", "version_read", "version_applied", *moved)
        args |= {field: getattr(event, field) for field in fields if getattr(event, field) not in (-1, "")}
        what = {"name": event.phase, "cat": event.op or event.phase}
        slices.append({"ph": "X", **what, **place, "dur": (event.t1 - event.t0) / 8, "args": args})
        if event.op == "send":
            sent[event.message] = place
        elif event.op == "recv":
            received[event.message] = event.tag, place
    named: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": name}}]
    for rank, lane_name in enumerate(lane_names(roles)):
        for lane in range(len(lanes[rank])):
            thread = {"ph": "M", "pid": 1, "tid": rank + lane * len(roles)}
            lane_name += ", at the same time" if lane == 1 else ""
            named.append({**thread, "name": "thread_name", "args": {"name": lane_name}})
            named.append({**thread, "name": "thread_sort_index", "args": {"sort_index": 100 * rank + lane}})
    flows: list[dict[str, Any]] = []
    for message, (tag, end) in received.items():
        if message in sent:
            arrow = {"name": tag or "message", "cat": "message", "id": len(flows) // 2 + 1}
            flows += [{"ph": "s", **arrow, **sent[message]}, {"ph": "f", "bp": "e", **arrow, **end}]
    return {"traceEvents": [*named, *slices, *flows], "displayTimeUnit": "ms", "otherData": dict(about or {})}


def _lane(lanes: list[list[int]], start: int, end: int) -> int:
    """Return the first lane in which the slice nests or stands alone; `lanes` hold the ends of the open slices in each.

    A rank that holds two messages and releases first the one that came first has slices that overlap without nesting.
    """
    for lane, open_ends in enumerate(lanes):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if not open_ends or end <= open_ends[-1]:
            open_ends.append(end)
            return lane
    lanes.append([end])
    return len(lanes) - 1


def _write(given: Namespace) -> str:
    run = load(given.run)
    first = middle(run.events, run.roles, given.steps) if given.step is None else given.step
    figure = picture(run, first, given.steps)
    about = {key: str(run.metadata.get(key)) for key in ("strategy", "n_gpus", "transport", "bytes", "options")}
    text = json.dumps(trace(run.events, run.roles, run.about, about, run.died), allow_nan=False)
    picture_path, trace_path = f"{run.path}.timeline.png", run.path + TRACE_SUFFIX
    with writing([picture_path, trace_path], "copy the run to a writable folder") as (png, chrome):
        figure.savefig(png)
        chrome.write_text(text, encoding="utf-8")
    opened = "(open it at https://ui.perfetto.dev or in chrome://tracing)"
    return f"picture        {picture_path}\ntrace          {trace_path} {opened}"


_STEPS: Settings = {
    "--step": {"type": int, "help": "first step in the picture, from 1 (default: in the middle)"},
    "--steps": {"type": int, "default": 2, "help": "how many steps in the picture (default: %(default)s)"},
}
main = command("timeline", "Draw who did what when in a finished run.", RUN | _STEPS, _write)
