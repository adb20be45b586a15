"""A parameter server on Ray actors, as Ray's own example has it: a server actor that applies gradients and gives out
weights, and worker actors that compute gradients on weights. What it exchanges are lists of NumPy arrays in Ray's
object store, read in place.

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
        self.parameters = list(self.new_network().parameters())
        self.mean = [torch.empty_like(parameter) for parameter in self.parameters]
        self.optimizer = self.new_optimizer(self.parameters)

    def apply_gradients(self, *gradients: Arrays) -> Arrays:
        """Take one optimizer step with the mean of `gradients`; return the new weights."""
        for parameter, mean, *arrays in zip(self.parameters, self.mean, *gradients, strict=True):
            first, *others = map(torch.from_numpy, arrays)
            if others:
                torch.add(first, others[0], out=mean)
                for other in others[1:]:
                    mean.add_(other)
                mean.div_(len(arrays))
            parameter.grad = mean if others else first
        self.optimizer.step()
        return self.get_weights()

    def get_weights(self) -> Arrays:
        """Return the weights, which Ray copies into its object store."""
        return [parameter.detach().numpy() for parameter in self.parameters]


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
        self.parameters = list(self.network.parameters())
        self.x, self.y = batch()

    def compute_gradients(self, weights: Arrays) -> Arrays:
        """Return the gradients on this worker's batch, which Ray copies into its object store."""
        for parameter, array in zip(self.parameters, weights, strict=True):
            parameter.data = torch.from_numpy(array)
        self.network.zero_grad()
        loss = F.cross_entropy(self.network(self.x), self.y)
        loss.item()
        loss.backward()
        return [parameter.grad.numpy() for parameter in self.parameters if parameter.grad is not None]


def _be_actor(n_threads: int) -> None:
    torch.set_num_threads(n_threads)
    # What lies in the object store is read-only, and only read.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


class RayServer:
    """One server actor and its worker actors, as their driver sees them."""

    def __init__(
        self,
        n_threads: int,
        network: Callable[[], nn.Module],
        optimizer: Callable[..., Any],
        batches: Sequence[Callable[[], tuple[torch.Tensor, torch.Tensor]]],
    ) -> None:
        self.server = remote(ParameterServer).remote(n_threads, network, optimizer)
        self.workers = [remote(DataWorker).remote(n_threads, network, batch) for batch in batches]
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
        return torch.from_numpy(np.concatenate([array.reshape(-1) for array in ray.get(self.weights)]))


@contextmanager
def ray_started(n_actors: int) -> Iterator[None]:
    """Have Ray on this machine, with room for `n_actors`, and nothing of it left afterwards."""
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
