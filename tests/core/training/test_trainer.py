"""What a trainer is expected to have, beside plain PyTorch: the same parameters after each step."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector

from gradwire import Options
from gradwire.checkpoints import files
from gradwire.checkpoints.folder import listed
from gradwire.core.records.errors import RunFailed
from gradwire.core.training.checks import prepare, resolve
from gradwire.core.training.computing import Precision
from gradwire.core.workloads import models
from gradwire.core.workloads.data import Request
from gradwire.language.task import IGNORED
from tests.runs import n_gpus_of, small, strategy_of
from tests.strategies.runs import made

Parameters = list[tuple[str, nn.Parameter]]
MORE: dict[str, Any] = {"lr": Options().lr}
ADAMW: dict[str, Any] = {"optimizer": "adamw", "lr": 0.01}
MODEL: dict[str, Any] = {"model": "tests.workload:embedding", "checkpoint_every": 1, "checkpoint_keep": 1000}


def split(named: Parameters, first: Callable[[str, nn.Parameter], bool]) -> list[list[nn.Parameter]]:
    return [[p for name, p in named if first(name, p) is of] for of in (True, False)]


def groups(named: Parameters) -> torch.optim.Optimizer:
    first, others = split(named, lambda name, p: name.startswith("1."))
    made: list[dict[str, Any]] = [{"params": first, "lr": 0.05, "weight_decay": 0.3}, {"params": others}]
    return torch.optim.AdamW(made, lr=0.01)


def without_vectors(named: Parameters) -> torch.optim.Optimizer:
    matrices, vectors = split(named, lambda name, p: p.dim() >= 2)
    return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.3}, {"params": vectors, "weight_decay": 0}], 0.01)


class Both:
    """Muon for the matrices but the embedding, and AdamW for the rest, as two optimizers."""

    def __init__(self, named: Parameters) -> None:
        hidden, others = split(named, lambda name, p: p.dim() == 2 and name != "1.weight")
        muon = torch.optim.Muon(hidden, 0.01, weight_decay=0.1, momentum=0.9, adjust_lr_fn="match_rms_adamw")
        self.parts = muon, torch.optim.AdamW(others, 0.01, weight_decay=0.1)

    def step(self) -> None:
        for part in self.parts:
            part.step()


adamw = partial(torch.optim.AdamW, lr=0.01, weight_decay=0.0)


def plain(options: Options, make: Callable[[Parameters], Any]) -> list[torch.Tensor]:
    """Train as the options say, with nothing but torch: x after each step. A loss is a mean over what has a target."""
    data, options = prepare(options), resolve(options)
    plan, seen, of_sample = options.plan(data.n_train), [], data.n_per_sample
    model = models.seeded(options.model, data, options.seed, options.torch_dtype).train()
    optimizer = make(list(model.named_parameters()))
    factor = options.make_schedule(data.n_train * of_sample)
    steps = [(epoch, step) for epoch in range(options.epochs) for step in range(plan.n_steps)]
    whole = [data.raw(Request(plan.part(epoch + 1, step)))[1] for epoch, step in steps]
    counts = [int((y != IGNORED).sum()) for y in whole]
    starts = [(epoch * data.n_train + plan.bounds(step)[0]) * of_sample for epoch, step in steps]
    middles = [start + n / 2 for start, n in zip(starts, counts, strict=True)] + [0.0]
    of_step = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: factor(middles[i])) if factor else None
    for (epoch, step), n in zip(steps, counts, strict=True):
        model.zero_grad()
        for worker in range(plan.workers) if plan.workers > 1 else (None,):
            part = plan.part(epoch + 1, step, worker)
            for piece in part.tensor_split(min(options.accumulate, len(part))):
                x, y = data.fetch(piece, dtype=options.torch_dtype)
                with torch.autocast("cpu", torch.bfloat16, enabled=options.amp == "bf16"):
                    loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten()) * (int((y != IGNORED).sum()) / n)
                loss.backward()
        if options.clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), options.clip_norm)
        optimizer.step()
        if of_step:
            of_step.step()
        seen.append(parameters_to_vector(model.parameters()).detach().clone())
    return seen


def trained(folder: Path, strategy: str, **changes: Any) -> tuple[list[torch.Tensor], Options]:
    given = MODEL | {"n_gpus": n_gpus_of(strategy, 2), "epochs": 2} | changes
    made(folder, "run", strategy_of(strategy), **given)
    states = [files.load_rank(path, 0)["model"] for path in listed(folder / "run.checkpoints")]
    return states, small(folder, strategy, run_name="plain", **given)


CASES: dict[str, tuple[dict[str, Any], Callable[[Parameters], Any]]] = {
    "bf16": (ADAMW | {"amp": "bf16"}, adamw),
    "bf16 accumulated": (ADAMW | {"amp": "bf16", "accumulate": 3}, adamw),
    "clip_norm": (ADAMW | {"clip_norm": 0.05, "accumulate": 2}, adamw),
    "warm-up": (ADAMW | {"lr_schedule": "cosine", "warmup": 0.7}, adamw),
    "matrices": (ADAMW | {"weight_decay": 0.3, "decay": "matrices"}, without_vectors),
    "groups": ({"optimizer": f"{__name__}:groups", "lr_schedule": "step", "warmup": 0.5, "clip_norm": 0.1}, groups),
    "muon": (ADAMW | {"optimizer": "muon", "weight_decay": 0.1, "clip_norm": 0.1}, Both),
    "adafactor": (ADAMW | {"optimizer": "adafactor"}, partial(torch.optim.Adafactor, lr=0.01, weight_decay=0.0)),
}  # fmt: skip
STRATEGIES = {  # and the cases that are tried by default
    "single": ("bf16", "matrices", "adafactor"),
    "ring_all_reduce": ("bf16 accumulated", "warm-up", "groups", "muon"),
    "param_server": ("clip_norm", "groups", "muon"),
    "sharded_ring": ("groups", "muon"),
    "sharded_param_server": ("groups", "muon"),
}
PAIRS = [
    pytest.param(strategy, case, marks=() if case in some else pytest.mark.exhaustive)
    for strategy, some in STRATEGIES.items()
    for case in CASES
]


@pytest.mark.parametrize(("strategy", "case"), PAIRS)
def test_each_step_is_that_of_plain_pytorch(tmp_path: Path, strategy: str, case: str) -> None:
    changes, make = CASES[case]
    in_half = "amp" in changes  # in which another order of the sums shows
    seen, options = trained(tmp_path, strategy, **MORE | changes | ({} if in_half else {"dtype": "float64"}))
    expected = plain(options, make)
    assert len(seen) == len(expected) > 10
    assert not torch.allclose(seen[0], seen[-1], rtol=1e-3)
    rtol, atol = (1e-3, 1e-4) if in_half and strategy != "single" else (1e-9, 1e-11)
    for ours, torchs in zip(seen, expected, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=rtol, atol=atol)


SEVERAL = ("async_param_server", "easgd", "fully_sharded", "gossip", "hogwild", "local_sgd", "overlapped_ring")


@pytest.mark.parametrize(
    ("strategy", "case"), [("sharded_ring", "muon"), ("param_server", "groups"), ("hogwild", "adafactor")]
)
def test_a_resumed_run_has_the_state_of_each_tensor(tmp_path: Path, strategy: str, case: str) -> None:
    given = MORE | CASES[case][0] | {"epochs": 2, "n_gpus": 1 if strategy == "hogwild" else n_gpus_of(strategy, 2)}
    whole, _ = trained(tmp_path, strategy, **given)
    fourth = str(listed(tmp_path / "run.checkpoints")[3])
    made(tmp_path, "rest", strategy_of(strategy), **MODEL | given, resume=fourth)
    rest = [files.load_rank(path, 0)["model"] for path in listed(tmp_path / "rest.checkpoints")]
    assert len(rest) == len(whole) - 4
    assert all(torch.equal(x, y) for x, y in zip(rest, whole[4:], strict=True))


@pytest.mark.parametrize("factor", [16.0, math.inf])
def test_a_gradient_that_is_not_finite_is_computed_again_with_a_smaller_scale(factor: float) -> None:
    w, precision, passes = nn.Parameter(torch.ones(2)), Precision("fp16", torch.device("cpu")), 0

    def try_again() -> bool:
        precision.scaler.scale((w * factor).sum()).backward()
        assert w.grad is not None
        w.grad = w.grad.half().float()
        return precision.unscale([w])

    if factor == math.inf:
        with pytest.raises(RunFailed, match=r"not finite in float16, however small its scale; take --amp bf16"):
            any(try_again() for _ in range(100))
        return
    while not try_again():
        assert w.grad is None
        passes += 1
    assert w.grad is not None
    assert (w.grad.tolist(), passes) == ([16.0, 16.0], 5), "2 ** 11 is the first scale with which it is below 65504"
    resumed = Precision("fp16", torch.device("cpu"))
    resumed.scaler.load_state_dict(precision.scaler.state_dict())
    assert resumed.scaler.scale(torch.ones(())).item() == 2**11


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", ["single", "ring_all_reduce", "async_param_server"])
def test_float16_with_a_scaler_learns_on_a_gpu(tmp_path: Path, strategy: str) -> None:
    given = MODEL | MORE | {"device": "cuda", "epochs": 6, "n_gpus": n_gpus_of(strategy, 2), "lr": 0.1}
    half, wide = (made(tmp_path, amp, strategy_of(strategy), True, amp=amp, **given) for amp in ("fp16", "none"))
    assert half["test_accuracy"] > 0.9
    assert half["parameter_hash"] != wide["parameter_hash"]
