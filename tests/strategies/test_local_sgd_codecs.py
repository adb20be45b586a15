"""Local SGD whose outer gradients travel as codes (SparseLoCo), or whose inner optimizer is Muon (MuLoCo)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gradwire.compression import Codec, TopK
from strategies import LocalSGD
from tests.strategies.kinds import start
from tests.strategies.loops import N_STEPS, OPTIMIZERS, Task, X, Y, make_model, trajectories

N, H, EPOCHS = 3, 3, 3
NESTEROV: dict[str, Any] = {"outer_optimizer": "nesterov"}
Code = Callable[[int, torch.Tensor], torch.Tensor]


def sparse(share: float, beta: float) -> Code:
    """What rank k sends for its outer gradient: e <- beta e + delta; of e the largest elements, which are taken out."""
    e: dict[int, torch.Tensor] = {}

    def code(k: int, delta: torch.Tensor) -> torch.Tensor:
        e[k] = beta * e.get(k, torch.zeros_like(delta)) + delta
        sent = torch.zeros_like(delta)
        largest = e[k].abs().topk(int(share * len(delta))).indices
        sent[largest] = e[k][largest]
        e[k] = e[k] - sent
        return sent

    return code


def rounds_of_a_plain_program(optimizer: str, lr: float, momentum: float, code: Code) -> torch.Tensor:
    """N models in one loop, with nothing of the strategy: torch's optimizers, inside as outside."""
    plan = Task(LocalSGD(), N, "plain").plan
    flat = torch.nn.utils.parameters_to_vector
    models = [make_model() for _ in range(N)]
    inner = [OPTIMIZERS[optimizer](list(model.parameters())) for model in models]
    before = torch.nn.Parameter(flat(make_model().parameters()).detach())
    outer = torch.optim.SGD([before], lr=lr, momentum=momentum, nesterov=momentum > 0)
    n_taken, seen = [0] * N, []
    for i in range(EPOCHS * N_STEPS):
        for k, model in enumerate(models):
            part = plan.part(1 + i // N_STEPS, i % N_STEPS, k)
            inner[k].zero_grad()
            F.cross_entropy(model(X[part]), Y[part]).backward()
            inner[k].step()
            n_taken[k] += len(part)
        if (i + 1) % H == 0:
            codes = [code(k, before.data - flat(model.parameters()).detach()) for k, model in enumerate(models)]
            before.grad = torch.stack([n * c for n, c in zip(n_taken, codes, strict=True)]).sum(0) / sum(n_taken)
            outer.step()
            for model in models:
                torch.nn.utils.vector_to_parameters(before.data.clone(), model.parameters())
            n_taken = [0] * N
        seen.append(torch.stack([flat(model.parameters()).detach() for model in models]))
    return torch.stack(seen, dim=1)


@pytest.mark.parametrize(
    ("outer", "lr", "momentum", "optimizer", "codec", "beta"),
    [
        (NESTEROV, 0.7, 0.9, "muon", None, None),
        ({}, 1.0, 0.0, "adam", TopK(density=0.25), 1.0),
        (NESTEROV, 0.7, 0.9, "adam", TopK(density=0.25, error_decay=0.9), 0.9),
    ],
)
def test_sparseloco_and_muloco_take_the_steps_of_a_plain_program(
    outer: dict[str, Any], lr: float, momentum: float, optimizer: str, codec: Codec | None, beta: float | None
) -> None:
    task = Task(LocalSGD(local_steps=H, **outer), N, optimizer, epochs=EPOCHS, codec=codec, scope="vector")
    found = torch.tensor([rank[0] for rank in start(LocalSGD, trajectories, N, [task])], dtype=torch.float64)
    expected = rounds_of_a_plain_program(
        optimizer, lr, momentum, sparse(0.25, beta) if beta else lambda _, delta: delta
    )
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)
