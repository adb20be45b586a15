"""Local SGD: its rounds are those of a plain program, and at its ends it is the ring, FedAvg and DiLoCo."""

from typing import Any

import pytest
import torch

from strategies import LocalSGD, NoCommunication, RingAllReduce, Strategy
from tests.strategies.kinds import on_ranks, start
from tests.strategies.loops import N_STEPS, Rank, Task, X, Y, make_model, trajectories

N = 3


def rounds_of_a_plain_program(H: int, lr: float, momentum: float, epochs: int) -> torch.Tensor:
    """The same, written with nothing of the strategy: N models in one loop, and DiLoCo's outer step by its formulas."""
    task = Task(LocalSGD(), N, "plain")
    x = torch.nn.utils.parameters_to_vector(make_model().parameters()).detach()
    own, before, velocity = [x.clone() for _ in range(N)], x.clone(), torch.zeros_like(x)
    n_taken, seen = [0] * N, []
    for i in range(epochs * N_STEPS):
        for k in range(N):
            part = task.plan.part(1 + i // N_STEPS, i % N_STEPS, k)
            own[k] = own[k] - 0.3 * gradient(own[k], part)
            n_taken[k] += len(part)
        if (i + 1) % H == 0:
            mean = torch.stack([x_k * n for x_k, n in zip(own, n_taken, strict=True)]).sum(0) / sum(n_taken)
            d = before - mean
            velocity = momentum * velocity + d
            before = before - lr * (d + momentum * velocity)
            own, n_taken = [before.clone() for _ in range(N)], [0] * N
        seen.append(torch.stack(own))
    return torch.stack(seen, dim=1)


def gradient(x: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    model = make_model()
    torch.nn.utils.vector_to_parameters(x, model.parameters())
    torch.nn.functional.cross_entropy(model(X[part]), Y[part]).backward()
    return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])


NESTEROV: dict[str, Any] = {"outer_optimizer": "nesterov"}


@pytest.mark.parametrize(
    ("strategy", "H", "lr", "momentum"),
    [
        (LocalSGD(local_steps=1), 1, 1.0, 0.0),
        (RingAllReduce(), 1, 1.0, 0.0),
        (LocalSGD(local_steps=3), 3, 1.0, 0.0),
        (LocalSGD(local_steps=3, outer_lr=1.0, outer_momentum=0.0, **NESTEROV), 3, 1.0, 0.0),
        (LocalSGD(local_steps=1, **NESTEROV), 1, 0.7, 0.9),
        (LocalSGD(local_steps=5, outer_lr=0.5, outer_momentum=0.5, **NESTEROV), 5, 0.5, 0.5),
        (NoCommunication(), 1000, 1.0, 0.0),
    ],
)
def test_its_rounds_are_those_of_a_plain_program(strategy: Strategy, H: int, lr: float, momentum: float) -> None:
    """With one local step and plain SGD it is the ring; with an outer step of rate 1 without momentum averaging."""
    found = [rank[0] for rank in start(type(strategy), trajectories, N, [Task(strategy, N, "plain", epochs=3)])]
    expected = rounds_of_a_plain_program(H, lr, momentum, epochs=3)
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("steps", [4, 5, 7])
def test_the_model_is_the_mean_of_the_replicas_also_in_a_round(steps: int) -> None:
    def in_the_middle(rank: Rank) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
        for i in range(steps):
            rank.take(i)
        return rank.x(), rank.strategy.model().clone(), dict(rank.transport.recorder.meters)

    found = on_ranks(Task(LocalSGD(local_steps=4), N, "plain"), in_the_middle)
    own = torch.stack([x for x, _, _ in found])
    for _, model, _ in found:
        torch.testing.assert_close(model, own.mean(0), rtol=1e-12, atol=1e-14)
    expected = ((own - own.mean(0)).square().sum(1).mean() ** 0.5 / own.mean(0).norm()).item()
    assert found[0][2]["replica_distance"] == pytest.approx(expected, rel=1e-6, abs=1e-12)
    assert (expected < 1e-12) == (steps == 4)
