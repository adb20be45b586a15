"""The tables and the end-of-run summary that are made from the events of a run."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import pandas as pd

from gradwire.core.records.events import CODE_MARKS, EVALUATE, HIDDEN, MARKS, METERS, PHASES, SCORE, Events, chunks

SERVER = "server"  # the role of a rank that trains no samples of its own; every other rank counts as a worker
PHASE_COLUMNS = tuple(f"{phase}_s" for phase in PHASES)
MESSAGE_COLUMNS = ("bytes_sent", "bytes_received", "messages_sent")
EVALUATE_BYTES = "evaluate_bytes"
VERSION_COLUMNS = ("dropped", "staleness_mean", "staleness_max")
COLUMNS = {
    "strategy": "str",
    "n_gpus": "int64",
    "rank": "int64",
    "role": "str",
    "epoch": "int64",
    "step": "int64",
    "samples": "Int64",
    **dict.fromkeys(("train_loss", "test_loss", "test_accuracy", "epoch_s", *PHASE_COLUMNS), "float64"),
    **dict.fromkeys((*MESSAGE_COLUMNS, "dropped"), "Int64"),
    **dict.fromkeys(("staleness_mean", "staleness_max"), "float64"),
    **dict.fromkeys(CODE_MARKS, "Int64"),
    **dict.fromkeys(METERS, "float64"),
    EVALUATE_BYTES: "Int64",
}
_KEYS = ["epoch", "rank"]
_LAST, _MOST = tuple(mark for mark in MARKS if mark != SCORE), ("step", "staleness_max")
WIDTH = 100
_MOST_RANKS_SHOWN = 16


def columns_with(names: Iterable[str]) -> dict[str, str]:
    """Return COLUMNS, and among them those of `names` that are of other scores: test_NAME."""
    others = [name for name in names if _is_score(name) and name not in COLUMNS]
    known, at = list(COLUMNS), list(COLUMNS).index("test_accuracy") + 1
    return {name: COLUMNS.get(name, "float64") for name in (*known[:at], *others, *known[at:])}


def _is_score(name: str) -> bool:
    return name.startswith("test_") and name != "test_loss"


def scores(table: pd.DataFrame) -> list[str]:
    """Return the columns of held-out scores that an epoch table has: test_loss if it is all that was measured."""
    found = [name for name in table if _is_score(name) and table[name].notna().any()]
    return found or ["test_loss" if table["test_loss"].notna().any() else "test_accuracy"]


def epoch_table(events: Events, strategy: str, n_gpus: int, roles: Sequence[str]) -> pd.DataFrame:
    """Return one row per (epoch, rank) that has marks, sorted, with the columns and types of COLUMNS and those of
    other scores.

    `events` are those of all ranks, each rank's in the order they were written, read chunk by chunk; `roles[rank]`
    names what a rank does. Times are in seconds, sizes in bytes; `step` counts the steps finished since the start of
    the run. evaluate_bytes are those sent to evaluate or save the model, which the other columns leave out.
    A cell is empty (NaN) where a thing does not apply; message columns are 0 for a silent rank, and empty if
    the run recorded no phases. dropped, staleness_mean and staleness_max (in versions, of the gradients or pushes
    applied) stand on the row of the rank that applied them, and only if it recorded which version each was of. codes
    is how many codes a rank has made of its gradients, value_bytes, index_bytes and header_bytes what it sent of them,
    dense_bytes what it would have sent instead without a codec: empty where there is none. What a strategy has measured
    of itself, METERS, stands on the row of the rank that has measured it. Raises IndexError if an event's rank has no
    role.
    """
    table = reduce(_join, map(_totals_of, chunks(events)))
    recorded, hidden = table["spans"].sum() > 0, table["hidden"].sum() > 0
    versions = table["staleness_n"].notna() | table["dropped"].notna()
    table.loc[versions, "dropped"] = table["dropped"].fillna(0)
    table["staleness_mean"] = table["staleness_sum"] / table["staleness_n"]
    table = table[table["step"].notna()].sort_index()
    if recorded:
        table = table.fillna(dict.fromkeys((*MESSAGE_COLUMNS, EVALUATE_BYTES), 0))
    if hidden:
        table["messages_sent"] = None  # a formula gives the bytes, not into how many messages a built-in cut them
    table = table.reset_index()
    table = table.assign(strategy=strategy, n_gpus=n_gpus, role=[roles[int(rank)] for rank in table["rank"]])
    kinds = columns_with(table)
    return table[list(kinds)].astype(kinds)


def _totals_of(events: pd.DataFrame) -> pd.DataFrame:
    """Return the amounts that a chunk of events adds to the epoch table, by epoch and rank; NaN where it has none.

    Columns: those of _LAST and of scores, of _MOST, and sums.
    """
    marks = events[events["phase"].isin(MARKS)]
    spans = events[events["phase"].isin(PHASES)].assign(seconds=lambda rows: rows["t1"] - rows["t0"])
    values = marks.groupby([*_KEYS, "phase"])["value"].last().unstack().reindex(columns=list(_LAST))
    others = marks[marks["phase"] == SCORE].groupby([*_KEYS, "tag"])["value"].last().unstack()
    seconds = spans.groupby([*_KEYS, "phase"])["seconds"].sum().unstack().reindex(columns=list(PHASES))
    training = events[events["phase"] != EVALUATE]
    messages = _messages(events).rename(columns={"src": "rank"})
    shows = messages["phase"] == EVALUATE
    sent = messages[~shows].groupby(_KEYS)["bytes"]
    staleness = applied(events).groupby(_KEYS)["staleness"]
    columns = {
        "step": marks.groupby(_KEYS)["step"].max(),
        "spans": spans.groupby(_KEYS).size(),
        "hidden": events[events["phase"] == HIDDEN].groupby(_KEYS).size(),
        "bytes_sent": sent.sum(),
        "messages_sent": sent.size(),
        "bytes_received": training[training["op"].isin(("recv", "read"))].groupby(_KEYS)["bytes"].sum(),
        EVALUATE_BYTES: messages[shows].groupby(_KEYS)["bytes"].sum(),
        "dropped": dropped(events).groupby(_KEYS).size(),
        "staleness_sum": staleness.sum(),
        "staleness_n": staleness.size(),
        "staleness_max": staleness.max(),
    }
    return pd.concat([values, others, seconds.add_suffix("_s"), pd.DataFrame(columns)], axis=1).rename_axis(_KEYS)


def _join(first: pd.DataFrame, then: pd.DataFrame) -> pd.DataFrame:
    """Return what `_totals_of` would return of two chunks together."""
    rows = pd.concat([first, then]).groupby(level=_KEYS)
    sums = rows.sum(min_count=1)
    last = {name: rows[name].last() for name in sums if name in _LAST or _is_score(name)}
    return sums.assign(**last, **{name: rows[name].max() for name in _MOST})


def ledger(events: pd.DataFrame) -> pd.DataFrame:
    """Return the traffic of each pair of ranks that exchanged messages: columns src, dst, messages and bytes.

    Messages that carry the model to the rank that evaluates it are left out.
    """
    pairs = _messages(events[events["phase"] != EVALUATE]).groupby(["src", "dst"], as_index=False)
    return pairs.agg(messages=("bytes", "size"), bytes=("bytes", "sum"))


def _messages(events: pd.DataFrame) -> pd.DataFrame:
    """Return the sends from src to dst, and the reads as sends from the owner to the reader."""
    sent = events[events["op"] == "send"].rename(columns={"rank": "src", "peer": "dst"})
    read = events[events["op"] == "read"].rename(columns={"peer": "src", "rank": "dst"})
    return pd.concat([sent, read]) if len(read) else sent


def applied(events: pd.DataFrame) -> pd.DataFrame:
    """Return the events of gradients that were applied, with their `staleness` in versions; `peer` is the worker."""
    used = events[(events["phase"] == "update") & (events["op"] == "") & (events["version_read"] >= 0)]
    return used.assign(staleness=used["version_applied"] - used["version_read"])


def dropped(events: pd.DataFrame) -> pd.DataFrame:
    """Return the events of gradients that came too late, with the `staleness` that they would have had."""
    late = events[events["op"] == "drop"]
    return late.assign(staleness=late["version_applied"] - late["version_read"])


def workers(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the ranks that train samples: all but the servers."""
    return table[table["role"] != SERVER]


