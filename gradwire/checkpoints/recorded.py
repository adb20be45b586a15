"""The options of the checkpoint or run that --resume or --replay names."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from gradwire.arguments import value_of
from gradwire.checkpoints import files, replay
from gradwire.checkpoints.folder import latest
from gradwire.core.records.options import OF_THIS_RUN
from gradwire.options import Options
from gradwire.recorded import NAMING_CODE, naming, options_from


def recorded(arguments: Sequence[str], builtin: Any) -> Options | None:
    """Return them, if the command line names one. Raises UsageError."""
    named = {option: value_of(f"--{option}", arguments) for option in NAMING_CODE}
    if path := value_of("--resume", arguments):
        checkpoint = latest(path)
        with naming("--resume"):
            new = ["launcher", "scheduler"]
            return options_from(files.load_run(checkpoint)["options"], checkpoint / "run.json", builtin, new, named)
    if path := value_of("--replay", arguments):
        fields = dataclasses.fields(Options)
        new = [entry.name for entry in fields if OF_THIS_RUN.items() <= entry.metadata.items()]
        former = replay.load(path).options
        with naming("--replay"):
            return options_from(former, path, builtin, new, named)
    return None
