"""The tables of the notebooks and READMEs, as text: mean ± standard deviation over the seeds."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from experiments.cases import SEEDS, Setup
from experiments.draw_virtual import by_density, rate_of
from experiments.drawing import NAMES
from experiments.measured import Results, Servers, pick, ratio_to, seconds_to
from experiments.simulated import GRID, REAL, VIRTUAL, Rows
from experiments.virtual_cases import FEW, GBIT, TUNED_AT
from records.events import PHASES
from records.tables import SERVER

Table = list[tuple[str, ...]]  # its head first
Cell = Callable[[pd.DataFrame], str]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of text as a Markdown table, the first one its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


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
    for key, one in rows.groupby(list(by), sort=False):
        names = (_label(part, column) for part, column in zip(key, by, strict=True))
        table.append((*names, *(cell(one) for cell in cells.values())))
    return table


def _label(value: Any, column: str) -> str:
    return f"{value:,g}" if not isinstance(value, str) else NAMES[value] if column in ("strategy", "server") else value


def _of(values: pd.DataFrame, name: str, per: str | None) -> pd.Series:
    return values[name] / values[per] if per else values[name]


def _spread(name: str, digits: int, scale: float = 1, per: str | None = None) -> Cell:
    return lambda rows: spread(_of(rows, name, per), digits, scale)


def _mean(name: str, digits: int, scale: float = 1, per: str | None = None) -> Cell:
    def cell(rows: pd.DataFrame) -> str:
        mean = scale * _of(rows, name, per).mean()
        return "-" if pd.isna(mean) else f"{mean:z.{digits}f}"

    return cell


def _where(column: str, values: Mapping[str, Any], cell: Cell) -> dict[str, Cell]:
    """Return a cell for each of the `values`, by its head: what `cell` makes of the rows with that value."""

    def where(value: Any) -> Cell:
        return lambda rows: cell(rows[rows[column] == value])

    return {head: where(value) for head, value in values.items()}


def _rate(rows: pd.DataFrame) -> str:
    return f"{rows['lr'].iloc[0]:g}"


ACCURACY = {"accuracy, %": _spread("accuracy", 2, 100)}


def grid(rows: pd.DataFrame, by: Mapping[str, str], chosen: Mapping[Any, float] | None = None) -> Table:
    """Return the held-out accuracy in % of each learning rate; a star at the one `chosen`, by default the best."""
    ordered = rows.sort_values(["accuracy", "lr"], ascending=[False, True])
    best = {key: one["lr"].iloc[0] for key, one in ordered.groupby(list(by))}

    def cell(one: pd.DataFrame) -> str:
        (run,) = one.to_dict("records")
        key = tuple(run[name] for name in by)
        star = "*" if run["lr"] == (chosen[key[0]] if chosen else best[key]) else " "
        return "diverged " if pd.isna(run["accuracy"]) else f"{100 * run['accuracy']:.2f}{star}"

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
        n = setup.workers
        of_server = f" ({n} worker{'s' * (n > 1)})" if SERVER in setup.roles else ""
        one = pick(results.runs, setup).set_index("seed")
        reached = seconds_to(results, target or 0.0, setup)
        label = {"network": setup.model.upper(), "ranks": setup.ranks.removesuffix(" ranks") + of_server}
        runs.append(one.assign(**label, ratio=ratio_to(results, setup), reached=reached))
    cells = {
        "test accuracy, %": _spread("accuracy", 2, 100), "seconds per epoch": _spread("epoch_s", 2),
        "samples/s to built-in": lambda one: "1" if (one["ratio"] == 1).all() else spread(one["ratio"], 2),
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
    rows = pd.concat([pick(results.phases, one).assign(network=one.model.upper(), ranks=one.ranks) for one in setups])
    timed = [phase for phase in PHASES if rows[f"{phase}_s"].notna().any()]
    by = {"network": "network", "strategy": "strategy", "ranks": "ranks", "role": "role"}
    return grouped(rows, by, {phase: _mean(f"{phase}_s", 2) for phase in timed})


def servers(results: Servers, part: str = "final") -> Table:
    """Return one part of the server family."""
    runs = results.runs[results.runs["part"] == part]
    cells = {
        "learning rate": _rate, "updates an epoch": _spread("updates", 0),
        "test accuracy, %": _spread("accuracy", 2, 100), "seconds per epoch": _spread("epoch_s", 2),
        "ms an update": _spread("step_s", 1, 1000), "MB per epoch": _spread("mb", 0),
        "mean staleness": _spread("stale", 1), "of worker 3": _spread("last_stale", 1),
        "its share of the samples, %": _mean("last_share", 0, 100), "gradients dropped, %": _spread("dropped", 1),
    }  # fmt: skip
    return grouped(runs.assign(lr=runs["server"].map(results.rates)), {"server": "server"}, cells)


def kept_updates(results: Servers) -> Table:
    """Return how many of the updates of several clients a server has kept."""
    rows = results.lost.assign(share=results.lost["kept"] / results.lost["made"])
    return grouped(rows, {"mode": "client", "clients": "clients"}, {"kept, %": _mean("share", 0, 100)})


# In virtual time


def scaling(rows: Rows, gbit: float) -> Table:
    """Return speed-up, accuracy and busiest card of the cluster."""
    cells = {"rate": _rate, "speed-up": _spread("speedup", 2), **ACCURACY, "busiest card, % of the time": _card}
    return grouped(rows.of("scaling", gbit=gbit), {"name": "strategy", "workers": "workers"}, cells)


def _card(rows: pd.DataFrame) -> str:
    return f"{rows['busiest_card'].iloc[0]}, {rows['busy_percent'].mean():.0f}"


def racks(rows: Rows) -> Table:
    """Return what four racks change."""
    by = {"name": "strategy", "racks": "racks", "uplink": "uplink, Gbit/s"}
    return grouped(rows.of("racks"), by, {"virtual seconds": _mean("seconds", 2), "busiest card, % of the time": _card})


def predictions(rows: pd.DataFrame) -> Table:
    """Return how far a step's predicted and simulated time are from the measured one, at least and at most."""

    def error(side: str) -> Cell:
        def cell(one: pd.DataFrame) -> str:
            percent = 100 * (one[f"{side}_ms"] / one["measured_ms"] - 1)
            return f"{percent.min():+.1f} to {percent.max():+.1f}"

        return cell

    cells = {"cases": lambda one: str(len(one))} | {f"{side}, %": error(side) for side in ("predicted", "simulated")}
    return grouped(rows.sort_values("wall", ascending=False), {"wall": "the link is the wall"}, cells)


