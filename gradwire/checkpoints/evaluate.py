"""Score the checkpoints of a training run as they appear, beside it, in a process of its own.

python train.py --strategy param_server --n_gpus 4 --checkpoint_every 20 --checkpoint_dir kept &
python evaluate.py --checkpoint_dir kept

Each checkpoint is scored once, on the held-out set: loss, top-1 and top-5 accuracy, or what else the task scores, into
evaluation.csv beside them.
May be started before the training; ends when that has ended, however it did. Where nothing is being trained, it scores
the checkpoints that are there. Started again, it continues the same evaluation.csv. It computes on one core.
"""

import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from gradwire.checkpoints import files, folder
from gradwire.command_line import parse, run_command
from gradwire.core.launchers.environment import die_with_parent
from gradwire.core.records.atomic import check_writable_by, locked, write_atomically
from gradwire.core.records.errors import RunFailed, UsageError, as_usage_error, one_line
from gradwire.core.strategy.tensors import copy_into, float_buffers, integer_buffers, trained
from gradwire.core.training.evaluation import evaluate
from gradwire.core.transports.timing import RunningClock, sleep
from gradwire.core.workloads import datasets, models, tasks
from gradwire.core.workloads.loading import batches_of_test
from gradwire.options import Options
from gradwire.recorded import check_recorded_code

FIRST, LAST = {"step": int, "loss": float}, {"checkpoint": str, "id": str}  # columns before and after the scores
_SHOWN = {"top1": "top-1", "top5": "top-5"}
_NAMES = {tasks.CLASSIFICATION: {"accuracy": "top1"}}  # of a task's scores, where they have another one here
_POLL_S = 0.2
_LINGER_S = 1.0  # the ranks of a killed launcher live on for half a second


@dataclass(frozen=True)
class Settings:
    """What is scored, and where the scores go."""

    checkpoint_dir: str
    """The folder that the training run writes its checkpoints to."""
    output: str | None = None
    """Where the scores are written. Default: CHECKPOINT_DIR/evaluation.csv."""
    wait: float = 600.0
    """Seconds to wait for the training to begin."""
    dataset: str | None = None
    """yourmodule:function, as the checkpoints name it, where that lies elsewhere than in the current folder: then you
    say that you trust it. So with --model and --task."""
    model: str | None = None
    """See --dataset."""
    task: str | None = None
    """See --dataset."""
    attached: bool = False
    """As train.py --evaluator starts it: print no scores, and end with the process that has started it."""


def evaluate_all(settings: Settings) -> None:
    """Score checkpoints until the training has ended. Raises UsageError; RunFailed if one could not be scored."""
    torch.set_num_threads(1)
    if settings.attached:
        die_with_parent()
    directory = Path(settings.checkpoint_dir)
    output = Path(settings.output or directory / folder.SCORES)
    check_writable_by("output" if settings.output else "checkpoint_dir", output.parent)
    load_scores(output)  # so that a bad file is reported before any waiting
    running = RunningClock()
    while not (settings.attached or folder.is_training(directory) or folder.listed(directory)):
        if running() > settings.wait:
            raise UsageError(f"--checkpoint_dir {directory}: no training began there within --wait {settings.wait:g} s")
        sleep(_POLL_S)
    refusal = f"--output {output}: another evaluate.py is writing it"
    with locked(output.with_name(f".{output.name}.lock"), refusal):
        given = {"dataset": settings.dataset, "model": settings.model, "task": settings.task}
        scores = Scores(output, given, quiet=settings.attached)
        training = True
        while training:
            training = folder.is_training(directory)
            if not training and not settings.attached:
                sleep(_LINGER_S)
            while new := scores.unscored(directory):
                scores.score(new[0])
            if training:
                sleep(_POLL_S)
    if not settings.attached:
        print(f"training has ended; {len(scores.rows)} checkpoints scored, in {output}")
    if scores.refused:
        raise RunFailed(f"{len(scores.refused)} of the checkpoints could not be scored")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    return run_command(lambda: evaluate_all(parse(given, Settings, __doc__ or "")), "the scores so far are written")


