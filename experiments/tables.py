"""The tables of the notebooks and READMEs, as text: mean ± standard deviation over the seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from experiments.cases import Setup
from experiments.draw_virtual import by_density, rate_of, steps_of
from experiments.drawing import NAMES, ranks_of
from experiments.measured import Results, Servers, Table, pick, ratio_to, spread
from experiments.simulated import GRID, REAL, VIRTUAL, Rows
from experiments.virtual_cases import FEW, MOMENTUM, TUNED_AT
from records.tables import SERVER

Cell = Callable[[pd.DataFrame], str]
BATCHES = {"global_batch_size": "samples a step"}
PAPER = {  # test accuracy in % with 4, 8, 16 and 32 workers: ResNet-18, CIFAR-10, 50 epochs, m = 0.7
    "ASGD": (90.70, 90.46, 90.53, 88.36),
    "GD": (92.01, 91.81, 91.43, 91.00),
    "DGC": (92.64, 92.37, 92.28, 91.86),
    "DGS": (92.91, 93.32, 92.98, 92.69),
}
PAPER_ONE_PROCESS = 93.08
CENTRAL = {"synchronous": "server", "asynchronous": "asynchronous"}
DECENTRAL = {"synchronous": "gossip, ring", "asynchronous": "AD-PSGD"}


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of text as a Markdown table, the first one its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def grouped(rows: pd.DataFrame, by: Mapping[str, str], cells: Mapping[str, Cell]) -> Table:
    """Return a row for each value of the columns `by`, and in it what each of the cells makes of its rows."""
    table, label = [(*by.values(), *cells)], NAMES.__getitem__ if "server" in by else str
    for key, one in rows.groupby(list(by), sort=False):
        names = (f"{part:g}" if isinstance(part, float) else label(str(part)) for part in key)
        table.append((*names, *(cell(one) for cell in cells.values())))
    return table


def _spread(name: str, digits: int, scale: float = 1, per: str | None = None) -> Cell:
    return lambda rows: spread(rows[name] / (rows[per] if per else 1), digits, scale)


def _mean(name: str, digits: int, scale: float = 1) -> Cell:
    return lambda rows: f"{scale * rows[name].mean():z.{digits}f}"


def _rate(rows: pd.DataFrame) -> str:
    return f"{rows['lr'].iloc[0]:g}"


ACCURACY = {"accuracy, %": _spread("accuracy", 2, 100)}


def grid_table(rows: pd.DataFrame, by: Mapping[str, str], chosen: Mapping[Any, float] | None = None) -> Table:
    """Return the held-out accuracy in % of each learning rate; a star at the one `chosen`, by default the best."""
    rates = sorted(rows["lr"].unique())
    table, label = [(*by.values(), *(f"{lr:g}" for lr in rates))], NAMES.__getitem__ if "server" in by else str
    for key, one in rows.groupby(list(by), sort=False):
        means = one.groupby("lr")["accuracy"].agg(lambda accuracy: accuracy.mean(skipna=False))
        best = chosen[key[0]] if chosen else means.idxmax()
        stars = {lr: "*" if lr == best else " " for lr in rates}
        cells = ["diverged " if pd.isna(mean) else f"{100 * mean:.2f}{stars[lr]}" for lr, mean in means.items()]
        table.append((*(label(str(part)) for part in key), *cells))
    return table


# On this machine


def comparison(results: Results, setups: Sequence[Setup], more: Mapping[str, str] | None = None) -> Table:
    """Return the comparison with the built-ins, "-" where there is none. `more`: columns of the setups, with names.

    Samples/s are divided seed by seed by those of the built-in with as many workers.
    """
    more = more or {}
    head = ("test accuracy, %", "seconds per epoch", "samples/s to built-in", "MB per step")
    rows: Table = [("network", "strategy", "ranks", *more.values(), *head)]
    for setup in setups:
        runs = pick(results.runs, setup)
        if runs.empty:
            continue
        n, sent = setup.workers, runs["mb_per_step"]
        server = f" ({n} worker{'s' * (n > 1)})" if SERVER in setup.roles else ""
        rows.append(
            (
                setup.model.upper(), NAMES[setup.strategy], ranks_of(setup).removesuffix(" ranks") + server,
                *(f"{getattr(setup, name):,}" for name in more),
                spread(runs["accuracy"], 2, 100), spread(runs["epoch_s"], 2), _relative(results, setup),
                "-" if sent.isna().all() else f"{sent.mean():.2f}" + ("" if runs["counted"].all() else " (formula)"),
            )
        )  # fmt: skip
    return rows


def _relative(results: Results, setup: Setup) -> str:
    peer = replace(setup, strategy="ring_all_reduce_builtin")
    if setup.strategy.startswith("param_server"):
        peer = replace(setup, strategy="param_server_builtin", n_gpus=2)  # DataParallel was measured with two workers
    if setup.strategy == "single" or setup.workers != peer.workers or pick(results.runs, peer).empty:
        return "-"
    return "1" if peer == setup else spread(ratio_to(results, setup, peer), 2)


def servers(results: Servers, part: str = "final") -> Table:
    """Return one part of the server family."""
    runs = results.runs[results.runs["part"] == part]
    runs = runs.assign(lr=runs["server"].map(results.rates))
    cells = {
        "learning rate": _rate, "updates an epoch": _spread("updates", 0),
        "test accuracy, %": _spread("accuracy", 2, 100), "seconds per epoch": _spread("epoch_s", 2),
        "MB per epoch": _spread("mb", 0),
        "mean staleness": _spread("stale", 1), "gradients dropped, %": _spread("dropped", 1),
    }  # fmt: skip
    return grouped(runs, {"server": "server"}, cells)


# In virtual time


def scaling_table(rows: Rows, gbit: int) -> Table:
    """Return speed-up, accuracy and busiest card of the cluster."""
    cells = {"rate": _rate, "speed-up": _spread("speedup", 2), **ACCURACY, "busiest card, % of the time": _card}
    return grouped(rows.of("scaling", gbit=gbit), {"name": "strategy", "workers": "workers"}, cells)


def _card(rows: pd.DataFrame) -> str:
    return f"{rows['busiest_card'].iloc[0]}, {rows['busy_percent'].mean():.0f}"


def racks_table(rows: Rows) -> Table:
    """Return what four racks change."""
    racks = rows.of("racks")
    racks = racks.assign(rate=racks["uplink"].map(lambda uplink: f"{uplink:g} Gbit/s" if uplink else "-"))
    by = {"name": "strategy", "racks": "racks", "rate": "uplink"}
    return grouped(racks, by, {"virtual seconds": _mean("seconds", 2), "busiest card, % of the time": _card})


def methods_table(methods: Rows) -> Table:
    """Return the methods of the paper with each number of workers."""
    cells = {
        "rate": _rate, **ACCURACY, "MB a step": _spread("mb", 3, per="steps"),
        "codes": _spread("code_mb", 3, per="steps"), "staleness": _spread("staleness", 2),
        "virtual seconds": _spread("seconds", 2),
    }  # fmt: skip
    return grouped(methods.of("final"), {"name": "method", "workers": "workers"}, cells)


def paper_table() -> Table:
    """Return the paper's own figures."""
    table: Table = [("method", "4 workers", "8", "16", "32")]
    table += [(name, *(f"{value:.2f}" for value in values)) for name, values in PAPER.items()]
    return [*table, (f"one process, m = {MOMENTUM}", f"{PAPER_ONE_PROCESS:.2f}", "", "", "")]


