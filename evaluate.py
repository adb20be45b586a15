"""Score the checkpoints of a training run as they appear, beside it, in a process of its own.

python train.py --strategy param_server --n_gpus 4 --checkpoint_every 100 --checkpoint_dir checkpoints &
python evaluate.py --checkpoint_dir checkpoints

Each checkpoint is scored once, on the held-out set: loss, top-1 and top-5 accuracy, into evaluation.csv beside them.
May be started before the training; ends when that has ended, however it did.
"""

import signal
import sys

if __name__ == "__main__":  # what follows takes seconds to load, in which Ctrl-C may come
    signal.signal(signal.SIGINT, lambda *_: sys.exit("\nerror: ended by SIGINT; the scores so far are written"))

import time
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn

from records.files import write_atomically
from strategies.replica import copy_into
from training import checkpoints
from training.cli import guarded, parse
from training.failures import RunFailed
from training.options import DTYPES
from workloads import datasets, models
from workloads.datasets import Data
from workloads.errors import UsageError

COLUMNS = ("step", "loss", "top1", "top5", "checkpoint")
_POLL_S = 0.2
_BATCH = 512


@dataclass(frozen=True)
class Settings:
    """What is scored, and where the scores go."""

    checkpoint_dir: str
    """The folder that the training run writes its checkpoints to."""
    output: str | None = None
    """Where the scores are written. Default: CHECKPOINT_DIR/evaluation.csv."""
    wait: float = 600.0
    """Seconds to wait for the training to begin."""


def main(settings: Settings) -> None:
    """Score checkpoints until the training has ended. Raises UsageError; RunFailed if one could not be scored."""
    directory = Path(settings.checkpoint_dir)
    output = Path(settings.output or directory / "evaluation.csv")
    begin = time.monotonic()
    while not checkpoints.has_begun(directory):
        if time.monotonic() - begin > settings.wait:
            raise UsageError(f"--checkpoint_dir {directory}: no training began there within --wait {settings.wait:g} s")
        time.sleep(_POLL_S)
    rows: list[dict[str, object]] = []
    scorer: Scorer | None = None
    seen: set[str] = set()
    bad = 0
    while True:
        ended = checkpoints.has_ended(directory)  # asked first: what was written before its end is then listed
        for path in checkpoints.listed(directory):
            if path.name in seen:
                continue
            seen.add(path.name)
            try:
                scorer = scorer or Scorer(path)
                rows.append(scorer.score(path))
            except UsageError as error:
                if path.exists():  # otherwise it was an old one, and removed
                    bad += 1
                    print(f"refused: {error}", file=sys.stderr)
                continue
            with write_atomically(output) as temporary:
                pd.DataFrame(rows, columns=list(COLUMNS)).to_csv(temporary, index=False)
            last = rows[-1]
            print(
                f"step {last['step']:>8}  loss {last['loss']:.4f}  top-1 {last['top1']:.4f}  top-5 {last['top5']:.4f}"
            )
        if ended:
            break
        time.sleep(_POLL_S)
    print(f"training has ended; {len(rows)} checkpoints scored, in {output}")
    if bad:
        raise RunFailed(f"{bad} checkpoints could not be read")


class Scorer:
    """The model and the held-out set of a run."""

    def __init__(self, checkpoint: Path) -> None:
        options = checkpoints.load_run(checkpoint)["options"]
        self.data: Data = datasets.load(
            options["dataset"], options["data_dir"], False, options["train_size"], options["seed"]
        )
        self.dtype = DTYPES[options["dtype"]]
        self.model: nn.Module = models.build(options["model"], self.data.input_shape, self.data.n_classes).to(
            self.dtype
        )
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.buffers = [b for b in self.model.buffers() if b.is_floating_point()]

    @torch.no_grad()
    def score(self, checkpoint: Path) -> dict[str, object]:
        """Return the row of a checkpoint: that of rank 0's parameters, with the workers' mean buffers."""
        run = checkpoints.load_run(checkpoint)
        states = [checkpoints.load_rank(checkpoint, rank)["strategy"] for rank in range(run["n_ranks"])]
        workers = [state for state, role in zip(states, run["roles"], strict=True) if role == "worker"]
        try:
            copy_into(self.parameters, states[0]["x"])
            copy_into(self.buffers, torch.stack([state["b"] for state in workers]).mean(0))
        except RuntimeError as error:
            raise UsageError(f"{checkpoint}: not of the same model as the first checkpoint") from error
        self.model.eval()
        loss, top1, top5 = 0.0, 0, 0
        for indices in torch.arange(self.data.n_test).split(_BATCH):
            x, y = self.data.fetch(indices, "test", torch.device("cpu"), self.dtype)
            output = self.model(x)
            loss += F.cross_entropy(output, y, reduction="sum").item()
            right = output.topk(min(5, output.shape[1])).indices == y[:, None]
            top1 += int(right[:, 0].sum())
            top5 += int(right.any(1).sum())
        n = self.data.n_test
        return {
            "step": run["step"],
            "loss": loss / n,
            "top1": top1 / n,
            "top5": top5 / n,
            "checkpoint": checkpoint.name,
        }


if __name__ == "__main__":
    kept = "the scores so far are written"
    sys.exit(guarded(lambda: main(parse(sys.argv[1:], Settings, None, __doc__)), kept))