class Scores:
    """The table of scores, in memory and on disk, and the checkpoints that need no scoring."""

    def __init__(self, output: Path, given: Mapping[str, str | None], quiet: bool) -> None:
        self.output = output
        self._given = given  # the code that is trusted
        self.quiet = quiet
        for torn in output.parent.glob(f".[0-9]*.{output.name}"):  # of one that was killed
            torn.unlink(missing_ok=True)
        self.rows = load_scores(output)
        self.refused: set[tuple[str, str]] = set()
        self._scorer = lru_cache(1)(Scorer)

    def unscored(self, directory: Path) -> list[Path]:
        """Return the checkpoints in `directory` that are not in the table and have not been refused."""
        known = {(row["checkpoint"], row["id"]) for row in self.rows} | self.refused
        return [path for path in folder.listed(directory) if (path.name, _id_of(path)) not in known]

    def score(self, checkpoint: Path) -> None:
        """Add the row of a checkpoint; say so if it cannot be scored. Raises RunFailed."""
        mark = checkpoint.name, _id_of(checkpoint)
        try:
            self._add(self._scorer(**_what_is_scored(checkpoint, self._given)).score(checkpoint))
        except UsageError as error:
            if checkpoint.exists():  # otherwise it was an old one, and removed
                self.refused.add(mark)
                print(f"refused: {error}", file=sys.stderr)

    def _add(self, row: dict[str, Any]) -> None:
        # The run was resumed from an earlier step: rows from this step on belong to a course that it has left.
        self.rows = [*(old for old in self.rows if old["step"] < row["step"]), row]
        if self.rows[0].keys() != row.keys():
            raise RunFailed(
                f"{self.output}: has other scores than {', '.join(row)}; give another --output, or delete it"
            )
        try:
            with write_atomically(self.output) as temporary, temporary.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(row), lineterminator="\n")
                writer.writeheader()
                writer.writerows(self.rows)
        except OSError as error:
            raise RunFailed(f"cannot write {self.output}: {error.strerror}") from error
        if not self.quiet:
            scores = [name for name in row if name not in LAST and name != "step"]
            shown = "  ".join(f"{_SHOWN.get(name, name.replace('_', ' '))} {row[name]:.4f}" for name in scores)
            print(f"step {row['step']:>8}  {shown}", flush=True)


def _id_of(checkpoint: Path) -> str:
    """Return what distinguishes a checkpoint from a later one of the same name; "" if it does not say so."""
    try:
        return str(files.load_run(checkpoint)["id"])
    except UsageError:
        return ""


def load_scores(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a table of scores; none if there is no such file. Raises UsageError if it is another file."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *lines = list(csv.reader(file)) or [[]]
        columns = FIRST | dict.fromkeys(header[len(FIRST) : -len(LAST)], float) | LAST
        if header != list(columns):
            raise ValueError("other columns")
        return [{name: kind(text) for (name, kind), text in zip(columns.items(), line, strict=True)} for line in lines]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, csv.Error) as error:
        raise UsageError(
            f"--output {path}: is there, but is no table of scores ({one_line(error)}); give another, or delete it"
        ) from error


class Scorer:
    """The model and the held-out set of a run."""

    def __init__(self, **what: Any) -> None:
        options = Options(**what)
        self.data = datasets.load(options, options.seed)
        self.task = tasks.find(self.data.task)
        self.dtype = options.torch_dtype
        # Frozen parameters are those of the seed.
        self.model = models.seeded(options.model, self.data, options.seed, self.dtype, options.model_options)
        self.parameters = trained(self.model)
        self.buffers = float_buffers(self.model)
        self.counts = integer_buffers(self.model)

    def score(self, checkpoint: Path) -> dict[str, Any]:
        """Return the row of a checkpoint: of the algorithm's model, with the workers' mean buffers (of counts, the
        greatest).

        Where only the server's state is kept, with the server's buffers. Raises UsageError.
        """
        run = files.load_run(checkpoint)
        workers = [rank for rank in run["ranks"] if run["roles"][rank] == "worker"] or run["ranks"]
        errors = (RuntimeError, KeyError, TypeError, StopIteration, ValueError, AttributeError)
        with as_usage_error(f"{checkpoint}: not the state of its own model", "", errors):
            states = {rank: files.load_rank(checkpoint, rank) for rank in run["ranks"]}
            copy_into(self.parameters, next(state["model"] for state in states.values() if state["model"] is not None))
            copy_into(self.buffers, torch.stack([states[rank]["strategy"]["b"] for rank in workers]).mean(0))
            copy_into(self.counts, torch.stack([states[rank]["strategy"]["counts"] for rank in workers]).amax(0))
        score = evaluate(self.task, self.model, batches_of_test(self.data, torch.device("cpu"), self.dtype))
        names = _NAMES.get(self.task.name, {})
        scores = {names.get(name, name): value for name, value in score.scores.items()}
        return {"step": run["step"], "loss": score.loss, **scores, "checkpoint": checkpoint.name, "id": run["id"]}


def _what_is_scored(checkpoint: Path, given: Mapping[str, str | None]) -> dict[str, Any]:
    names = (
        "dataset", "data_dir", "task", "train_size", "context", "image_size", "seed", "model", "model_options", "dtype",
    )  # fmt: skip
    recorded = files.load_run(checkpoint)["options"]
    scored = {name: recorded[name] for name in names if name in recorded}
    for option, name in given.items():
        if name not in (None, scored.get(option)):
            raise UsageError(f"--{option} {name}: {checkpoint} was made with {scored.get(option)}; leave it out")
    check_recorded_code(scored, checkpoint / "run.json", given)
    return scored