def codecs_table(codecs: Rows) -> Table:
    """Return accuracy and MB a step of each codec on the ring."""
    ends = codecs.of("final")
    first, *others = sorted(ends["workers"].unique())

    def columns(what: str, cell: Cell) -> Table:
        cells = {f"{what}: {first} workers": first} | {str(n): n for n in others}
        by_workers = {head: lambda rows, n=n: cell(rows[rows["workers"] == n]) for head, n in cells.items()}
        return grouped(
            ends.assign(step_mb=ends["mb"] / ends["steps"]), {"name": "codec"}, {"rate": _rate, **by_workers}
        )

    accuracy, mb = columns("accuracy, %", ACCURACY["accuracy, %"]), columns("MB a step", _mean("step_mb", 3))
    return [(*row, *more[2:]) for row, more in zip(accuracy, mb, strict=True)]


def times_table(codecs: Rows, question: str = "time") -> Table:
    """Return what encoding and a step take at each bandwidth: on the ring ("time"), or around a server ("server")."""
    ms, timed = steps_of(codecs, question).xs(TUNED_AT, level="workers")["all"], codecs.facts["phase_seconds"]
    bandwidths = list(ms.index.unique("gbit"))
    table: Table = [("codec", "ms to encode", "to decode", *(f"a step at {rate_of(gbit)}" for gbit in bandwidths))]
    for name in ms.index.unique("name"):
        coding = [f"{1000 * timed.get(name, {}).get(phase, 0.0):.2f}" for phase in ("encode", "decode")]
        table.append((name, *coding, *(f"{ms[name, gbit]:.2f}" for gbit in bandwidths)))
    return table


