"""What checkpoints add to a run: it writes them, continues from one, is scored beside, saves its model, is replayed."""

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from gradwire.arguments import value_of
from gradwire.core.launchers import Launcher
from gradwire.core.records.errors import UsageError
from gradwire.core.records.options import MAY_CHANGE, OF_THIS_RUN, option
from gradwire.core.training.checks import check_path
from gradwire.core.training.options import Panel
from gradwire.core.training.progress import REPORTER
from gradwire.core.training.watchers import Watcher
from gradwire.core.training.wing import Record, Wing
from gradwire.core.workloads.data import Data
from gradwire.core.workloads.lookup import UserObject


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions(Panel):
    """What is kept to continue from, or to repeat."""

    save: str | None = field(default=None, metadata=OF_THIS_RUN)
    """Write the final model to this path, as an ordinary state_dict; FILE.safetensors: in that format
    (pip install -e '.[safetensors]')."""
    replay: str | None = field(default=None, metadata=OF_THIS_RUN)
    """Run RESULTS_DIR/RUN_NAME again, its gradients in the order in which they came then: the same parameters."""
    checkpoint_every: int = option(0, least=0, metadata=OF_THIS_RUN)
    """Write a checkpoint every N steps; 0: never."""
    checkpoint_dir: str | None = field(default=None, metadata=OF_THIS_RUN)
    """Where checkpoints are written. Default: RESULTS_DIR/RUN_NAME.checkpoints."""
    checkpoint_keep: int = option(3, least=1, metadata=OF_THIS_RUN)
    """How many checkpoints are kept, the newest."""
    evaluator: bool = field(default=False, metadata=OF_THIS_RUN)
    """Start evaluate.py beside the training: it scores each checkpoint as it appears, on one core."""
    resume: str | None = field(default=None, metadata={MAY_CHANGE: "on resume"})
    """Continue from this checkpoint, or from the newest in this folder, with the options that it was made with."""

    @property
    def checkpoint_folder(self) -> Path:
        """Where checkpoints are written; only of resolved options."""
        return Path(self.checkpoint_dir or Path(self.results_dir) / f"{self.run_name}.checkpoints")

    @property
    def is_resumed(self) -> bool:
        """Whether the run continues another one."""
        return self.resume is not None

    @property
    def is_replay(self) -> bool:
        """Whether the order of messages is that of another run."""
        return self.replay is not None


class Checkpoints(Wing):
    """Checkpoints, the model that is saved, and the repetition of a run."""

    title = "checkpoint"
    panel = CheckpointOptions

    def recorded(self, arguments: Sequence[str], builtin: Any) -> Any:
        """Return the options of the checkpoint or run that --resume or --replay names."""
        if not (value_of("--resume", arguments) or value_of("--replay", arguments)):
            return None
        from gradwire.checkpoints.recorded import recorded

        return recorded(arguments, builtin)

    def resolve(self, options: CheckpointOptions, launcher: Launcher) -> CheckpointOptions:
        """Check the options that need no data."""
        for name in ("save", "resume", "replay", "checkpoint_dir"):
            check_path(name, getattr(options, name), is_file=name == "save")
        if options.evaluator:
            if not options.checkpoint_every:
                raise UsageError("--evaluator: needs checkpoints to score; give --checkpoint_every STEPS too")
            for name in ("dataset", "model", "task"):
                if isinstance(value := getattr(options, name), UserObject) and not value.is_importable:
                    raise UsageError(f"--evaluator: its process cannot import --{name} {value}; define it in a module")
        if options.resume:
            from gradwire.checkpoints.folder import latest

            # One checkpoint for all ranks, whatever is written meanwhile.
            options = dataclasses.replace(options, resume=str(latest(options.resume)))
        return options

    def check(self, options: CheckpointOptions, launcher: Launcher, data: Data, model: nn.Module) -> None:
        """Check that the run can continue, be repeated, and write."""
        if options.resume or options.replay or options.checkpoint_every or options.save is not None:
            from gradwire.checkpoints.preflight import check_places, check_replay, check_resume

            if options.resume:
                check_resume(options, options.resume, sum(p.numel() for p in model.parameters() if p.requires_grad))
            if options.replay:
                check_replay(options, options.replay)
            if launcher.is_first:
                check_places(options)

    def around(self, options: CheckpointOptions, launcher: Launcher, quiet: bool) -> AbstractContextManager[Any]:
        """Hold the folder of the checkpoints while the ranks run, and score them beside."""
        if not (options.checkpoint_every and launcher.is_first):
            return nullcontext()
        from gradwire.checkpoints.beside import while_training

        return while_training(options, quiet)

    def watchers(self, options: CheckpointOptions) -> list[Watcher]:
        """Return what writes checkpoints, continues from one, saves the model and repeats an order."""
        watchers: list[Watcher] = []
        if options.checkpoint_every or options.resume:
            from gradwire.checkpoints.files import Target
            from gradwire.checkpoints.saved import Saved

            folder = options.checkpoint_folder.absolute()
            target = Target(folder, options.checkpoint_keep, options.recorded(), options.roles)
            watchers.append(Saved(target, options.checkpoint_every, options.resume))
        if options.save is not None:
            from gradwire.checkpoints.saved import SavedModel

            watchers.append(SavedModel())
        if options.replay:
            from gradwire.checkpoints.replay import Replay

            watchers.append(Replay(options.replay))
        return watchers

    def record(self, options: CheckpointOptions, record: Record) -> None:
        """Add the file of the model."""
        for content in record.found("model").values():
            record.files[str(options.save)] = content

    def summary(self, options: CheckpointOptions, facts: Mapping[str, Any]) -> list[str]:
        """Return whether there are none."""
        if options.checkpoint_every:
            from gradwire.checkpoints.folder import listed

            if not listed(options.checkpoint_folder):
                step = "the next multiple of" if options.resume else "step"
                return [f"no checkpoint was written: no writing rank came to {step} {options.checkpoint_every}"]
        return []

    def conclude(self, options: CheckpointOptions, facts: Mapping[str, Any], quiet: bool) -> None:
        """Compare a replay with its run."""
        if options.replay:
            from gradwire.checkpoints import replay

            replay.compare(options.replay, facts["parameter_hash"][REPORTER], quiet)


WING = Checkpoints()
