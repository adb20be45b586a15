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

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from strategies import Strategy
from strategies.replica import copy_into
from training.cli import main
from transports.base import Transport


class BuiltinParamServer(Strategy):
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

    def parameters(self) -> torch.Tensor:
        """The parameters [n]."""
        return parameters_to_vector(p for p in self.original.parameters() if p.requires_grad).detach()

    def buffers(self) -> list[torch.Tensor]:
        """The floating-point buffers."""
        return [b for b in self.original.buffers() if b.is_floating_point()]

    def state_dict(self) -> dict[str, Any]:
        """As the strategies': parameters x and buffers b as vectors."""
        b = torch.cat([b.reshape(-1) for b in self.buffers()]) if self.buffers() else torch.empty(0)
        return {
            "x": self.parameters(),
            "b": b,
            "optimizer": self.optimizer.state_dict(),
            "samples": self.samples,
            "processed": self.processed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`."""
        copy_into([p for p in self.original.parameters() if p.requires_grad], state["x"])
        copy_into(self.buffers(), state["b"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.samples, self.processed = state["samples"], state["processed"]

    def model(self) -> torch.Tensor:
        """The parameters are the model."""
        return self.parameters()


if __name__ == "__main__":
    sys.exit(main(__doc__, BuiltinParamServer))
