"""How a run goes. In a notebook: `from training import Options, run`; in a loop of your own: `launch`."""

from launchers import launch, preload
from training.options import Options
from training.run import run

__all__ = ["Options", "launch", "run"]

preload("training.preload")
preload("torch._dynamo")  # which torch's optimizers load when a user's loop makes them
