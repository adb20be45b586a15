"""What the runs in virtual time show, as sentences with their numbers."""

from collections.abc import Sequence

import pandas as pd

from experiments.draw_virtual import by_density, rate_of, steps_of
from experiments.measured import spread
from experiments.sentences import bullets
from experiments.simulated import VIRTUAL, Rows
from experiments.virtual_cases import FEW, GBIT, MANY, ON_A_SERVER, ONE_PROCESS, ONE_WORKER, TUNED_AT, USUAL, Cluster


def cluster(rows: Rows) -> str:
    """Return what the scaling on a cluster shows."""
    runs = rows.of("scaling")
    most = runs["workers"].max()

    def of(name: str, gbit: int, workers: int, column: str, scale: float = 1) -> str:
        return spread(rows.of("scaling", name=name, gbit=gbit, workers=workers)[column], 1, scale)

    speeds = {gbit: ", ".join(f"{name} {of(name, gbit, most, 'speedup')}" for name in Cluster.scaled) for gbit in GBIT}
    ends = [[f"{name} {of(name, GBIT[-1], 1, 'accuracy', 100)}", of(name, GBIT[-1], most, "accuracy", 100)]
            for name in Cluster.scaled]  # fmt: skip
    return bullets(
        *(f"**{gbit} Gbit/s, {most} workers**, times the samples/s of one: {text}." for gbit, text in speeds.items()),
        f"**Accuracy** in %, with 1 and with {most} workers, at {GBIT[-1]} Gbit/s: "
        f"{', '.join(map(' and '.join, ends))}.",
    )


def predictions(rows: pd.DataFrame) -> str:
    """Return how far predictions are from what was measured."""
    wall = rows[rows["wall"] == "yes"]
    parts = []
    for side in ("predicted", "simulated"):
        errors = 100 * (wall[f"{side}_ms"] / wall["measured_ms"] - 1)
        parts.append(f"{side} {errors.min():+.1f} to {errors.max():+.1f} %")
    return (
        f"Where the link is the wall ({len(wall)} of {len(rows)} cases: it takes at least four times what a step takes "
        f"without it), against measured: {', '.join(parts)}."
    )


def methods(rows: Rows) -> str:
    """Return what the methods of the paper show."""
    ends = rows.of("final")
    most = int(ends["workers"].max())
    ends = ends.assign(step_mb=ends["mb"] / ends["steps"])
    many, alone = ends[ends["workers"] == most], ends[ends["name"] == ONE_WORKER]["accuracy"]

    def each(column: str, unit: str, names: Sequence[str], scale: float = 1.0) -> str:
        of = {name: spread(many[many["name"] == name][column], 2, scale) for name in names}
        return ", ".join(f"{name} {value}{unit}" for name, value in of.items())

    mb = many.groupby("name")["step_mb"].mean()
    return bullets(
        f"**Accuracy, {most} workers:** {each('accuracy', ' %', [*ON_A_SERVER, ONE_PROCESS], 100)}; one process on "
        f"the batches of one worker, which takes {most} times as many steps, {spread(alone, 2, 100)} %.",
        f"**MB a step, {most} workers:** {each('step_mb', '', list(ON_A_SERVER))}: DGS sends 1/"
        f"{mb['ASGD'] / mb['DGS']:.0f} of what ASGD sends, GD 1/{mb['ASGD'] / mb['GD']:.1f}.",
        f"**Virtual seconds at {rate_of(USUAL)}, {most} workers:** {each('seconds', '', [*ON_A_SERVER, ONE_PROCESS])}.",
        f"**Staleness, {most} workers:** {each('staleness', '', list(ON_A_SERVER))}.",
    )


def times(codecs: Rows) -> str:
    """Return where compression pays."""
    sentences = []
    for question, where in (("time", "a ring"), ("server", "a server")):
        ms = steps_of(codecs, question).xs(TUNED_AT, level="workers")["all"].unstack("gbit")
        for gbit in dict.fromkeys(codecs.of(question)["gbit"]):
            gain = (ms.loc["none", gbit] / ms[gbit]).drop("none").sort_values(ascending=False)
            slower = ", ".join(f"{name} {value:.2f}" for name, value in gain.items() if value <= 1)
            best = ", ".join(f"{name} {value:.2f}" for name, value in gain.head(3).items())
            sentences.append(
                f"**{rate_of(gbit)}, {TUNED_AT} workers of {where}**, times as fast as without a codec: {best}"
                + (f"; not faster: {slower}." if slower else "; all are faster.")
            )
    return bullets(*sentences)


