"""The baseline of param_server: torch.nn.DataParallel, with the options of train.py.

python param_server_builtin.py --n_gpus 4
python -m gradwire compare results/*.json

DataParallel is one process: in every step its first GPU sends the parameters and a part of the batch to the others, and
collects outputs and gradients. Its batches are those of `--n_gpus` workers. Without CUDA nothing is parallel: then
it is one process on the whole batch, which it says, and which its records say.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from gradwire import command_line
from gradwire.baselines.builtin import Builtin
from gradwire.core.strategy.traits import NOTHING, Cost


@dataclass(kw_only=True)
class BuiltinParamServer(Builtin):
    """torch.nn.DataParallel: one process whose GPUs compute on parts of each batch."""

    name = "param_server_builtin"
    transport_name = "threads of one process"
    single_process = True
    bytes_source = "not counted: DataParallel copies between GPUs inside the forward and backward pass"

    def cost(self, kind: str | None = None) -> Cost:
        """No message of a transport."""
        return Cost(worker=NOTHING)

    def roles(self, world_size: int) -> list[str]:
        """One process, however many GPUs."""
        return ["worker"]

    def count_workers(self, n_gpus: int) -> int:
        """Return the number of workers whose batches it takes."""
        return n_gpus

    def notice(self, n_gpus: int) -> str:
        """Return one line that names what runs in parallel."""
        gpus = min(n_gpus, torch.cuda.device_count())
        if gpus == 0:
            return "nn.DataParallel without CUDA is one process on the whole batch: nothing is parallel."
        return f"nn.DataParallel: one process, {gpus} GPU(s)."

    def parallel(self, model: nn.Module, n_gpus: int) -> nn.Module:
        """Wrap the model in DataParallel."""
        if self.transport.device.type == "cpu":
            return model
        return nn.DataParallel(model, list(range(min(n_gpus, torch.cuda.device_count()))))

    def step(self, n_samples: int) -> None:
        """The optimizer, on the first GPU."""
        self.updater.step(None, n_samples)
        self.updater.optimizer.zero_grad()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return command_line.main(arguments, BuiltinParamServer(), __doc__ or "")