def methods(rows: Rows) -> Table:
    """Return the methods of the paper with each number of workers."""
    cells = {
        "rate": _rate, **ACCURACY, "MB a step": _spread("mb", 3, per="steps"),
        "codes": _spread("code_mb", 3, per="steps"), "staleness": _spread("staleness", 2),
        "virtual seconds": _spread("seconds", 2),
    }  # fmt: skip
    return grouped(rows.of("final"), {"name": "method", "workers": "workers"}, cells)


def codecs(rows: Rows) -> Table:
    """Return accuracy and MB a step of each codec on the ring."""
    cells, numbers = {"rate": _rate}, sorted(rows.of("final")["workers"].unique())
    for what, cell in (("accuracy, %", ACCURACY["accuracy, %"]), ("MB a step", _mean("mb", 3, per="steps"))):
        cells |= _where("workers", {f"{what} ({n})": n for n in numbers}, cell)
    return grouped(rows.of("final"), {"name": "codec"}, cells)


def times(rows: Rows, question: str = "time") -> Table:
    """Return what encoding and a step take at each bandwidth: on the ring ("time"), or around a server ("server")."""
    steps, timed = rows.of(question, workers=TUNED_AT), rows.facts["phase_seconds"]
    coding = {phase: [timed.get(name, {}).get(phase, 0.0) for name in steps["name"]] for phase in ("encode", "decode")}
    cells = {"ms to encode": _mean("encode", 2, 1000), "to decode": _mean("decode", 2, 1000)}
    heads = {f"a step at {rate_of(gbit)}": gbit for gbit in steps["gbit"].unique()}
    cells |= _where("gbit", heads, _mean("seconds", 2, 1000, per="steps"))
    return grouped(steps.assign(**coding), {"name": "codec"}, cells | {"MB of codes": _mean("code_mb", 3, per="steps")})