def finished_epochs(table: pd.DataFrame) -> int:
    """Return how many epochs were run to their end, and so have their time."""
    return int(table.loc[table["epoch_s"].notna(), "epoch"].nunique())


def totals(table: pd.DataFrame) -> dict[str, float | None]:
    """Return the numbers of a whole run, from its epoch table; None where nothing was measured.

    test_accuracy, or what else `scores` names: of the last epoch that has one (its lowest rank, if several measured
    it). seconds: the slowest rank's time, summed over epochs. samples_per_s: samples trained by all workers (those that
    a server applied, if it counted them: not every gradient is) over those seconds, without the first epoch if there
    are several, for it also pays for warming up. bytes_sent: by all ranks, to train; evaluate_bytes: to evaluate and
    save the model.
    """
    scored = {name: table[name].dropna() for name in scores(table)}
    counting = table[(table["role"] == SERVER) & table["samples"].notna()]
    trained = workers(table) if counting.empty else counting
    seconds, samples = table.groupby("epoch")["epoch_s"].max(), trained.groupby("epoch")["samples"].sum(min_count=1)
    timed = pd.DataFrame({"seconds": seconds, "samples": samples}).dropna()
    steady = timed[1:] if len(timed) > 1 else timed
    steady = steady[steady["seconds"] > 0]  # in virtual time a run may take none
    sent, shown = (table[name].sum(min_count=1) for name in ("bytes_sent", EVALUATE_BYTES))
    return {
        **{name: None if column.empty else float(column.iloc[-1]) for name, column in scored.items()},
        "seconds": float(seconds.sum()),
        "samples_per_s": None if steady.empty else float(steady["samples"].sum() / steady["seconds"].sum()),
        "bytes_sent": None if pd.isna(sent) else int(sent),
        EVALUATE_BYTES: None if pd.isna(shown) else int(shown),
    }


