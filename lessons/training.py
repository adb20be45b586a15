"""Train a network by a student's functions, in virtual time, beside one process that takes the same batches."""

import tempfile
from typing import Any

import simulate
from lessons.report import Report
from records import tables
from records.errors import RunFailed
from strategies import Strategy
from training import Options, run
from training.names import make_strategy
from virtual_time.cluster import ClusterOptions

EPOCHS = 5


def train(report: Report, strategy: Strategy, n_gpus: int = 4, **changes: Any) -> str:
    """Return in two lines the held-out accuracy on the digits, of `strategy` on `n_gpus` ranks and of one process.

    `changes` are options of both runs. Only if `report` says that the functions are right: a training by others could
    hang. Raises RunFailed.
    """
    if not report.right:
        return "not trained: first have the check say that it is right"
    with tempfile.TemporaryDirectory() as folder:
        one = make_strategy("single", workers_like=strategy.count_workers(n_gpus))
        alone = run(
            Options(strategy=one, n_gpus=1, epochs=EPOCHS, device="cpu", results_dir=folder, **changes), quiet=True
        )
        options = Options(strategy=strategy, n_gpus=n_gpus, epochs=EPOCHS, results_dir=folder,
                          bandwidth="1gbit", latency="50us", **changes)  # fmt: skip
        try:
            yours = simulate.simulate(options, ClusterOptions(compute="10ms"), quiet=True).table
        except RunFailed as error:
            raise RunFailed(f"right in the check, but not in training: {str(error).splitlines()[0]}") from error
    lines = []
    for name, table in ((f"{n_gpus} ranks, by yours", yours), ("one process", alone)):
        accuracy = tables.totals(table)["test_accuracy"]
        assert accuracy is not None, "every epoch is evaluated"
        lines.append(f"{name:<18}  {100 * accuracy:.1f} % of the held-out digits after {EPOCHS} epochs")
    return "\n".join(lines)
