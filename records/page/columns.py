"""The events of a run as columns of numbers, which a page holds compressed and reads without parsing them."""

import base64
import gzip
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from records.events import OPS, PHASES
from records.lives import lives
from records.tables import SERVER, applied, dropped

SHARE_REDUCE, SHARE_ONLY = "share-reduce", "share-only"  # the tags of the halves of a ring all-reduce
PARAMETERS = ("initial parameters", "parameters", "difference", "model")  # the tags of what a server sends of x
TYPES = {
    "t0": "<f8", "t1": "<f8", "bytes": "<f8",
    "message": "<i4", "version": "<i4", "version_read": "<i4", "version_applied": "<i4", "step": "<i4", "peer": "<i4",
    "epoch": "<i4", "chunk": "<i4", "line": "<u2", "tag": "<u2", "rank": "<u2", "phase": "<u1", "op": "<u1",
}  # fmt: skip
"""The columns of a page, the widest first, so that each begins where its type may lie."""


def with_messages(events: pd.DataFrame, roles: Sequence[str], died: Collection[int] = ()) -> pd.DataFrame:
    """Return the spans of `events` in the order of their start, with three more columns.

    `roles` are those of the ranks; of those that `died` only the events since their return are here. message: the
    number of the message that the event sends, receives or reads; the k-th sent of a tag between two ranks is the k-th
    received. chunk: which one that message carries, of a ring all-reduce. version: of x, what a gradient was computed
    on, or what its server sent. -1 where there is none.
    """
    spans = events[events["phase"].isin(PHASES)].sort_values("t0", kind="stable").reset_index(drop=True)
    received = spans["op"] == "recv"
    spans["src"] = spans["peer"].where(received | (spans["op"] == "read"), spans["rank"])
    spans["dst"] = spans["rank"].where(received | (spans["op"] == "read"), spans["peer"])
    moved = spans["op"].isin(("send", "recv", "read"))
    spans["read"] = spans["op"] == "read"
    spans["life"] = lives(spans, died)
    message = ["src", "dst", "tag", "life"]
    spans["k"] = spans.groupby([*message, "op"]).cumcount()
    # Where events are missing, the k-th may be another: then it mostly has another length.
    spans["message"] = spans[moved].groupby([*message, "k", "read", "bytes"]).ngroup().reindex(spans.index).fillna(-1)
    spans["chunk"] = _chunks(spans, moved, len(roles))
    spans["version"] = _versions(spans, moved, [rank for rank, role in enumerate(roles) if role == SERVER])
    return spans.astype({"message": "int64", "chunk": "int64", "version": "int64"})


def _chunks(spans: pd.DataFrame, moved: pd.Series, N: int) -> pd.Series:
    """Return the chunk that each message of a ring all-reduce carries.

    In step s of share-reduce rank r sends chunk (r - s) mod N, in step s of share-only chunk (r + 1 - s) mod N.
    """
    chunk = pd.Series(-1, index=spans.index)
    ring = moved & spans["tag"].isin((SHARE_REDUCE, SHARE_ONLY))
    src, s = spans.loc[ring, "src"], spans.loc[ring, "k"] % max(1, N - 1)
    if (spans.loc[ring, "dst"] == (src + 1) % N).all():
        chunk[ring] = (src + (spans.loc[ring, "tag"] == SHARE_ONLY) - s) % N
    return chunk


def _versions(spans: pd.DataFrame, moved: pd.Series, serving: Sequence[int]) -> pd.Series:
    """Return the version of x that each message belongs to."""
    version = pd.Series(-1, index=spans.index)
    used = pd.concat([applied(spans), dropped(spans)]).sort_index()
    for server, gradients in used.groupby("rank"):
        at = applied(gradients)
        if len(at):  # an update is made with the last gradient of its version; what is sent then is of the next
            last = at[at["version_applied"] != at["version_applied"].shift(-1)]
            of_x = spans["tag"].isin(PARAMETERS) & (spans["op"] == "send")
            sent = spans.index[of_x & (spans["rank"] == server)]
            made = np.searchsorted(last.index, sent)
            known = last["version_applied"].to_numpy()
            version[sent] = np.where(made == 0, known[0], known[np.maximum(made, 1) - 1] + 1)
        for worker, of_worker in gradients.groupby("peer"):
            came = spans.index[(spans["rank"] == server) & (spans["peer"] == worker) & (spans["op"] == "recv")]
            k = np.searchsorted(came, of_worker.index) - 1  # the last that came is what is applied or dropped
            version[came[k[k >= 0]]] = of_worker["version_read"].to_numpy()[k >= 0]
    # The two ends of a message have the same; so have its parts to or from several servers, of which one records.
    same = spans.assign(**{end: spans[end].where(~spans[end].isin(serving), -1) for end in ("src", "dst")})[moved]
    group = same.groupby(["src", "dst", "tag", "life", "k", "read"]).ngroup()
    known = version[version >= 0]
    return group.map(known.groupby(group).first()).reindex(spans.index).fillna(-1)


def ring_before(spans: pd.DataFrame, start: float, N: int) -> dict[str, list[int]]:
    """Return, by rank, how many messages of ring all-reduces were sent, added and copied before the time `start`."""
    before = spans[(spans["chunk"] >= 0) & (spans["t1"] < start)]
    ends = {"sent": ("send", SHARE_REDUCE), "added": ("recv", SHARE_REDUCE), "copied": ("recv", SHARE_ONLY)}
    counts = {}
    for name, (op, tag) in ends.items():
        ranks = before.loc[(before["op"] == op) & (before["tag"] == tag), "rank"]
        counts[name] = np.bincount(ranks, minlength=N).tolist()
    return counts


def encode(spans: pd.DataFrame) -> dict[str, Any]:
    """Return the columns of TYPES as text, for JSON, with the names that the numbers of tags and lines stand for."""
    tags, lines = pd.Index(spans["tag"].unique()), pd.Index(spans["line"].unique())
    message = spans["message"].where(spans["message"] < 0, pd.factorize(spans["message"])[0])
    numbers: Mapping[str, Any] = {
        **{name: spans[name] for name in TYPES if name in spans},
        "message": message,
        "phase": spans["phase"].map({phase: code for code, phase in enumerate(PHASES)}),
        "op": spans["op"].map({op: code for code, op in enumerate(OPS)}),
        "tag": tags.get_indexer(spans["tag"]),
        "line": lines.get_indexer(spans["line"]),
    }
    raw = b"".join(np.asarray(numbers[name]).astype(kind).tobytes() for name, kind in TYPES.items())
    packed = base64.b64encode(gzip.compress(raw, 6, mtime=0)).decode("ascii")
    return {"n": len(spans), "types": TYPES, "tags": list(tags), "lines": list(lines), "packed": packed}