def staleness(table: pd.DataFrame) -> tuple[float, float]:
    """Return the mean (over epochs, all of about as many gradients) and maximum of the staleness; NaN if unknown."""
    return float(table["staleness_mean"].mean()), float(table["staleness_max"].max())


def phase_times(table: pd.DataFrame) -> pd.DataFrame:
    """Return the seconds of the run in each phase and in all (epoch_s), one row a role, mean over its ranks."""
    roles = table.groupby("role", sort=False)
    return roles[[*PHASE_COLUMNS, "epoch_s"]].sum(min_count=1).div(roles["rank"].nunique(), axis=0)


def summary(table: pd.DataFrame, world: Mapping[str, Any], staleness_of: str = "gradient") -> str:
    """Return the short text shown at the end of a run, at most 100 columns wide.

    `world` says what ran, in a few short entries (strategy, n_gpus, transport, ...); it becomes the first line.
    `staleness_of`: the messages that were applied one by one, with their staleness, "gradient" or "push".
    """
    run = totals(table)
    decimals = 2 if run["seconds"] is None or run["seconds"] >= 10 else 4
    sent = table.groupby("rank")["bytes_sent"].sum(min_count=1) / 1e6
    evaluated = f"; {number(shown, scale=1e-6)} more to evaluate" if (shown := run[EVALUATE_BYTES]) else ""
    warm = " without the first epoch" if finished_epochs(table) > 1 else ""
    lines = [
        textwrap.shorten(", ".join(f"{key} {value}" for key, value in world.items()), WIDTH, placeholder=" ..."),
        *(f"{name.replace('_', ' '):<14} {number(run[name], 4)}" for name in scores(table) if run[name] is not None),
        f"seconds        {number(run['seconds'], decimals)}",
        *([] if run["samples_per_s"] is None else [f"samples/s      {number(run['samples_per_s'])}{warm}"]),
        f"MB sent        {number(run['bytes_sent'], scale=1e-6)} in total; by rank {by_rank(sent.to_dict())}"
        f"{evaluated}",
    ]
    if table["codes"].notna().any():
        lines.append(f"MB a step      {_codes_line(table)}")
    if drops := table["dropped"].sum():
        lines.append(f"dropped        {drops} gradients")
    if table["staleness_max"].max() > 0:
        mean, most = staleness(table)
        lines.append(f"staleness      mean {number(mean)}, at most {number(most, 0)} versions a {staleness_of}")
    for meter, label in METERS.items():
        measured = table.groupby("epoch")[meter].mean().dropna()
        if len(measured):
            lines.append(f"{label:<15}{measured.iloc[-1]:.3g} in the last epoch, {measured.mean():.3g} on average")
    wrapped = [part for line in lines for part in textwrap.wrap(line, WIDTH, subsequent_indent=" " * 15)]
    times = phase_times(table)
    if times[list(PHASE_COLUMNS)].isna().all(axis=None):
        return "\n".join([*wrapped, "time per rank  not recorded"])
    spent = [["time per rank", *(f"{role} (s, %)" for role in times.index)]]
    for phase, column in zip(PHASES, PHASE_COLUMNS, strict=True):
        if times[column].notna().any():  # seconds, percent of the epochs
            cells = zip(times[column], 100 * times[column] / times["epoch_s"], strict=True)
            spent.append([phase, *(f"{number(seconds, decimals)} {number(share):>6}" for seconds, share in cells)])
    return "\n".join([*wrapped, aligned(spent, left=1)])


