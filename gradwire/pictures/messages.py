"""Match receives with sends: the messages of a run, the chunks and versions of x that they carry."""

from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd

from gradwire.core.records.events import PHASES
from gradwire.core.records.tables import SERVER, applied, dropped

SHARE_REDUCE, SHARE_ONLY = "share-reduce", "share-only"  # the tags of the halves of a ring all-reduce
PARAMETERS = ("initial parameters", "parameters", "difference", "model")  # the tags of a server's messages with x
POSITION = "position"  # the tag of a server's first message to a worker that begins, or that has returned


def with_messages(events: pd.DataFrame, roles: Sequence[str], died: Collection[int] = ()) -> pd.DataFrame:
    """Return the spans of `events` in the order of their start, with three more columns.

    `roles` are those of the ranks; of those that `died` only the events since their return are here. message: the
    number of the message that the event sends, receives or reads; the k-th sent of a tag between two ranks is the k-th
    received. chunk: which one that message carries, of a ring all-reduce. version: of x, what a gradient was computed
    on, or what its server sent. -1 where there is none.
    """
    spans = events[events["phase"].isin(PHASES)].sort_values("t0", kind="stable").reset_index(drop=True)
    incoming = spans["op"].isin(("recv", "read"))
    moved = incoming | (spans["op"] == "send")
    spans["src"] = spans["peer"].where(incoming, spans["rank"])
    spans["dst"] = spans["rank"].where(incoming, spans["peer"])
    spans["read"] = spans["op"] == "read"
    spans["life"] = _lives(spans, died)
    message = ["src", "dst", "tag", "life"]
    spans["k"] = spans.groupby([*message, "op"]).cumcount()
    # Where events are missing, the k-th may be another: then it mostly has another length.
    spans["message"] = spans[moved].groupby([*message, "k", "read", "bytes"]).ngroup().reindex(spans.index).fillna(-1)
    spans["chunk"] = _chunks(spans, moved, len(roles))
    spans["version"] = _versions(spans, moved, [rank for rank, role in enumerate(roles) if role == SERVER])
    return spans.astype({"message": "int64", "chunk": "int64", "version": "int64"})


def _lives(events: pd.DataFrame, dead: Collection[int]) -> pd.Series:
    """Return 1 for the events that belong to the last life of a rank that has died and returned, else 0.

    Where no server has welcomed it, that is only what it recorded itself: whose messages the others got is not known.
    """
    life = pd.Series(0, events.index)
    for k in dead:
        of_peer = events["peer"] == k
        welcomed = events.loc[of_peer & (events["op"] == "send") & (events["tag"] == POSITION), "t0"].max()
        life[(events["rank"] == k) | (of_peer & (events["t0"] >= welcomed))] = 1
    return life


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
        if len(at):  # an update is made with the last gradient of its version; messages sent after it are of the next
            last = at[at["version_applied"] != at["version_applied"].shift(-1)]
            of_x = spans["tag"].isin(PARAMETERS) & (spans["op"] == "send")
            sent = spans.index[of_x & (spans["rank"] == server)]
            made = np.searchsorted(last.index, sent)
            known = last["version_applied"].to_numpy()
            version[sent] = np.where(made == 0, known[0], known[np.maximum(made, 1) - 1] + 1)
        for worker, of_worker in gradients.groupby("peer"):
            came = spans.index[(spans["rank"] == server) & (spans["peer"] == worker) & (spans["op"] == "recv")]
            k = np.searchsorted(came, of_worker.index) - 1  # the gradient that came last is applied or dropped
            version[came[k[k >= 0]]] = of_worker["version_read"].to_numpy()[k >= 0]
    # The two ends of a message have the same; so have its parts to or from several servers; one of these records.
    same = spans.assign(**{end: spans[end].where(~spans[end].isin(serving), -1) for end in ("src", "dst")})[moved]
    group = same.groupby(["src", "dst", "tag", "life", "k", "read"]).ngroup()
    known = version[version >= 0]
    return group.map(known.groupby(group).first()).reindex(spans.index).fillna(-1)


def ring_before(spans: pd.DataFrame, start: float, N: int) -> dict[str, list[int]]:
    """Return, by rank, how many messages of ring all-reduces were sent, added and copied before the time `start`."""
    before = spans[(spans["chunk"] >= 0) & (spans["t1"] < start)]
    ends = {"sent": ("send", SHARE_REDUCE), "added": ("recv", SHARE_REDUCE), "copied": ("recv", SHARE_ONLY)}
    sums = {name: before.loc[(before["op"] == op) & (before["tag"] == tag), "rank"] for name, (op, tag) in ends.items()}
    return {name: np.bincount(ranks, minlength=N).tolist() for name, ranks in sums.items()}
