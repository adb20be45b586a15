"""A run in the trace event format of Chrome."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from records.events import MARKS
from records.messages import with_messages
from records.tables import SERVER


def lane_names(roles: Sequence[str]) -> list[str]:
    """Return what the lane of each rank is called."""
    return [f"rank {rank} ({role})" for rank, role in enumerate(roles)]


def trace(
    events: pd.DataFrame,
    roles: Sequence[str],
    name: str = "run",
    about: Mapping[str, str] | None = None,
    dead: Collection[int] = (),
) -> dict[str, Any]:
    """Return all spans, marks and messages of a run in the JSON object format of Chrome's trace events.

    A thread is a rank (tid), `name` the process, `about` whatever else is to be known; of the `dead`, who may have
    returned, no message of an earlier life has an arrow. In `args`, step counts from 1 and what is unknown is left out,
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
    """Return the first lane in which the slice nests or stands alone; `lanes` hold the ends of what is open in each.

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