def _codes_line(table: pd.DataFrame) -> str:
    """Return the bytes sent in a step of all workers, their parts, and the bytes without a codec."""
    sent, *of_codes, dense = table[["bytes_sent", "value_bytes", "index_bytes", "header_bytes", "dense_bytes"]].sum()
    coding = workers(table)[lambda rows: rows["codes"].notna()]
    steps = coding["codes"].sum() / coding["rank"].nunique()
    sizes = (sent, sent - sum(of_codes) + dense, *of_codes)
    sent, dense, *rest = (f"{nbytes / steps / 1e6:.4g}" for nbytes in sizes)
    parts = zip(("values", "indices", "headers"), rest, strict=True)
    return f"{sent} sent; dense would be {dense}; codes: {', '.join(f'{name} {size}' for name, size in parts)}"


def by_rank(values: Mapping[int, float]) -> str:
    """Return the values, to one decimal, with their ranks; of many ranks only the first, the least and the greatest."""
    if len(values) <= _MOST_RANKS_SHOWN:
        return ", ".join(f"{rank}: {number(value)}" for rank, value in values.items())
    (first, value), *others = values.items()
    rest = pd.Series([other for _, other in others], dtype="float64")
    return f"{first}: {number(value)}, others: {number(rest.min())} to {number(rest.max())}"


def number(value: float | None, digits: int = 1, scale: float = 1.0) -> str:
    """Return `value * scale` with `digits` decimals, or "-" if it is None or NaN."""
    return "-" if value is None or pd.isna(value) else f"{value * scale:.{digits}f}"


def aligned(rows: Sequence[Sequence[str]], left: int) -> str:
    """Return rows of text as lines of columns: the first `left` columns flush left, the others flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    pad = [str.ljust if i < left else str.rjust for i in range(len(widths))]
    lines = ("  ".join(p(cell, w) for p, cell, w in zip(pad, row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
