"""What a trainer is expected to have, beside plain PyTorch: the same parameters after each step."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector

from checkpoints import files
from checkpoints.folder import listed
from records.errors import RunFailed, UsageError
from strategies.single import Single
from tests.runs import n_gpus_of, small, strategy_of
from tests.strategies.runs import made
from training import Options
from training.checks import resolve
from training.optimizers import schedule
from training.precision import Precision
from training.preflight import prepare
from workloads import models

Parameters = list[tuple[str, nn.Parameter]]
Make = Callable[[Parameters], torch.optim.Optimizer]
ADAMW: dict[str, Any] = {"optimizer": "adamw", "lr": 0.01}
MODEL: dict[str, Any] = {"model": "tests.workload:embedding", "checkpoint_every": 1, "checkpoint_keep": 1000}


def groups(named: Parameters) -> torch.optim.Optimizer:
    """Return an optimizer of two groups: for `--optimizer tests.training.test_trainer:groups`."""
    last = [p for name, p in named if name.startswith("4.")]
    return torch.optim.AdamW([{"params": last, "lr": 0.05}, {"params": [p for _, p in named][: -len(last)]}], lr=0.01)


def adamw(named: Parameters, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for _, p in named], lr=0.01, betas=(0.9, 0.999), **{"weight_decay": 0.0} | options)


def without_vectors(named: Parameters) -> torch.optim.Optimizer:
    matrices, vectors = ([p for _, p in named if (p.dim() >= 2) is of] for of in (True, False))
    return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.3}, {"params": vectors, "weight_decay": 0}], 0.01)


class Both:
    """Muon for the matrices but the embedding, and AdamW for the rest, as two optimizers."""

    def __init__(self, named: Parameters) -> None:
        hidden = [(name, p) for name, p in named if p.dim() == 2 and name != "1.weight"]
        others = [p for name, p in named if p.dim() != 2 or name == "1.weight"]
        muon = torch.optim.Muon(hidden, 0.01, weight_decay=0.1, momentum=0.9, adjust_lr_fn="match_rms_adamw")
        self.parts = muon, torch.optim.AdamW(others, 0.01, weight_decay=0.1)

    def step(self) -> None:
        for part in self.parts:
            part.step()


def plain(options: Options, make: Callable[[Parameters], Any]) -> list[torch.Tensor]:
    """Train as the options say, with nothing but torch: x after each step."""
    data, options = prepare(options), resolve(options)
    plan, n_steps = options.plan(data.n_train), options.plan(data.n_train).n_steps
    model = models.seeded(options.model, data, options.seed, options.torch_dtype).train()
    optimizer = make(list(model.named_parameters()))
    factor = schedule(options.lr_schedule, options.epochs * data.n_train, round(options.warmup * data.n_train))
    ends = torch.tensor([[plan.bounds(i)[1] - data.n_train for i in range(n_steps)]] * options.epochs)
    ends = (ends + data.n_train * torch.arange(1, options.epochs + 1)[:, None]).flatten().tolist()
    middles = [(before + after) / 2 for before, after in zip([0, *ends], [*ends, 0], strict=True)]
    of_step = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: factor(middles[i])) if options.warmup else None
    seen = []
    for i in range(options.epochs * n_steps):
        epoch, step = 1 + i // n_steps, i % n_steps
        n = len(plan.part(epoch, step))
        parts = (
            [plan.part(epoch, step, k) for k in range(plan.workers)] if plan.workers > 1 else [plan.part(epoch, step)]
        )
        model.zero_grad()
        for part in parts:
            for piece in part.tensor_split(min(options.accumulate, len(part))):
                x, y = data.fetch(piece, dtype=options.torch_dtype)
                with torch.autocast("cpu", torch.bfloat16, enabled=options.amp == "bf16"):
                    loss = F.cross_entropy(model(x), y) * (len(piece) / n)
                loss.backward()
        if options.clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), options.clip_norm)
        optimizer.step()
        if of_step:
            of_step.step()
        seen.append(parameters_to_vector(model.parameters()).detach().clone())
    return seen


def trained(folder: Path, strategy: str, **changes: Any) -> tuple[list[torch.Tensor], Options]:
    """x after each step, of a checkpoint of each, and the options."""
    given = MODEL | {"n_gpus": n_gpus_of(strategy, 2), "epochs": 2} | changes
    made(folder, "run", strategy_of(strategy), **given)
    states = [files.load_rank(path, 0)["strategy"]["x"] for path in listed(folder / "run.checkpoints")]
    return states, small(folder, strategy, run_name="plain", **given)


CASES: dict[str, tuple[dict[str, Any], Callable[[Parameters], Any]]] = {
    "bf16": (ADAMW | {"amp": "bf16"}, adamw),
    "bf16 accumulated": (ADAMW | {"amp": "bf16", "accumulate": 3}, adamw),
    "clip_norm": (ADAMW | {"clip_norm": 0.05, "accumulate": 2}, adamw),
    "warm-up": (ADAMW | {"lr_schedule": "cosine", "warmup": 0.7}, adamw),
    "matrices": (ADAMW | {"weight_decay": 0.3, "decay": "matrices"}, without_vectors),
    "all": (ADAMW | {"weight_decay": 0.3}, partial(adamw, weight_decay=0.3)),
    "groups": ({"optimizer": f"{__name__}:groups", "lr_schedule": "step", "warmup": 0.5, "clip_norm": 0.1}, groups),
    "muon": (ADAMW | {"optimizer": "muon", "weight_decay": 0.1, "clip_norm": 0.1}, Both),
    "adafactor": (ADAMW | {"optimizer": "adafactor"}, lambda named: torch.optim.Adafactor([p for _, p in named], 0.01,
                                                                                         weight_decay=0.0)),
}  # fmt: skip
STRATEGIES = ("single", "ring_all_reduce", "sharded_ring", "param_server", "sharded_param_server")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("case", CASES)
def test_each_step_is_that_of_plain_pytorch(tmp_path: Path, strategy: str, case: str) -> None:
    changes, make = CASES[case]
    # In bf16 and in float32 the order of the sums shows; one process has torch's.
    exact = "amp" not in changes
    changes = {**changes, "dtype": "float64"} if exact and case != "muon" else changes
    seen, options = trained(tmp_path, strategy, **{"lr": Options().lr} | changes)
    expected = plain(options, make)
    assert len(seen) == len(expected) > 10
    assert not torch.allclose(seen[0], seen[-1], rtol=1e-3)
    tolerance = {"rtol": 1e-9, "atol": 1e-11} if changes.get("dtype") else {"rtol": 1e-3, "atol": 1e-4}
    for ours, torchs in zip(seen, expected, strict=True):
        torch.testing.assert_close(ours, torchs, **tolerance if strategy != "single" else {"rtol": 0, "atol": 1e-12})
