"""The baseline of param_server: torch.nn.DataParallel, with the options of train.py.

python param_server_builtin.py --n_gpus 4
python -m records.compare results/*.json

DataParallel is one process: in every step its first GPU sends the parameters and a part of the batch to the others, and
collects outputs and gradients. Its batches are those of `--n_gpus` workers. Without CUDA nothing is parallel: then
it is one process on the whole batch, which it says, and which its records say.
"""

import signal
import sys

if __name__ == "__main__":  # what follows takes seconds to load, in which Ctrl-C may come
    signal.signal(
        signal.SIGINT,
        lambda *_: (print("\nerror: ended by SIGINT; nothing was written", file=sys.stderr), sys.exit(130)),
    )

import torch
from torch import nn

from strategies.builtin import Builtin
from training.cli import main
from transports.base import Transport


class BuiltinParamServer(Builtin):
    """DataParallel behind the interface of a strategy."""

    name = "param_server_builtin"
    carrier = "threads of one process"
    one_for_all = True
    bytes_are = "not counted: DataParallel copies between GPUs inside the forward and backward pass"

    @classmethod
    def roles(cls, world_size: int) -> list[str]:
        """One process, however many GPUs."""
        return ["worker"]

    @classmethod
    def remark(cls, n_gpus: int) -> str:
        """Say what is parallel here."""
        gpus = min(n_gpus, torch.cuda.device_count())
        if gpus == 0:
            return "nn.DataParallel without CUDA is one process on the whole batch: nothing is parallel."
        return f"nn.DataParallel: one process, {gpus} GPU(s)."

    def wrap(self, model: nn.Module, transport: Transport, n_gpus: int) -> nn.Module:
        """Wrap the model in DataParallel."""
        self.transport = transport
        self.original = model
        self.make_optimizer(list(model.parameters()))
        if transport.device.type == "cpu":
            return model
        return nn.DataParallel(model, list(range(min(n_gpus, torch.cuda.device_count()))))

    def step(self, n_samples: int) -> None:
        """The optimizer, on the first GPU."""
        self.update(n_samples)
        self.optimizer.zero_grad()


if __name__ == "__main__":
    sys.exit(main(__doc__, BuiltinParamServer))
