"""The options of what is kept to continue from."""

from dataclasses import dataclass, field

from gradwire.core.records.options import MAY_CHANGE, OF_THIS_RUN


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """What is kept to continue from."""

    checkpoint_every: int = field(default=0, metadata=OF_THIS_RUN)
    """Write a checkpoint every N steps; 0: never."""
    checkpoint_dir: str | None = field(default=None, metadata=OF_THIS_RUN)
    """Where checkpoints are written. Default: RESULTS_DIR/RUN_NAME.checkpoints."""
    checkpoint_keep: int = field(default=3, metadata=OF_THIS_RUN)
    """How many checkpoints are kept, the newest."""
    evaluator: bool = field(default=False, metadata=OF_THIS_RUN)
    """Start evaluate.py beside the training: it scores each checkpoint as it appears, on one core."""
    resume: str | None = field(default=None, metadata={MAY_CHANGE: "on resume"})
    """Continue from this checkpoint, or from the newest in this folder, with the options that it was made with."""