def density_table(methods: Rows) -> Table:
    """Return accuracy and MB a step at each density."""
    rows = by_density(methods).assign(step_codes=lambda rows: rows["code_mb"] / rows["steps"])
    cells = {**ACCURACY, "MB a step": _mean("step_mb", 3), "codes": _mean("step_codes", 3)}
    return grouped(rows, {"name": "method", "percent": "density, %"}, cells)


def family_grid(rows: Rows, where: str) -> Table:
    """Return the grid of the whole family."""
    return grid_table(rows.of(GRID, where=where), {"name": "strategy", "workers": "workers"})


def family_table(rows: Rows, where: str, workers: int | None = None, gbit: int | None = None) -> Table:
    """Return what each strategy of the whole family came to."""
    cells = {
        "rate": _rate, **ACCURACY, "seconds": _spread("seconds", 2), "updates": _mean("updates", 0),
        "MB sent": _mean("mb", 0), "waited, % of the time": _mean("waited", 0, 100),
        "staleness": lambda one: "" if one["staleness"].isna().all() else f"{one['staleness'].mean():.1f}",
    }  # fmt: skip
    return grouped(rows.of("final", where=where, workers=workers, gbit=gbit), {"name": "strategy"}, cells)


def two_by_two(rows: Rows, workers: int = FEW) -> Table:
    """Return central and decentral, synchronous and asynchronous: accuracy, and seconds at both bandwidths."""

    def cell(name: str) -> str:
        one = rows.of("final", where=VIRTUAL, workers=workers, name=name)
        times = ", ".join(f"{seconds:.1f} s" for seconds in one.groupby("gbit")["seconds"].mean())
        slowed = rows.of("slow", name=name)["seconds"].mean()
        return f"{name}: {100 * one['accuracy'].mean():.1f} %; {times}; {slowed:.1f} s"

    return [("", *CENTRAL), ("a server", *map(cell, CENTRAL.values())), ("no server", *map(cell, DECENTRAL.values()))]


def lost_table(rows: Rows) -> Table:
    """Return which share of what Hogwild's ranks have written was lost, less what one rank, which loses none, shows."""
    lost = rows.of("lost", last=False, where=REAL)
    floor = lost.loc[lost["workers"] == 1, "lost_updates"].mean()
    lost = lost.assign(more=lost["lost_updates"] - floor)
    written = {"lost, % of what was written": _spread("lost_updates", 4, 100)}
    return grouped(lost, {"workers": "ranks"}, {**written, "less the rounding of one rank": _mean("more", 4, 100)})


def overlap_table(rows: Rows) -> Table:
    """Return which part of the buckets' time lay in the backward pass, and what that saved of the ring's own."""

    def seconds(one: pd.DataFrame, name: str) -> float:
        return float(one.loc[one["name"] == name, "seconds"].mean())

    def saved(one: pd.DataFrame) -> str:
        ours, ring, none = (seconds(one, name) for name in ("overlapped ring", "ring", "none"))
        return f"{100 * (ring - ours) / (ring - none):.0f}"

    names = {"seconds": "overlapped ring", "ring": "ring", "none": "none"}
    taken = {head: lambda one, name=name: f"{seconds(one, name):.2f}" for head, name in names.items()}
    cells: dict[str, Any] = {
        "in the pass, %": _mean("hidden_communication", 0, 100),
        **taken,
        "of what the ring adds, saved, %": saved,
    }
    ends = rows.of("final", where=VIRTUAL)
    return grouped(ends, {"workers": "workers", "gbit": "Gbit/s"}, cells)
