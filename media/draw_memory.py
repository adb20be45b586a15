"""Draw where the memory of a rank goes in one step of a GPT, by strategy: python media/draw_memory.py

What was measured is kept, and shown in experiments/11_memory.ipynb too.
"""

import gzip
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from experiments import drawing, grid
from gradwire import Options, run
from gradwire.core.records.atomic import write_atomically
from gradwire.diagnosis.memory_use import COLOURS, PARAMETERS, SUFFIX, draw, load_changes
from strategies import FullySharded, RingAllReduce, ShardedGradients, ShardedRing, Strategy

PANELS: dict[str, Strategy] = {
    "ring_all_reduce": RingAllReduce(),
    "sharded_ring (ZeRO-1)": ShardedRing(),
    "sharded_gradients (ZeRO-2)": ShardedGradients(),
    "fully_sharded (ZeRO-3)": FullySharded(),
}
N, LAYERS, WIDTH = 4, 4, 256
KEPT, PICTURE = grid.KEPT / "memory.csv.gz", grid.ROOT / "media" / "memory.png"


def measure(name: str) -> pd.DataFrame:
    """Train for two steps by a strategy; return the changes of rank 0's memory in the one that came higher."""
    strategy = PANELS[name]
    with TemporaryDirectory() as folder:
        options = Options(
            strategy=strategy, n_gpus=N, dataset="text", model="gpt", batch_size=1, optimizer="adamw", lr=0.001,
            model_options=f"layers={LAYERS},width={WIDTH}", epochs=1, train_size=2 * N, memory=True, device="cpu",
            results_dir=folder, run_name=strategy.name,
        )  # fmt: skip
        run(options, quiet=True)
        changes = load_changes(f"{folder}/{strategy.name}{SUFFIX}")
    return changes[changes["rank"] == 0].drop(columns="rank").assign(strategy=name)


def peaks(changes: pd.DataFrame) -> pd.DataFrame:
    """Return the bytes of each strategy at its peak, a row each, by kind, and their sum."""
    rows = {}
    for name, of in changes.groupby("strategy", sort=False):
        until = of[: of["bytes"].cumsum().argmax() + 1]
        rows[name] = {"peak": until["bytes"].sum(), **until.groupby("kind")["bytes"].sum()}
    return pd.DataFrame(rows, index=["peak", *COLOURS]).T.dropna(axis=1, how="all").fillna(0).astype(int)


def draw_all(changes: pd.DataFrame) -> Figure:
    """Draw a panel for each strategy."""
    figure, found = Figure((11, 6.5), dpi=110, layout="constrained"), peaks(changes)
    P = found.loc["ring_all_reduce", PARAMETERS]
    labels: dict[str, Any] = {}
    for axes, name in zip(figure.subplots(2, 2, sharey=True).flat, PANELS, strict=True):
        draw(changes[changes["strategy"] == name], axes, unit=P)
        axes.set_title(f"{name}: at most {found.loc[name, 'peak'] / P:.2f} P", fontsize=11)
        axes.grid(axis="y", alpha=0.3)
        labels |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    kinds = [kind for kind in COLOURS if kind in labels]
    handles = [labels[kind] for kind in kinds]
    figure.legend(handles, kinds, loc="outside lower center", ncols=4, frameon=False)
    figure.supylabel("memory (1 P: the bytes of the parameters)")
    model = f"GPT of {LAYERS} blocks, {P / 4e6:.1f} million parameters, AdamW, one sample a rank"
    figure.suptitle(
        f"One step of a rank of {N}: {model}\nfrom left to right: all that is allocated and freed, in its order"
    )
    return figure


def load() -> pd.DataFrame:
    """Return what was measured last: the changes of all strategies; those without a phase were before the step."""
    return pd.read_csv(KEPT, keep_default_na=False)


def main() -> None:
    """Measure, keep it, and draw."""
    changes = pd.concat([measure(name) for name in PANELS])
    print(peaks(changes).to_string())
    with write_atomically(KEPT) as unfinished:
        unfinished.write_bytes(gzip.compress(changes.to_csv(index=False).encode(), mtime=0))
    drawing.save(draw_all(changes), PICTURE, 110)


if __name__ == "__main__":
    main()