def lossless(codecs: Rows) -> str:
    """Return what the codec without loss gains."""
    mb = codecs.of("server").groupby("name")["code_mb"].mean()
    size = mb["blosc"] / (2 * mb["fp16"])  # a float16 is half
    ms = {question: steps_of(codecs, question).xs(TUNED_AT, level="workers")["all"] for question in ("time", "server")}
    slowest = codecs.of("server")["gbit"].min()
    gain = {question: of["none", slowest] / of["blosc", slowest] for question, of in ms.items()}
    return (
        f"Without loss a gradient of this network keeps {100 * size:.0f} % of its bytes. At {rate_of(slowest)} that "
        f"makes the steps of {TUNED_AT} workers {gain['server']:.2f} times as fast around a server, and "
        f"{gain['time']:.2f} times on a ring, where codes that cannot be added go to everyone."
    )


def accuracy(codecs: Rows) -> str:
    """Return what the codecs cost in accuracy."""
    ends, sentences = codecs.of("final"), []
    for workers in (int(ends["workers"].min()), int(ends["workers"].max())):
        mean = 100 * ends[ends["workers"] == workers].groupby("name", sort=False)["accuracy"].mean()
        lost = (mean - mean["none"]).drop("none").sort_values()
        each = ", ".join(f"{name} {value:+.1f}" for name, value in lost.items())
        sentences.append(f"**{workers} workers**, points to the {mean['none']:.1f} % without a codec: {each}.")
    return bullets(*sentences)


def density(rows: Rows) -> str:
    """Return what the density changes."""
    parts = []
    for name, one in by_density(rows).groupby("name", sort=False):
        of = [f"{percent:g} %: {spread(values, 2, 100)} %" for percent, values in one.groupby("percent")["accuracy"]]
        parts.append(f"**{name}** by density: {', '.join(of[::-1])}.")
    return bullets(*parts)


def whole_family(rows: Rows) -> str:
    """Return what the whole family shows."""
    ends = rows.of("final", where=VIRTUAL)
    seconds = ends.groupby(["name", "workers", "gbit"])["seconds"].mean()
    wall, reached = seconds[:, MANY, 1], 100 * ends.groupby(["name", "workers"])["accuracy"].mean()
    best = {n: reached[:, n].idxmax() for n in (FEW, MANY)}
    slowed = rows.of("slow").groupby("name", sort=False)["seconds"].mean()
    longer = slowed / seconds[:, FEW, GBIT[-1]].reindex(slowed.index)
    spared, held_up = longer[longer < 1.2], longer[longer >= 1.2]
    return bullets(
        f"**The wall.** With {MANY} workers at 1 Gbit/s one server takes {wall['server']:.1f} virtual seconds, four "
        f"servers {wall['4 servers']:.1f}, the ring {wall['ring']:.1f}, gossip on the exponential graph "
        f"{wall['gossip, exponential']:.1f}, AD-PSGD {wall['AD-PSGD']:.1f}, no communication {wall['none']:.1f}.",
        f"**Accuracy.** With {FEW} workers {best[FEW]} comes furthest ({reached[best[FEW], FEW]:.1f} %; the ring "
        f"{reached['ring', FEW]:.1f}, none {reached['none', FEW]:.1f}), with {MANY} {best[MANY]} "
        f"({reached[best[MANY], MANY]:.1f}; the ring {reached['ring', MANY]:.1f}, none {reached['none', MANY]:.1f}).",
        f"**One slow worker** of {FEW}, five times as slow, makes the run at most {spared.max():.2f} times as long "
        f"with these: {'; '.join(map(str, spared.index))}. With the others it takes {held_up.min():.1f} to "
        f"{held_up.max():.1f} times as long.",
    )
