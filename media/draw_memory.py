"""Draw where the memory of a rank goes in one step of a GPT, by strategy: python media/draw_memory.py"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from records.atomic import write_atomically
from records.files import load_metadata
from records.memory_use import COLOURS, SUFFIX, draw, load_changes
from strategies import FullySharded, RingAllReduce, ShardedGradients, ShardedRing, Strategy
from training import Options, run

PANELS: dict[str, Strategy] = {
    "ring_all_reduce": RingAllReduce(),
    "sharded_ring (ZeRO-1)": ShardedRing(),
    "sharded_gradients (ZeRO-2)": ShardedGradients(),
    "fully_sharded (ZeRO-3)": FullySharded(),
}
N, LAYERS, WIDTH = 4, 4, 256
TABLE = ROOT / "results" / "memory.csv"


def measure(strategy: Strategy, folder: str) -> tuple[pd.DataFrame, dict[str, int]]:
    """Train for two steps; return the changes of rank 0's memory in the higher one, and what it was at its peak."""
    options = Options(
        strategy=strategy, n_gpus=N, dataset="text", model="gpt", batch_size=1, optimizer="adamw", lr=0.001,
        model_options=f"layers={LAYERS},width={WIDTH}", epochs=1, train_size=2 * N, memory=True, device="cpu",
        results_dir=folder, run_name=strategy.name,
    )  # fmt: skip
    run(options, quiet=True)
    path = f"{folder}/{strategy.name}"
    changes, found = load_changes(f"{path}{SUFFIX}"), load_metadata(f"{path}.json")["memory"]["0"]
    return changes[changes["rank"] == 0], {"peak": found["peak"], **found["at_peak"]}


def main() -> None:
    """Measure, keep the table, and draw."""
    figure = Figure((11, 6.5), dpi=110, layout="constrained")
    panels = figure.subplots(2, 2, sharey=True).flat
    peaks: dict[str, dict[str, int]] = {}
    labels: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        for axes, (name, strategy) in zip(panels, PANELS.items(), strict=True):
            changes, peaks[name] = measure(strategy, folder)
            P = peaks["ring_all_reduce"]["parameters"]
            draw(changes, axes, unit=P)
            axes.set_title(f"{name}: at most {peaks[name]['peak'] / P:.2f} P", fontsize=11)
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
    figure.savefig(Path(__file__).with_name("memory.png"))
    table = pd.DataFrame(peaks).T.fillna(0).astype(int)
    print(table.to_string())
    with write_atomically(TABLE) as unfinished:
        table.to_csv(unfinished, index_label="strategy")


if __name__ == "__main__":
    main()
