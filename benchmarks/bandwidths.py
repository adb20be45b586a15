"""Which bandwidth is enough for 50 to 99 % of the time to be computing: published, and by our strategies.

python -m benchmarks bandwidths    # the table goes to results/, the picture to media/; all: minutes on one core

Published: Streaming DiLoCo (Douillard et al., 2025, arXiv 2501.18512), table 4; of 10B with other numbers of local
steps, Scaling laws for DiLoCo (Charles et al., 2025, arXiv 2503.09799). A bandwidth is the first of BANDWIDTHS that
reaches the share; a notch is the step to the next, 20.7 %. The strategies run on the meta device in virtual time, layer
by layer. "fitted": a parameter takes BITS bits, the one number that the published ones have chosen, and there are no
headers.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from experiments import drawing
from experiments.grid import KEPT, ROOT, Grid
from gradwire.networks.units import PAYLOAD
from gradwire.options import Options
from gradwire.virtual_time.cluster import ClusterOptions
from gradwire.virtual_time.dry_run import dry_run, period
from strategies import OverlappedRing, Strategy, StreamingDiLoCo

OUT, PICTURE = KEPT / "bandwidths.csv", ROOT / "media" / "bandwidths.png"
BANDWIDTHS = np.logspace(-1, 3, 50)  # Gbit/s
LEVELS = 50, 80, 90, 95, 99  # percent
BITS = 13.25
MODELS = {"1B": (1e9, 24, 0.1), "10B": (10e9, 48, 0.8), "100B": (100e9, 108, 4.9)}
"""Parameters, layers, and seconds that a step computes."""


@dataclass(frozen=True)
class Setting:
    """Where the methods run."""

    ranks: int = 2
    latency: str = "0s"
    bits: float = 16  # of a parameter
    headers: bool = True


SETTINGS = {
    "fitted": Setting(bits=BITS, headers=False),
    "16 bits": Setting(),
    "16 bits, 50 ms": Setting(latency="50ms"),
    "16 bits, 16 ranks": Setting(ranks=16),  # of 1B only, which takes the longest
}


def streaming(layers: int, H: int, delay: int) -> Strategy:
    """Return Streaming DiLoCo in the paper's fragments: three layers in each, at equal distances."""
    return StreamingDiLoCo(fragments=layers // 3, strided=True, local_steps=H, delay=delay)


METHODS: dict[str, Callable[[int, int, int], Strategy]] = {
    "data parallel": lambda layers, n, H: OverlappedRing(bucket_mb=(2 * n // layers - 4) / 1e6),  # a bucket a layer
    "DiLoCo": lambda layers, n, H: StreamingDiLoCo(fragments=1, strided=True, local_steps=H, delay=0, blend=0.0),
    "streaming": lambda layers, n, H: streaming(layers, H, delay=0),
    "overlapped": lambda layers, n, H: streaming(layers, H, delay=1),
    "4 bits": lambda layers, n, H: streaming(layers, H, delay=1),
}
"""Return the strategy of a method, given the layers of the model, its parameters, and the local steps."""
COLOURS = dict(zip(METHODS, ("#000000", "#d55e00", "#e69f00", "#0072b2", "#009e73"), strict=True))

PUBLISHED = {
    "1B": "86.8/152.6/184.2/222.3/569.0 1.4/6.2/13.3/23.3/86.8 1.4/5.2/9.1/16.0/28.1 1.4/4.3/6.2/9.1/11.0 "
    "0.4/0.9/1.7/2.0/3.0",
    "10B": "104.8/222.3/222.3/268.3/471.5 1.7/7.5/16.0/33.9/104.8 1.7/5.2/9.1/13.3/19.3 1.7/3.6/5.2/6.2/7.5 "
    "0.4/0.9/1.4/1.4/1.7",
    "100B": "184.2/323.8/390.7/390.7/471.5 3.0/11.0/23.3/49.4/184.2 2.4/6.2/9.1/11.0/19.3 1.7/3.6/4.3/5.2/5.2 "
    "0.5/0.9/1.1/1.1/1.4",
}
"""Of each model, Gbit/s by method and level."""
SCALING = {  # of DiLoCo for 10B, by local steps
    10: "16.0/49.4/86.8/152.6/222.3", 50: "3.0/11.0/23.3/41.0/126.5",
    100: "1.4/6.2/13.3/23.3/86.8", 300: "0.5/2.0/4.3/9.1/41.0",
}  # fmt: skip


def utilisation(setting: Setting, model: str, method: str, gbit: float, H: int = 100) -> float:
    """Return the percentage of a step's time that is computing, in virtual time."""
    n, layers, compute = MODELS[model]
    n = round(n / layers / 4) * 4 * layers
    gbit *= 16 / setting.bits / (1 if setting.headers else PAYLOAD) * (4 if method == "4 bits" else 1)
    options = Options(
        strategy=METHODS[method](layers, n, H), n_gpus=setting.ranks, dtype="bfloat16", device="cpu", momentum=0.0,
        bandwidth=f"{1000 * gbit:.6f}mbit", latency=setting.latency,
    )  # fmt: skip
    same = period(options.strategy)
    cluster = ClusterOptions(compute=f"{compute}s", sharing="in_order")
    done = dry_run(options, cluster, n, same + 3, quiet=True, layers=layers)
    return 100 * compute * same / max(result.ends[-1] - result.ends[-1 - same] for result in done.results)


def notches(setting: Setting, model: str, method: str, H: int = 100) -> list[int]:
    """Return for each level the number in BANDWIDTHS of the first that reaches it; their number: none does."""

    @cache
    def share(i: int) -> float:
        return utilisation(setting, model, method, float(BANDWIDTHS[i]), H)

    return [bisect_left(range(len(BANDWIDTHS)), float(level), key=share) for level in LEVELS]


GBIT: dict[tuple[str, str, str, int], str] = {
    (name, model, method, 100): gbits
    for name, setting in SETTINGS.items() for model in (MODELS if setting.ranks == 2 else ["1B"])
    for method, gbits in zip(METHODS, PUBLISHED[model].split(), strict=True)
} | {("scaling laws", "10B", "DiLoCo", H): gbits for H, gbits in SCALING.items()}  # fmt: skip
"""The published bandwidths by setting, model, method and local steps: the cases."""
CASES = [dict(zip(("setting", "model", "method", "local_steps"), case, strict=True)) for case in GBIT]


def compare(setting: str, model: str, method: str, local_steps: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of the levels."""
    case = {"setting": setting, "model": model, "method": method, "local_steps": local_steps}
    published = map(float, GBIT[setting, model, method, local_steps].split("/"))
    found = notches(SETTINGS.get(setting, SETTINGS["fitted"]), model, method, local_steps)
    for level, notch, gbit in zip(LEVELS, found, published, strict=True):
        apart = notch - int(np.abs(BANDWIDTHS - gbit).argmin())
        ours = BANDWIDTHS[notch] if notch < len(BANDWIDTHS) else np.inf
        yield case | {"percent": level, "gbit": ours, "published_gbit": gbit, "notches_apart": apart}


def summary(table: pd.DataFrame) -> str:
    """Return the table beside the published one, how often both agree, and what does not."""
    lines = []
    for (name, model), of in table.groupby(["setting", "model"], sort=False):
        lines.append(f"{name}, {model}: Gbit/s for {'/'.join(map(str, LEVELS))} %, ours and published")
        for (method, H), row in of.groupby(["method", "local_steps"], sort=False):
            ours, theirs = ("/".join(f"{gbit:.1f}" for gbit in row[column]) for column in ("gbit", "published_gbit"))
            lines.append(f"  {method + f', H = {H}' * (H != 100):22}{ours:32}{theirs}")
    for name, of in table.groupby("setting", sort=False):
        off = of["notches_apart"].abs()
        lines.append(f"{name}: {(off == 0).sum()} of {len(of)} cells the same, {(off <= 1).sum()} within a notch")
        for cell in of[off > 1].itertuples() if name in ("fitted", "scaling laws") else ():
            lines.append(f"  {cell.model}, {cell.method}, {cell.percent} %: {cell.notches_apart:+} notches")
    return "\n".join(lines)


def show(table: pd.DataFrame) -> None:
    """Print the summary, and draw for each model Gbit/s by the percentage of time that is computing."""
    print(summary(table))
    figure, panels = drawing.sheet(4.4, 1, len(MODELS), sharey=True)
    figure.suptitle("Bandwidth that a method needs")
    for axes, model in zip(panels, MODELS, strict=True):
        for method, colour in COLOURS.items():
            of = table.query("setting == 'fitted' and model == @model and method == @method")
            axes.plot(range(len(of)), of["gbit"], color=colour, lw=1.8, marker=".", ms=7, label=method)
            axes.plot(range(len(of)), of["published_gbit"], "o", mfc="none", mec=colour, ms=10, mew=1.4)
        drawing.logarithmic(axes, "y")
        drawing.finish(axes, f"{model} parameters", xlabel="of the time spent computing", ylim=(0.2, 1200))
        axes.set_xticks(range(len(LEVELS)), labels=[f"{percent} %" for percent in LEVELS])
    panels[0].set_ylabel("Gbit/s needed")
    panels[0].plot([], [], "o", mfc="none", mec="black", ms=10, mew=1.4, label="published")
    drawing.legend_below(figure, panels[0], 6)
    drawing.save(figure, PICTURE, 120)


RUNS = Grid(OUT, CASES, compare, show, {"bits": BITS})
