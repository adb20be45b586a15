"""What goes on beside a run that writes checkpoints: their folder is held, and they are scored."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from gradwire.checkpoints.evaluator import Evaluator
from gradwire.checkpoints.folder import in_training, listed
from gradwire.checkpoints.wing import CheckpointOptions
from gradwire.core.records.interrupts import number_of


@contextmanager
def while_training(options: CheckpointOptions, quiet: bool) -> Iterator[None]:
    """Hold the folder of the checkpoints in the block, and score them beside. Raises UsageError, RunFailed."""
    with ExitStack() as stack, _telling_what_is_written(options), ExitStack() as held:
        evaluator = None
        if options.evaluator:
            code = {"dataset": options.dataset, "model": options.model, "task": options.task}
            evaluator = stack.enter_context(Evaluator(options.checkpoint_folder, options.timeout, code))
        held.enter_context(in_training(options.checkpoint_folder))
        if evaluator:
            evaluator.start()
        yield
        held.close()
        if evaluator:
            evaluator.finish(quiet)


@contextmanager
def _telling_what_is_written(options: CheckpointOptions) -> Iterator[None]:
    """Add to the message of an interrupt of the block, unless it says more, how the run can continue."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if len(interrupt.args) < 2 and listed(folder := options.checkpoint_folder):
            text = f"no records were written; --resume {folder} continues"
            raise KeyboardInterrupt(number_of(interrupt), text) from interrupt
        raise
