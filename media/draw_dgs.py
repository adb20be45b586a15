"""Draw the speed-up of asynchronous training by compression, in virtual time: media/dgs.png.

python media/draw_dgs.py

Steps of a model of ResNet-18's size are only timed, on torch's meta device. What a step computes is not published; it
is taken such that the dense server with 16 workers and 1 Gbit/s is as fast as the published one. All else follows.
Passes vary a little: without that, equal workers stay in step, and the server's card sends and receives by turns.
Once coding takes no time, and once what one core of the machine in `results/` takes for it.
"""

import sys
from itertools import product
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, StrMethodFormatter

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gradwire.compression import Codec, NoCodec, TopK
from gradwire.core.records.atomic import write_atomically
from gradwire.options import Options
from gradwire.virtual_time.cluster import ClusterOptions
from gradwire.virtual_time.dry_run import dry_run
from strategies import DGS, AsyncParamServer, Strategy

COMPUTE, JITTER, LATENCY, MODEL, DENSITY = "0.4s", 0.02, "50us", "resnet18", 0.01
WORKERS, BANDWIDTHS, STEPS = (1, 2, 4, 8, 16, 32), ("1gbit", "10gbit"), 200
CODING = "16ms"
DENSE, UP, BOTH = "dense", "largest 1 % up, dense down", "DGS: largest 1 % both ways"
CODED = f"DGS, {CODING[:-2]} ms for each coding and decoding"
METHODS: dict[str, tuple[Strategy, Codec, str | None]] = {  # and what coding takes
    DENSE: (AsyncParamServer(), NoCodec(), None),
    UP: (AsyncParamServer(), TopK(density=DENSITY), None),
    BOTH: (DGS(density=DENSITY), NoCodec(), None),
    CODED: (DGS(density=DENSITY), NoCodec(), CODING),
}
PUBLISHED = (
    (16, 1.0, DENSE, "*", "published, ImageNet: 1"),
    (16, 12.6, BOTH, "*", "published, ImageNet: 12.6"),
    (8, 506 / 88, BOTH, "s", "published, CIFAR-10: 506 / 88 minutes"),
)
"""Workers, speed-up, method, marker, label: Yan et al., ICPP 2020, at 1 Gbit/s; the last is over the dense server."""
COLOURS = {DENSE: "#c25b4e", UP: "#d9903d", BOTH: "#3b6ea5", CODED: "#5a9e6f"}
COLUMNS = ["bandwidth", "method", "workers", "seconds_a_step", "mb_sent_a_step", "speedup"]
TABLE = ROOT / "results" / "amd-epyc-2-cores" / "dgs_speedup.csv"


def measure() -> pd.DataFrame:
    """Return a row for each method, bandwidth and number of workers: seconds a step of all, and the speed-up."""
    rows = []
    for bandwidth, (name, (strategy, codec, coding)), workers in product(BANDWIDTHS, METHODS.items(), WORKERS):
        options = Options(
            strategy=strategy, codec=codec, n_gpus=workers + 1, model=MODEL, device="cpu", bandwidth=bandwidth,
            latency=LATENCY, jitter=JITTER,
        )  # fmt: skip
        done = dry_run(options, ClusterOptions(compute=COMPUTE, coding=coding), None, STEPS, quiet=True)
        sent, speedup = done.figures()["gb_sent_a_step"] * 1e3, workers * done.compute / done.seconds
        rows.append((bandwidth, name, workers, done.seconds, sent, speedup))
    return pd.DataFrame(rows, columns=COLUMNS)


def draw(table: pd.DataFrame, axes: Axes, bandwidth: str) -> None:
    """Draw the speed-up against the workers at one bandwidth."""
    axes.plot(WORKERS, WORKERS, color="#bbbbbb", linestyle="--", label="as many times as workers")
    for name, colour in COLOURS.items():
        rows = table[(table["bandwidth"] == bandwidth) & (table["method"] == name)]
        axes.plot(rows["workers"], rows["speedup"], marker="o", color=colour, label=name)
    if bandwidth == "1gbit":
        for workers, speedup, name, marker, label in PUBLISHED:
            axes.plot([workers], [speedup], marker, ms=14, mfc="none", mec=COLOURS[name], ls="none", label=label)
    axes.set(xscale="log", yscale="log", xlabel="workers", title=f"{bandwidth.removesuffix('gbit')} Gbit/s")
    axes.set_ylim(0.28, 45)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_locator(NullLocator())
    axes.set_xticks(WORKERS)
    axes.set_yticks((0.5, *WORKERS))
    axes.grid(alpha=0.3)


def main() -> None:
    """Measure, keep the table, and draw."""
    table = measure()
    print(table.to_string(index=False, float_format=lambda value: f"{value:.4g}"))
    with write_atomically(TABLE) as unfinished:
        table.to_csv(unfinished, index=False)
    figure = Figure((10, 5), dpi=110)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, bandwidth in zip(panels, BANDWIDTHS, strict=True):
        draw(table, axes, bandwidth)
    panels[0].set_ylabel("speed-up over one worker alone")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="lower center", ncols=3, frameon=False)
    figure.suptitle(f"Asynchronous server, ResNet-18 (11.7 million parameters), {COMPUTE[:-1]} s of computing a step")
    figure.tight_layout(rect=(0, 0.17, 1, 1))
    figure.savefig(Path(__file__).with_name("dgs.png"))


if __name__ == "__main__":
    main()
