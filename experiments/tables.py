"""The tables of the notebooks and READMEs, as text: mean ± standard deviation over the seeds."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

from experiments.cases import SEEDS, Setup
from experiments.drawing import NAMES, rate_of
from experiments.measured import Results, pick, ratio_to, seconds_to
from experiments.simulated import ACCURACY, BITS, CASE, REAL, Rows, by_score, score_of
from experiments.text_cases import BATCH_OF_TWO, SPEED, at, networks_of
from experiments.virtual_cases import BY_DENSITY, GBIT, TUNED_AT, Compression
from gradwire.core.records.events import PHASES
from gradwire.core.records.tables import SERVER
from gradwire.language.text import CONTEXT

Table = list[tuple[str, ...]]  # its head first
Cell = Callable[[pd.DataFrame], str]
Layout = tuple[Mapping[str, str], Mapping[str, Cell]]  # of `grouped`: the keys, and the cells


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of text as a Markdown table, the first one its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def replace_marked(text: str, name: str, made: str) -> str:
    """Return a Markdown text with what was `made` between its two marks of a name."""
    place = rf"(<!-- {name}: [^>]*-->\n).*?(<!-- end of {name} -->)"
    text, n = re.subn(place, lambda found: f"{found[1]}\n{made}\n\n{found[2]}", text, flags=re.DOTALL)
    assert n == 1, "there is one place for it"
    return text


def spread(values: Sequence[float] | pd.Series, digits: int, scale: float = 1.0) -> str:
    """Return "mean ± standard deviation" of a sample as text, with its size if that is not the number of seeds.

    "-" if nothing was measured; no deviation of one value.
    """
    series = pd.Series(values, dtype=float).dropna() * scale
    if series.empty:
        return "-"
    deviation = f" ± {series.std():.{digits}f}" if len(series) > 1 else ""
    return f"{series.mean():.{digits}f}{deviation}" + (f" (n={len(series)})" if len(series) != len(SEEDS) else "")


def grouped(rows: pd.DataFrame, by: Mapping[str, str], cells: Mapping[str, Cell]) -> Table:
    """Return a row for each value of the columns `by`, and in it what each of the cells makes of its rows."""
    table = [(*by.values(), *cells)]
    for key, group in rows.groupby(list(by), sort=False):
        labels = (
            f"{part:,g}" if not isinstance(part, str) else NAMES[part] if column in ("strategy", "server") else part
            for part, column in zip(key, by, strict=True)
        )
        table.append((*labels, *(cell(group) for cell in cells.values())))
    return table


def _of(values: pd.DataFrame, name: str, per: str | None) -> pd.Series:
    return values[name] / values[per] if per else values[name]


def _spread(name: str, digits: int, scale: float = 1, per: str | None = None) -> Cell:
    return lambda rows: spread(_of(rows, name, per), digits, scale)


def _mean(name: str, digits: int, scale: float = 1, per: str | None = None) -> Cell:
    return lambda rows: "-" if pd.isna(mean := scale * _of(rows, name, per).mean()) else f"{mean:z.{digits}f}"


def _median(name: str, digits: str) -> Cell:
    return lambda rows: "{:{of}} ({:{of}} to {:{of}})".format(*rows[name].quantile([0.5, 0, 1]), of=digits)


def _only(column: str, value: Any, cell: Cell, rows: pd.DataFrame) -> str:
    return cell(rows[rows[column] == value])


def _times(name: str, column: str, dividend: Any, divisor: Any, rows: pd.DataFrame) -> str:
    means = rows.groupby(column)[name].mean()
    ratio = means.get(dividend, math.nan) / means.get(divisor, math.nan)
    return "-" if pd.isna(ratio) else f"{ratio:.2f}"


def _where(column: str, values: Mapping[str, Any], cell: Cell) -> dict[str, Cell]:
    """Return a cell for each of the `values`, by its head: what `cell` makes of the rows with that value."""
    return {head: partial(_only, column, value, cell) for head, value in values.items()}


def _rate(rows: pd.DataFrame) -> str:
    return f"{rows['lr'].iloc[0]:g}"


IN_PERCENT: dict[str, Cell] = {"accuracy, %": _spread("accuracy", 2, 100)}


def grid(rows: pd.DataFrame, by: Mapping[str, str], chosen: Mapping[Any, float] | None = None) -> Table:
    """Return the score (accuracy in %) of each learning rate; a star at the one `chosen`, by default the best."""
    best = {key: of_key["lr"].iloc[0] for key, of_key in by_score(rows).groupby(list(by))}
    score = score_of(rows)

    def cell(frame: pd.DataFrame) -> str:
        (run,) = frame.to_dict("records")
        key = tuple(run[name] for name in by)
        star = "*" if run["lr"] == (chosen[key[0]] if chosen else best[key]) else " "
        return "diverged " if pd.isna(run[score]) else f"{run[score] * (100 if score == ACCURACY else 1):.2f}{star}"

    return grouped(rows, by, _where("lr", {f"{lr:g}": lr for lr in sorted(rows["lr"].unique())}, cell))


# On this machine


def comparison(
    results: Results, setups: Iterable[Setup], more: Mapping[str, str] | None = None, target: float | None = None
) -> Table:
    """Return the comparison with the built-ins, "-" where there is none. `more`: columns of the setups, with names.

    Samples/s are divided seed by seed by those of the built-in with as many workers. `target`: an accuracy (0 to 1)
    that is timed; those that did not reach it are not in the mean.
    """
    runs = []
    for setup in setups:
        of_server = f" ({setup.workers} worker{'s' * (setup.workers > 1)})" if SERVER in setup.roles else ""
        of_setup = pick(results.runs, setup).set_index("seed")
        reached = seconds_to(results, target or 0.0, setup)
        label = {"network": setup.model.upper(), "ranks": setup.ranks.removesuffix(" ranks") + of_server}
        runs.append(of_setup.assign(**label, ratio=ratio_to(results, setup), reached=reached))
    cells = {
        "test accuracy, %": _spread("accuracy", 2, 100), "seconds per epoch": _spread("epoch_s", 2),
        "throughput relative to PyTorch's own":
            lambda of_group: "1" if (of_group["ratio"] == 1).all() else spread(of_group["ratio"], 2),
        "MB per step": _mb,
    }  # fmt: skip
    if target:
        cells[f"seconds to {100 * target:.0f} %"] = _spread("reached", 1)
    by = {"network": "network", "strategy": "strategy", "ranks": "ranks", **(more or {})}
    return grouped(pd.concat(runs), by, cells)


def _mb(runs: pd.DataFrame) -> str:
    mean = _mean("mb_per_step", 2)(runs)
    return mean if mean == "-" or runs["counted"].all() else f"{mean} (formula)"


def phases(results: Results, setups: Iterable[Setup]) -> Table:
    """Return the seconds of an epoch in each phase, a row for each role of a setup."""
    rows = pd.concat(
        [pick(results.phases, setup).assign(network=setup.model.upper(), ranks=setup.ranks) for setup in setups]
    )
    timed = [phase for phase in PHASES if rows[f"{phase}_s"].notna().any()]
    by = {"network": "network", "strategy": "strategy", "ranks": "ranks", "role": "role"}
    return grouped(rows, by, {phase: _mean(f"{phase}_s", 2) for phase in timed})


SERVERS: Layout = {"server": "server"}, {
    "learning rate": _rate, "updates an epoch": _spread("updates", 0),
    "test accuracy, %": _spread("accuracy", 2, 100), "seconds per epoch": _spread("epoch_s", 2),
    "ms an update": _spread("step_s", 1, 1000), "MB per epoch": _spread("mb", 0),
    "mean staleness": _spread("stale", 1), "of worker 3": _spread("last_stale", 1),
    "its share of the samples, %": _mean("last_share", 0, 100), "gradients dropped, %": _spread("dropped", 1),
}  # fmt: skip


def backup(equal: str, slow: str) -> Layout:
    """Return how the updates of a part with equal workers, and of one with a slow worker, are shown."""
    updates = _where("part", {"ms an update": equal, "with a slow worker": slow}, _spread("step_s", 1, 1000))
    return {"server": "server"}, updates | {"times as long": partial(_times, "step_s", "part", slow, equal)}


KEPT_UPDATES: Layout = {"mode": "client", "clients": "clients"}, {"kept, %": _mean("kept", 0, 100, "made")}


# In virtual time


def _card(rows: pd.DataFrame) -> str:
    return f"{rows['busiest_card'].iloc[0]}, {rows['busy_percent'].mean():.0f}"


def _error(side: str, rows: pd.DataFrame) -> str:
    percent = 100 * (rows[f"{side}_ms"] / rows["measured_ms"] - 1)
    return f"{percent.min():+.1f} to {percent.max():+.1f}"


def _saved(rows: pd.DataFrame) -> str:
    """Return which part, in %, of what a ring adds to the time without messages overlapping has saved."""
    ours, ring, none = rows.groupby("name")["seconds"].mean()[["overlapped ring", "ring", "none"]]
    return f"{100 * (ring - ours) / (ring - none):.0f}"


_CARD: dict[str, Cell] = {"busiest card, % of the time": _card}
_SECONDS = _mean("seconds", 2)
_MB, _CODES = _mean("mb", 3, per="steps"), _mean("code_mb", 3, per="steps")
SCALING: Layout = {"name": "strategy", "workers": "workers"}, {
    "rate": _rate, "speed-up": _spread("speedup", 2), **IN_PERCENT, **_CARD,
}  # fmt: skip
RACKS: Layout = {"name": "strategy", "racks": "racks", "uplink": "uplink, Gbit/s"}, {
    "virtual seconds": _SECONDS, **_CARD,
}  # fmt: skip
PREDICTIONS: Layout = {"wall": "the link is the wall"}, {
    "cases": lambda rows: str(len(rows)), "predicted, %": partial(_error, "predicted"),
    "simulated, %": partial(_error, "simulated"),
}  # fmt: skip
METHODS: Layout = {"name": "method", "workers": "workers"}, {
    "rate": _rate, **IN_PERCENT, "MB a step": _spread("mb", 3, per="steps"),
    "codes": _spread("code_mb", 3, per="steps"), "staleness": _spread("staleness", 2),
    "virtual seconds": _spread("seconds", 2),
}  # fmt: skip
CODECS: Layout = {"name": "codec"}, {
    "rate": _rate,
    **_where("workers", {f"accuracy, % ({n})": n for n in Compression.workers}, IN_PERCENT["accuracy, %"]),
    **_where("workers", {f"MB a step ({n})": n for n in Compression.workers}, _MB),
}  # fmt: skip
DENSITY: Layout = {"name": "method", "percent": "density, %"}, {**IN_PERCENT, "MB a step": _MB, "codes": _CODES}
FAMILY: Layout = {"name": "strategy"}, {
    "rate": _rate, **IN_PERCENT, "seconds": _spread("seconds", 2), "updates": _mean("updates", 0),
    "MB sent": _mean("mb", 0), "waited, % of the time": _mean("waited", 0, 100), "staleness": _mean("staleness", 1),
}  # fmt: skip
SLOW: Layout = {"name": "strategy"}, {
    **_where("question", {"accuracy, %": "final"}, _mean("accuracy", 1, 100)),
    **_where("gbit", {f"s at {gbit} Gbit/s": gbit for gbit in GBIT}, partial(_only, "question", "final", _SECONDS)),
    **_where("question", {"with a slow worker": "slow"}, _SECONDS),
    **_where("question", {"accuracy then, %": "slow"}, _mean("accuracy", 1, 100)),
    "times as long": partial(_only, "gbit", GBIT[-1], partial(_times, "seconds", "question", "slow", "final")),
}  # fmt: skip
OVERLAP: Layout = {"workers": "workers", "gbit": "Gbit/s"}, {
    "in the pass, %": _mean("hidden_communication", 0, 100),
    **_where("name", {"seconds: overlapped ring": "overlapped ring", "ring": "ring", "none": "none"}, _SECONDS),
    "of what the ring adds, saved, %": _saved,
}  # fmt: skip


def by_density(methods: Rows) -> pd.DataFrame:
    """Return the last rows of GD and DGS at each density (`percent`)."""
    rows = methods.of("density", "final", workers=TUNED_AT)
    rows = rows[rows["name"].isin(BY_DENSITY)].sort_values(["name", "density"], ascending=[False, True])
    return rows.assign(percent=100 * rows["density"])


def on_text(rows: Rows) -> Table:
    """Return bits per character and seconds of all strategies at each bandwidth."""
    networks = networks_of(rows)
    cells = {
        "rate": _rate,
        **_where("gbit", {f"bits, {rate_of(network)}": network for network in networks}, _spread(BITS, 3)),
    }
    cells |= _where("gbit", {f"s, {rate_of(network)}": network for network in networks}, _mean("seconds", 1))
    cells |= {"MB sent": _mean("mb", 0), "staleness": _mean("staleness", 1)}
    return grouped(pd.concat([at(rows, gbit) for gbit in networks]), {"name": "strategy"}, cells)


def speed(rows: Rows) -> Table:
    """Return the characters a second of processes on this machine, without the first epoch, and beside DDP."""
    epochs = rows.of(SPEED, last=False).groupby(CASE, sort=False)[["steps", "seconds"]]
    spans = (epochs.last() - epochs.first()).reset_index()
    rate = 2 * BATCH_OF_TWO * CONTEXT * spans["steps"] / spans["seconds"]
    of_ddp = rate.groupby(spans["seed"].where(spans["name"] == "DDP")).first()  # the runs take turns, seed by seed
    runs = spans.assign(rate=rate, ratio=rate / spans["seed"].map(of_ddp))
    cells = {"characters/s": _median("rate", ",.0f"), "times DDP": _median("ratio", ".2f")}
    return grouped(runs, {"name": "strategy", "workers": "ranks"}, cells)


def times(rows: Rows, question: str = "time") -> Table:
    """Return what encoding and a step take at each bandwidth: on the ring ("time"), or around a server ("server")."""
    steps, timed = rows.of(question, workers=TUNED_AT), rows.facts["phase_seconds"]
    coding = {phase: [timed.get(name, {}).get(phase, 0.0) for name in steps["name"]] for phase in ("encode", "decode")}
    cells = {"ms to encode": _mean("encode", 2, 1000), "to decode": _mean("decode", 2, 1000)}
    heads = {f"a step at {rate_of(gbit)}": gbit for gbit in steps["gbit"].unique()}
    cells |= _where("gbit", heads, _mean("seconds", 2, 1000, per="steps"))
    return grouped(steps.assign(**coding), {"name": "codec"}, cells | {"MB of codes": _CODES})


def lost(rows: Rows) -> Table:
    """Return which share of what Hogwild's ranks have written was lost, less what one rank, which loses none, shows."""
    ends = rows.of("lost", last=False, where=REAL)
    floor = ends.loc[ends["workers"] == 1, "lost_updates"].mean()
    cells = {"lost, % of what was written": _spread("lost_updates", 4, 100)}
    cells |= {"less the rounding of one rank": _mean("more", 4, 100)}
    return grouped(ends.assign(more=ends["lost_updates"] - floor), {"workers": "ranks"}, cells)


def drift(rows: Rows, **of: Any) -> Table:
    """Return how far the ranks' models are from their mean at the end of each epoch, in % of its length."""
    ends = rows.of("final", last=False, **of).dropna(subset="replica_distance")
    epochs = {f"epoch {epoch}": epoch for epoch in sorted(ends["epoch"].unique())}
    return grouped(ends, {"name": "strategy"}, _where("epoch", epochs, _spread("replica_distance", 2, 100)))
