"""An order as a run on the disk: `gradwire page` shows it, `explore.py --replay` or `train.py --replay` repeats it.

It has the records of a run of `train.py` with the same strategy on `every_order.problem`, and the decisions.
"""

import dataclasses
import tempfile
from datetime import datetime
from pathlib import Path

from gradwire.core.launchers.launcher import Launcher
from gradwire.core.records.errors import UsageError
from gradwire.core.training.rank import result_of
from gradwire.core.training.report import write
from gradwire.core.workloads import datasets
from gradwire.every_order.report import Counterexample
from gradwire.every_order.runs import Case, Run, run_once
from gradwire.every_order.scheduler import Option
from gradwire.every_order.search import repeat
from gradwire.recorded import options_from
from gradwire.results import load_metadata

_OF_CASE = ("steps", "epochs", "own_steps", "seed", "dies")


def save(example: Counterexample[Run], results_dir: str) -> tuple[str, str | None]:
    """Write an order as RESULTS_DIR/RUN_NAME; return that, and why train.py cannot repeat it (None: it can).

    Raises UsageError, RunFailed.
    """
    case, happened = example.run.case, example.run.happened
    name = f"{case.strategy.name.replace(':', '.')}-order-{datetime.now():%Y%m%d-%H%M%S-%f}"
    options = dataclasses.replace(case.options, results_dir=results_dir, run_name=name)
    data = datasets.load(options)
    kept = {field: getattr(case, field) for field in _OF_CASE} | {"happened": happened, "broken": example.broken}
    launcher = Launcher("every order", lambda job: [], "ordered", processes=False, facts={"order": kept})
    with tempfile.TemporaryDirectory() as folder:
        run = run_once(case, repeat(happened), reduced=False, events=Path(folder))
        begun = [rank for rank in run.ranks if hasattr(rank, "replica")]
        results = [result_of(rank.strategy, rank.replica, rank) for rank in begun]
        write(options, results, data, launcher)
    return f"{results_dir}/{name}", _why_not_replayed(run)


def _why_not_replayed(run: Run) -> str | None:
    """Return why `train.py --replay` cannot repeat a run; None: it can."""
    case = run.case
    if case.dies or not run.has_ended:
        return "it does not end, or a rank dies"
    if {rank for rank, _ in run.happened} - {0} or case.roles[0] != "server":
        return "ranks other than a server choose"
    if case.own_steps or (case.ends_by_samples and case.steps % case.workers):
        return "there an epoch has the gradients of whole steps"
    return None


def load(path: str, strategy: str | None = None) -> tuple[Case, list[Option], str]:
    """Return the case of a saved order, its decisions, and the invariant that fails. Raises UsageError.

    `strategy` is the name on the command line, which the order must have; None: there is none.
    """
    file = Path(f"{path.removesuffix('.json')}.json")
    try:
        metadata = load_metadata(file)
        order = metadata["order"]
        recorded = metadata["options"]
        if strategy not in (None, recorded["strategy"]):
            raise UsageError(f"--strategy {strategy}: {file} is an order of {recorded['strategy']}; leave it out")
        options = options_from(recorded, f"--replay {file}", given={"strategy": strategy})
        dies = order["dies"] and tuple(order["dies"])
        case = Case(options.strategy, options.n_gpus, **{field: order[field] for field in _OF_CASE} | {"dies": dies})
        return case, [(rank, tuple(choice)) for rank, choice in order["happened"]], order["broken"]
    except UsageError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--replay {path}: {file} is not an order that explore.py has saved ({error})") from error
