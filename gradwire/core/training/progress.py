"""The progress of a run: the reports of the rank that evaluates, and the bar that shows them."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tqdm import tqdm

from gradwire.core.strategy.traits import choice_of
from gradwire.core.training.watchers import Watcher

if TYPE_CHECKING:
    from gradwire.core.training.rank import Rank

REPORTER = 0  # evaluates the model, which is the same on every rank, and reports the progress; it must not die
_REPORT_S = 0.1


@dataclass(frozen=True)
class Report:
    """A rank's report to the launching process; None: nothing new.

    `steps`: taken so far; `score`: of the epoch, its name and value; `choice`: between algorithms, in words.
    """

    steps: int | None = None
    score: tuple[str, float] | None = None
    choice: str | None = None


class Progress(Watcher):
    """Reports the progress of the run: at intervals, and when an epoch ends."""

    def __init__(self) -> None:
        self._reported = 0.0

    def after_start(self, rank: "Rank") -> None:
        """Report a choice, if there was one."""
        if choice := choice_of(rank.strategy):
            rank.report(Report(choice=choice.text()))

    def end_step(self, rank: "Rank", step: int) -> None:
        """Report how many steps of the whole run the samples processed so far are worth."""
        if rank.transport.now() - self._reported > _REPORT_S:
            self._reported = rank.transport.now()
            rank.report(Report(_steps_done(rank)))

    def end_steps(self, rank: "Rank", epoch: int) -> None:
        """Report the steps of the epoch."""
        rank.report(Report(max(epoch * rank.plan.n_steps, _steps_done(rank))))

    def end_epoch(self, rank: "Rank", score: tuple[str, float] | None) -> None:
        """Report the score."""
        rank.report(Report(score=score))


def _steps_done(rank: "Rank") -> int:
    done = round(rank.plan.n_steps * rank.strategy.updater.processed / (rank.data.n_train * rank.per_sample))
    return min(done, rank.plan.n_steps * rank.options.epochs)


class ProgressBar(tqdm):
    """One progress bar, in the process that gets the results, for all ranks."""

    def __init__(self, n_steps: int, name: str, clock: Callable[[], float] | None, quiet: bool) -> None:
        super().__init__(total=n_steps, unit="step", disable=quiet, leave=False, desc=name)
        self._clock = clock
        self._score = ""

    def __call__(self, rank: int, report: Report) -> None:
        """Show the report of a rank."""
        if report.choice and not self.disable:
            self.write(f"takes {report.choice}", file=sys.stderr)
        if report.score:
            name, score = report.score
            self._score = f"test {name.replace('_', ' ')} {score:.4f}"
        time = [f"{self._clock():.3g} virtual s"] if self._clock else []
        self.set_postfix_str(", ".join([*time, *filter(None, [self._score])]), refresh=False)
        if report.steps is not None:
            self.update(report.steps - self.n)
        else:
            self.refresh()
