"""PowerSGD: one rank alone, several ranks, and the results of torch's own."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from gradwire.compression.powersgd import PowerSGD
from gradwire.core.records.errors import RunFailed
from gradwire.core.strategy.layout import Layout
from gradwire.core.transports.base import Transport
from tests.compression.test_all_codecs import normal, started
from tests.ranks import run

SEVERAL = Layout(("a", "bias", "deep", "b", "last"), ((30, 20), (20,), (8, 3, 5, 5), (11, 40), (2, 2)))


# One rank


@pytest.mark.parametrize("warm_start", [True, False])
def test_zeros_come_out_as_zeros_and_what_follows_is_sent(warm_start: bool) -> None:
    layout = Layout(("a", "bias"), ((6, 5), (3,)))
    end = started(PowerSGD(rank=1, warm_start=warm_start), layout)
    for _ in range(3):
        assert torch.equal(end.decode(end.encode(torch.zeros(layout.n)).data), torch.zeros(layout.n))
    steps = [end.decode(end.encode(normal(layout, 0)).data) for _ in range(100)]
    assert torch.allclose(sum(steps) / 100, normal(layout, 0), atol=0.2)


def test_only_matrices_that_become_smaller_are_coded() -> None:
    end = started(PowerSGD(rank=2), SEVERAL)
    code = end.encode(normal(SEVERAL, 0))
    decoded = end.decode(code.data)
    for name, where in zip(SEVERAL.names, SEVERAL.slices, strict=True):
        same = torch.equal(decoded[where], normal(SEVERAL, 0)[where])
        assert same == (name in ("bias", "last")), name
        assert bool(end.state_dict()["e"][where].any()) != same
    assert len(code.data) == 2 * (30 + 20) + 20 + 2 * (8 + 75) + 2 * (11 + 40) + 4


def test_what_becomes_too_large_on_the_way_is_refused() -> None:
    end = started(PowerSGD(), SEVERAL)
    vector = normal(SEVERAL, 0)
    end.encode(vector)
    vector[SEVERAL.slices[3]] *= 1e30
    end.encode(vector)
    state = end.state_dict()
    with pytest.raises(RunFailed, match="gradient of b has the value"):
        end.encode(vector)
    assert torch.equal(end.state_dict()["e"], state["e"])


# Several ranks


def bucket(vector: torch.Tensor) -> Any:
    """What torch's hook sees of a bucket of DistributedDataParallel."""
    pairs = zip(SEVERAL.slices, SEVERAL.shapes, strict=True)
    gradients = [vector[where].view(shape) for where, shape in pairs]
    return SimpleNamespace(buffer=lambda: vector, index=lambda: 0, is_last=lambda: True, gradients=lambda: gradients)


def distances_to_torch(transport: Transport, rank: int, steps: int) -> list[float]:
    """Return how far the result of each step lies from that of torch, relative to its length, for a rank of P."""
    end = started(PowerSGD(rank=rank), SEVERAL, torch.float64, rank=transport.rank)
    state = PowerSGDState(None, rank, start_powerSGD_iter=2, min_compression_rate=1, random_seed=7)
    state.iter = 2
    # Both begin with the same Q, laid where torch looks for that of the last step. It makes its columns orthonormal,
    # which leaves P Q^T as it is.
    state.q_memory_dict[0] = end.random().clone()
    state.p_memory_dict[0] = torch.zeros(rank * (30 + 8 + 11), dtype=torch.float64)

    def mean(flat: torch.Tensor) -> None:
        dist.all_reduce(flat)
        flat.div_(transport.world_size)

    distances = []
    for step in range(steps):
        vector = normal(SEVERAL, 10 * step + transport.rank, torch.float64)
        came_in = vector + end.e
        result = vector.clone()
        for flat in end.reduce(result):
            mean(flat)
        kept = end.e.clone()
        mean(came_in)
        mean(kept)
        assert torch.allclose(result + kept, came_in, rtol=1e-10, atol=1e-10), "the mean is sent or kept"
        hook = powerSGD_hook(state, bucket(vector.clone()))
        expected = hook.wait()
        distances.append(float((result - expected).norm() / expected.norm()))
    assert state.total_numel_after_compression == steps * len(end.encode(vector).data)
    return distances


@pytest.mark.xdist_group("torchrun")
@pytest.mark.parametrize("rank", [1, 3])
def test_two_ranks_get_what_torchs_hook_gives(rank: int) -> None:
    for distances in run("process_group", distances_to_torch, 2, rank, 8):
        assert max(distances) < 1e-9
