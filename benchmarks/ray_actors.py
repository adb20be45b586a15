"""A parameter server on Ray actors: a server actor that applies gradients and gives out weights, and worker actors that
compute gradients on weights; what they exchange goes through Ray's object store. There are two (`PEERS`): one does each
step as Ray's own example does, the other copies nothing but what Ray copies, into the store, where it reads in place.

https://docs.ray.io/en/latest/ray-core/examples/plot_parameter_server.html
"""

import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import torch.nn.functional as F
from torch import nn

Arrays = list[np.ndarray]  # one for each parameter
Weights = dict[str, Any]  # by name: tensors, or arrays
OBJECT_STORE_BYTES = 10**9
remote: Any = ray.remote  # the methods of an actor have what their class does not say


class ParameterServer:
    """The actor that has the parameters and the optimizer."""

    def __init__(self, n_threads: int, network: Callable[[], nn.Module], optimizer: Callable[..., Any]) -> None:
        _be_actor(n_threads)
        self.new_network = network
        self.new_optimizer = optimizer
        self.restart()

    def restart(self) -> None:
        """Begin with the initial parameters."""
        self.network = self.new_network()
        self.parameters = list(self.network.parameters())
        self.optimizer = self.new_optimizer(self.parameters)

    def apply_gradients(self, *gradients: Arrays) -> Weights:
        """Take one optimizer step with the mean of `gradients`; return the new weights."""
        self.optimizer.zero_grad()
        self.set_gradients(*gradients)
        self.optimizer.step()
        return self.get_weights()

    def set_gradients(self, *gradients: Arrays) -> None:
        """Give the parameters the mean of `gradients`."""
        means = [np.stack(arrays).mean(axis=0) for arrays in zip(*gradients, strict=True)]
        for parameter, mean in zip(self.parameters, means, strict=True):
            parameter.grad = torch.from_numpy(mean)

    def get_weights(self) -> Weights:
        """Return the weights, which Ray pickles into its object store."""
        return {name: tensor.cpu() for name, tensor in self.network.state_dict().items()}


class DataWorker:
    """The actor that computes gradients."""

    def __init__(
        self,
        n_threads: int,
        network: Callable[[], nn.Module],
        batch: Callable[[], tuple[torch.Tensor, torch.Tensor]],
    ) -> None:
        _be_actor(n_threads)
        self.network = network()
        self.x, self.y = batch()

    def compute_gradients(self, weights: Weights) -> Arrays:
        """Return the gradients on this worker's batch, which Ray copies into its object store."""
        self.set_weights(weights)
        self.network.zero_grad()
        loss = F.cross_entropy(self.network(self.x), self.y)
        loss.item()
        loss.backward()
        return [parameter.grad.cpu().numpy() for parameter in self.network.parameters() if parameter.grad is not None]

    def set_weights(self, weights: Weights) -> None:
        """Take over `weights`."""
        self.network.load_state_dict(weights)


class InPlaceServer(ParameterServer):
    """The server whose optimizer reads a single gradient where it lies; several, it adds up in one buffer."""

    def restart(self) -> None:
        """See ParameterServer."""
        super().restart()
        self.mean = [torch.empty_like(parameter) for parameter in self.parameters]

    def set_gradients(self, *gradients: Arrays) -> None:
        """See ParameterServer."""
        for parameter, mean, *arrays in zip(self.parameters, self.mean, *gradients, strict=True):
            first, *others = map(torch.from_numpy, arrays)
            if others:
                torch.add(first, others[0], out=mean)
                for other in others[1:]:
                    mean.add_(other)
                mean.div_(len(arrays))
            parameter.grad = mean if others else first

    def get_weights(self) -> Weights:
        """Return the weights as arrays, which Ray copies as they are, where it would pickle tensors."""
        return {name: parameter.detach().numpy() for name, parameter in self.network.named_parameters()}


class InPlaceWorker(DataWorker):
    """The worker whose parameters are the weights in the object store."""

    def set_weights(self, weights: Weights) -> None:
        """See DataWorker."""
        for name, parameter in self.network.named_parameters():
            parameter.data = torch.from_numpy(weights[name])


PEERS: dict[str, tuple[type[ParameterServer], type[DataWorker]]] = {
    "ray_example": (ParameterServer, DataWorker),
    "ray_in_place": (InPlaceServer, InPlaceWorker),
}


def _be_actor(n_threads: int) -> None:
    torch.set_num_threads(n_threads)
    # What lies in the object store is read-only, and only read.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


class RayServer:
    """One server actor and its worker actors, those of PEERS[name], as their driver sees them."""

    def __init__(
        self,
        name: str,
        n_threads: int,
        network: Callable[[], nn.Module],
        optimizer: Callable[..., Any],
        batches: Sequence[Callable[[], tuple[torch.Tensor, torch.Tensor]]],
    ) -> None:
        server, worker = PEERS[name]
        self.server = remote(server).remote(n_threads, network, optimizer)
        self.workers = [remote(worker).remote(n_threads, network, batch) for batch in batches]
        self.weights = self.server.get_weights.remote()

    def restart(self) -> None:
        """Go back to the initial parameters."""
        self.server.restart.remote()
        self.weights = self.server.get_weights.remote()

    def synchronous(self, steps: int) -> None:
        """Take `steps` updates, each with a gradient of every worker."""
        for _ in range(steps):
            gradients = [worker.compute_gradients.remote(self.weights) for worker in self.workers]
            self.weights = self.server.apply_gradients.remote(*gradients)
        ray.get(self.weights)  # raises what an actor raised

    def asynchronous(self, steps: int) -> None:
        """Take `steps` updates for each of the workers, each with the gradient that comes first."""
        to_send = steps * len(self.workers)
        under_way = {}
        for worker in self.workers:
            under_way[worker.compute_gradients.remote(self.weights)] = worker
            to_send -= 1
        while under_way:
            (gradients,), _ = ray.wait(list(under_way))
            worker = under_way.pop(gradients)
            self.weights = self.server.apply_gradients.remote(gradients)
            if to_send > 0:
                under_way[worker.compute_gradients.remote(self.weights)] = worker
                to_send -= 1
        ray.get(self.weights)  # raises what an actor raised

    def parameters(self) -> torch.Tensor:
        """Return the weights as a vector [n]."""
        return torch.from_numpy(np.concatenate([np.ravel(weight) for weight in ray.get(self.weights).values()]))


@contextmanager
def ray_started(n_actors: int) -> Iterator[None]:
    """In the block, Ray runs on this machine, with room for `n_actors`; nothing of it is left afterwards."""
    root = str(Path(__file__).resolve().parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))  # actors inherit it
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    # Under /tmp, for the names of sockets are short.
    with tempfile.TemporaryDirectory(prefix="ray_", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ray.init(
            num_cpus=n_actors,
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=folder,
        )
        try:
            yield
        finally:
            ray.shutdown()