def density(rows: Rows) -> Table:
    """Return accuracy and MB a step at each density."""
    cells = {**ACCURACY, "MB a step": _mean("mb", 3, per="steps"), "codes": _mean("code_mb", 3, per="steps")}
    return grouped(by_density(rows), {"name": "method", "percent": "density, %"}, cells)


def family_grid(rows: Rows, where: str) -> Table:
    """Return the grid of the whole family."""
    return grid(rows.of(GRID, where=where), {"name": "strategy", "workers": "workers"})


def family(rows: Rows, where: str, workers: int | None = None, gbit: float | None = None) -> Table:
    """Return what each strategy of the whole family came to."""
    cells = {
        "rate": _rate, **ACCURACY, "seconds": _spread("seconds", 2), "updates": _mean("updates", 0),
        "MB sent": _mean("mb", 0), "waited, % of the time": _mean("waited", 0, 100), "staleness": _mean("staleness", 1),
    }  # fmt: skip
    return grouped(rows.of("final", where=where, workers=workers, gbit=gbit), {"name": "strategy"}, cells)


def slow(rows: Rows, names: Sequence[str] | None = None) -> Table:
    """Return the seconds with both networks, and with one slow worker in the faster one: of all, or of some."""
    ends = rows.of("final", "slow", where=VIRTUAL, workers=FEW)
    ends = ends[ends["name"].isin(names)] if names else ends
    equal = ends[ends["question"] == "final"].groupby(["name", "gbit"])["seconds"].mean()
    slowed = ends["question"] == "slow"
    longer = ends["seconds"] / [equal[key] for key in zip(ends["name"], ends["gbit"], strict=True)]
    ends = ends.assign(
        network=ends["gbit"].where(~slowed), slowed=ends["seconds"].where(slowed), longer=longer.where(slowed)
    )
    cells = _where("network", {f"s at {gbit} Gbit/s": gbit for gbit in GBIT}, _mean("seconds", 2))
    cells |= {"with a slow worker": _mean("slowed", 2), "times as long": _mean("longer", 2)}
    accuracy = _where("question", {"accuracy, %": "final"}, _mean("accuracy", 1, 100))
    return grouped(ends, {"name": "strategy"}, accuracy | cells)


def lost(rows: Rows) -> Table:
    """Return which share of what Hogwild's ranks have written was lost, less what one rank, which loses none, shows."""
    ends = rows.of("lost", last=False, where=REAL)
    floor = ends.loc[ends["workers"] == 1, "lost_updates"].mean()
    written = {"lost, % of what was written": _spread("lost_updates", 4, 100)}
    cells = {**written, "less the rounding of one rank": _mean("more", 4, 100)}
    return grouped(ends.assign(more=ends["lost_updates"] - floor), {"workers": "ranks"}, cells)


def overlap(rows: Rows) -> Table:
    """Return which part of the buckets' time lay in the backward pass, and what that saved of the ring's own."""
    ends, names = rows.of("final", where=VIRTUAL), ("overlapped ring", "ring", "none")

    def saved(one: pd.DataFrame) -> str:
        ours, ring, none = one.groupby("name")["seconds"].mean()[list(names)]
        return f"{100 * (ring - ours) / (ring - none):.0f}"

    seconds = _where("name", {f"seconds: {names[0]}": names[0], "ring": "ring", "none": "none"}, _mean("seconds", 2))
    cells = {"in the pass, %": _mean("hidden_communication", 0, 100), **seconds}
    by = {"workers": "workers", "gbit": "Gbit/s"}
    return grouped(ends, by, cells | {"of what the ring adds, saved, %": saved})
