"""What stragglers add to a run: --slow and --jitter, by which ranks compute slowly on purpose."""

from dataclasses import dataclass, field

from torch import nn

from gradwire.core.launchers import Launcher
from gradwire.core.records.errors import UsageError
from gradwire.core.records.options import MAY_CHANGE_ALWAYS, option
from gradwire.core.training.options import Panel
from gradwire.core.training.watchers import Watcher
from gradwire.core.training.wing import Wing
from gradwire.core.workloads.data import Data


@dataclass(frozen=True, kw_only=True)
class StragglerOptions(Panel):
    """Who is slow, and how slow."""

    slow: tuple[str, ...] = field(default=(), metadata=MAY_CHANGE_ALWAYS)
    """Make ranks slow on purpose: RANK:FACTOR, such as 2:5, stretches what rank 2 computes to 5 times its time."""
    jitter: float = option(0.0, least=0, most=5, metadata=MAY_CHANGE_ALWAYS)
    """Stretch what every rank computes at random: each pass by exp(jitter |z|), z standard normal."""

    @property
    def slowdowns(self) -> dict[int, float]:
        """How many times its time each slow rank computes. Raises UsageError."""
        factors: dict[int, float] = {}
        for text in self.slow:
            try:
                rank, factor = int(text.split(":")[0]), float(text.split(":", 1)[1])
            except (ValueError, IndexError):
                raise UsageError(f"--slow {text}: must be RANK:FACTOR, such as 2:5") from None
            if not (rank >= 0 and 1 <= factor <= 1000):
                raise UsageError(f"--slow {text}: a rank from 0 on, and a factor from 1 to 1000")
            if rank in factors:
                raise UsageError(f"--slow {text}: rank {rank} is given twice; give it one factor")
            factors[rank] = factor
        return factors


def check_slow(options: StragglerOptions) -> None:
    """Check that the ranks of --slow compute; of resolved options. Raises UsageError."""
    workers = [rank for rank, role in enumerate(options.roles) if role == "worker"]
    for rank in options.slowdowns:
        if rank not in workers:
            raise UsageError(f"--slow {rank}: not a rank that computes; those are {', '.join(map(str, workers))}")


class Stragglers(Wing):
    """Ranks that compute slowly."""

    title = "stragglers"
    panel = StragglerOptions

    def check(self, options: StragglerOptions, launcher: Launcher, data: Data, model: nn.Module) -> None:
        """Check that the slow ranks are workers."""
        check_slow(options)

    def watchers(self, options: StragglerOptions) -> list[Watcher]:
        """Return what makes ranks slow."""
        if not (options.slow or options.jitter):
            return []
        from gradwire.stragglers.straggler import StragglerWatcher

        return [StragglerWatcher(options.slowdowns, options.jitter, options.seed)]


WING = Stragglers()
