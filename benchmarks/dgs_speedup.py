"""Draw the speed-up of asynchronous training by compression, in virtual time: media/dgs.png.

python -m benchmarks dgs_speedup    # the table goes to results/, the picture to media/

Steps of a model of ResNet-18's size are only timed, on torch's meta device. What a step computes is not published; it
is taken such that the dense server with 16 workers and 1 Gbit/s is as fast as the published one. All else follows.
Passes vary a little: without that, equal workers stay in step, and the server's card sends and receives by turns.
Once coding takes no time, and once what one core of the machine in `results/` takes for it.
"""

from itertools import product
from typing import Any

import pandas as pd

from experiments import drawing
from experiments.grid import KEPT, ROOT, Grid
from gradwire.compression import Codec, NoCodec, TopK
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
PICTURE = ROOT / "media" / "dgs.png"
CASES = [dict(zip(("bandwidth", "method", "workers"), values, strict=True))
         for values in product(BANDWIDTHS, METHODS, WORKERS)]  # fmt: skip


def compare(bandwidth: str, method: str, workers: int) -> dict[str, Any]:
    """Return the row of a method at a bandwidth with `workers` workers: seconds a step of all, and the speed-up."""
    strategy, codec, coding = METHODS[method]
    options = Options(
        strategy=strategy, codec=codec, n_gpus=workers + 1, model=MODEL, device="cpu", bandwidth=bandwidth,
        latency=LATENCY, jitter=JITTER,
    )  # fmt: skip
    done = dry_run(options, ClusterOptions(compute=COMPUTE, coding=coding), None, STEPS, quiet=True)
    sent, speedup = done.figures()["gb_sent_a_step"] * 1e3, workers * done.compute / done.seconds
    row = {"bandwidth": bandwidth, "method": method, "workers": workers, "seconds_a_step": done.seconds}
    return row | {"mb_sent_a_step": sent, "speedup": speedup}


def show(table: pd.DataFrame) -> None:
    """Print the table, and draw the speed-up against the workers at each bandwidth."""
    print(table.to_string(index=False, float_format=lambda value: f"{value:.4g}"))
    figure, panels = drawing.sheet(5, 1, 2, 10, sharey=True)
    for axes, bandwidth in zip(panels, BANDWIDTHS, strict=True):
        axes.plot(WORKERS, WORKERS, color="#bbbbbb", linestyle="--", label="as many times as workers")
        rows = table[table["bandwidth"] == bandwidth].assign(name=table["method"])
        drawing.lines(axes, rows, "workers", "speedup", COLOURS)
        for of in ("x", "y"):
            drawing.logarithmic(axes, of, (1,), base=2)
        drawing.finish(axes, f"{bandwidth.removesuffix('gbit')} Gbit/s", xlabel="workers", ylim=(0.28, 45))
    for workers, speedup, name, marker, label in PUBLISHED:
        panels[0].plot([workers], [speedup], marker, ms=14, mfc="none", mec=COLOURS[name], ls="none", label=label)
    panels[0].set_ylabel("speed-up over one worker alone")
    drawing.legend_below(figure, panels[0], 3)
    figure.suptitle(f"Asynchronous server, ResNet-18 (11.7 million parameters), {COMPUTE[:-1]} s of computing a step")
    drawing.save(figure, PICTURE, 110)


RUNS = Grid(KEPT / "dgs_speedup.csv", CASES, compare, show, {"steps": STEPS})
