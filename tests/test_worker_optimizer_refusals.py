"""A strategy as an optimizer in a script: torch's schedulers, what is refused, and loops that end too early."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradwire.compression import DGC, Codec, TopK
from gradwire.core.records.errors import RunFailed
from gradwire.core.transports.base import Transport
from strategies import (
    DGS,
    STRATEGIES,
    AsyncParamServer,
    BackupWorkers,
    Downpour,
    ParamServer,
    RingAllReduce,
    ShardedRing,
    Single,
    Strategy,
    WorkerOptimizer,
    by_name,
)
from tests.core.transports.samples import world
from tests.ranks import outcome, virtual_time
from tests.runs import SYNCHRONOUS
from tests.strategies.kinds import fit
from tests.strategies.loops import OPTIMIZERS, Task, X, Y, make_model
from tests.test_worker_optimizer import NAME, Found, train, x_of

Make = Callable[[Any], Any]  # a scheduler

# Torch's schedulers, and autocast


def steps_with(scheduler: Any, model: nn.Module, optimizer: torch.optim.Optimizer, n: int) -> Found:
    """The parameters after each step; in float32 the forward passes and losses are under autocast."""
    seen, dtype = [], x_of(model).dtype
    for _ in range(n):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
            loss = F.cross_entropy(model(X.to(dtype)), Y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        seen.append(x_of(model).tolist())
    return seen


def scheduled(
    transport: Transport, strategy: Strategy, make: Make, name: str = "momentum", dtype: torch.dtype = torch.float64
) -> Found:
    """The parameters after each step."""
    model = make_model().to(dtype)
    optimizer = WorkerOptimizer(model, transport, strategy, OPTIMIZERS[name])
    if optimizer.is_server:
        optimizer.serve()
        return []
    seen = steps_with(make(optimizer), model, optimizer, 6)
    optimizer.finish()
    return seen


STEP_LR = torch.optim.lr_scheduler.StepLR
SCHEDULERS = [
    partial(STEP_LR, step_size=2),
    partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=5),
    partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.5, total_steps=7),  # which changes the momentum too
]


@pytest.mark.parametrize("make", SCHEDULERS, ids=lambda make: make.func.__name__)
@pytest.mark.parametrize(("name", "dtype"), [("momentum", torch.float64), ("groups", torch.float32)])
@pytest.mark.parametrize("strategy", [Single(), ShardedRing()], ids=NAME)
def test_a_scheduler_of_torch_and_autocast_do_what_they_do_in_torch(
    strategy: Strategy, make: Make, name: str, dtype: torch.dtype
) -> None:
    n, model = fit(type(strategy), 3), make_model().to(dtype)
    optimizer = OPTIMIZERS[name](list(model.parameters()))
    expected = steps_with(make(optimizer), model, optimizer, 6)
    rtol, atol = (1e-10, 1e-12) if dtype == torch.float64 else (1e-4, 1e-5)
    for seen in virtual_time(n).launch(scheduled, n, strategy, make, name, dtype):
        torch.testing.assert_close(seen, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("strategy", [ParamServer(), AsyncParamServer()], ids=NAME)
def test_where_a_server_has_it_a_scheduler_is_refused(strategy: Strategy) -> None:
    with pytest.raises(RunFailed, match=r"^param_groups: with \w+ the server has the learning rate; give .* sched"):
        virtual_time(2).launch(scheduled, 2, strategy, SCHEDULERS[0])


def test_what_would_change_nothing_is_refused() -> None:
    with world(1) as (alone,):
        scheduled, plain = (
            WorkerOptimizer(make_model(), alone, Single(), OPTIMIZERS["plain"], schedule=schedule)
            for schedule in (lambda samples: 1.0, None)
        )
    assert isinstance(plain, torch.optim.Optimizer)
    assert repr(plain) == "WorkerOptimizer(Single(workers_like=1))"
    calls: list[Callable[[], Any]] = [
        partial(STEP_LR, scheduled, 1),
        partial(plain.add_param_group, {"params": [nn.Parameter(torch.zeros(1))]}),
        partial(plain.load_state_dict, {}),
    ]
    assert list(map(outcome, calls)) == [
        ("UsageError", "param_groups: schedule= sets the learning rate; give it or a scheduler, not both"),
        ("UsageError", "add_param_group: it comes too late; let optimizer= make all groups"),
        ("UsageError", "load_state_dict: give what state_dict returned as WorkerOptimizer(..., state=...)"),
    ]


# What is refused


def named(parameters: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters)


def of_others(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(make_model().parameters())


def begun(transport: Transport, strategy: Strategy, codec: Codec | None, more: dict[str, Any]) -> Any:
    given = {"optimizer": OPTIMIZERS["plain"], "codec": codec} | more
    return outcome(WorkerOptimizer, make_model(), transport, strategy, **given)


@pytest.mark.parametrize(
    ("n", "strategy", "codec", "more", "message"),
    [
        (1, ParamServer(), None, {}, "1 rank(s): param_server needs at least 2; launch more"),
        (2, Single(), None, {}, "2 ranks: single is at most 1; launch fewer"),
        (3, BackupWorkers(n_backup=2), None, {}, "n_backup=2: must be fewer than the 2 workers"),
        (2, Downpour(), TopK(), {}, "codec=topk: strategy downpour cannot carry it (gathered: codes go to"),
        (2, ParamServer(), TopK(), {"scope": "layer"}, "scope='layer': must be 'tensor' or 'vector'"),
        (2, ParamServer(), None, {"momentum": 0.9}, "momentum=0.9: no codec carries it; give it to the optimizer"),
        (2, RingAllReduce(), DGC(), {"optimizer": by_name(named)}, "optimizer=named: dgc carries the"),
        (2, RingAllReduce(), None, {"optimizer": of_others}, "optimizer=sgd: has parameters that it was not given;"),
        (2, DGS(), None, {"optimizer": OPTIMIZERS["groups"]}, "decay: dgs has one decay for all"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(
    n: int, strategy: Strategy, codec: Codec | None, more: dict[str, Any], message: str
) -> None:
    for kind, text in virtual_time(n).launch(begun, n, strategy, codec, more):
        assert kind == "UsageError"
        assert text.startswith(message)
        assert "--" not in text, "there is no command line"
        assert "\n" not in text


def wrong_role(transport: Transport) -> list[str]:
    optimizer = WorkerOptimizer(make_model(), transport, ParamServer(), OPTIMIZERS["plain"])
    if optimizer.is_server:
        found = [outcome(optimizer.step), outcome(optimizer.finish)]
        optimizer.serve()
    else:
        found = [outcome(optimizer.serve)]
        optimizer.finish()
    return [text for _, text in found]


def test_calls_of_the_other_role_are_refused() -> None:
    assert virtual_time(2).launch(wrong_role, 2) == [
        [
            f"{call}() on a rank that serves; where optimizer.is_server, call optimizer.serve()"
            for call in ("step", "finish")
        ],
        ["serve() on a worker; call it where optimizer.is_server"],
    ]


# Loops that end too early


def loop(transport: Transport, strategy: Strategy, steps: list[int], finishes: bool, norm: bool) -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7) if norm else nn.Tanh(), nn.Linear(7, 3)).double()
    make = Task(strategy, transport.world_size, "plain").suited_optimizer
    optimizer = WorkerOptimizer(model, transport, strategy, make)
    train(optimizer, model, [torch.arange(len(X))] * steps[transport.rank], finishes=finishes)


IN_STEP = [
    strategy for name, strategy in SYNCHRONOUS.items()
    if name in STRATEGIES and name != "single" and "server" not in strategy.roles(3)
]  # fmt: skip


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("strategy", IN_STEP, ids=NAME)
def test_a_rank_that_takes_fewer_steps_than_the_others_is_told(strategy: Strategy, norm: bool) -> None:
    with pytest.raises(RunFailed) as caught:
        virtual_time(3).launch(loop, 3, strategy, [3, 2, 3], True, norm)
    assert "in a loop of your own every rank must take the same number of steps" in str(caught.value)
    assert "Traceback" not in str(caught.value)


FORGETFUL = [RingAllReduce(), ParamServer(), BackupWorkers(), AsyncParamServer(), Downpour(), Single()]


@pytest.mark.parametrize("strategy", FORGETFUL, ids=NAME)
def test_a_forgotten_finish_is_noticed(strategy: Strategy) -> None:
    n = fit(type(strategy), 3)
    with pytest.raises(RunFailed, match=r"rank \d ended after step\(\) without finish\(\), which sends what is unsent"):
        virtual_time(n).launch(loop, n, strategy, [2] * 3, False, False)
