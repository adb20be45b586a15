"""The mean of the gradients that were on time; those that were late are dropped."""

from strategies import BackupWorkers
from tests.strategies.plain import PlainRun, Trajectories
from tests.strategies.plain.async_param_server import replay

OPTIONS = [{"n_backup": 1}, {"n_backup": 0}]


def plain_program(run: PlainRun, options: BackupWorkers) -> Trajectories:
    """A worker takes the batch of the step that the server says."""
    return replay(run, by_step=True)
