"""A strategy as an optimizer in a script: it is what the strategy does by hand, and says what is wrong."""

import dataclasses
import operator
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector

from compression import Codec, Setting
from compression.dgc import DGC
from compression.fp16 import Float16
from compression.powersgd import PowerSGD
from compression.qsgd import QSGD
from compression.topk import TopK
from records.errors import RunFailed, UsageError
from strategies import STRATEGIES, Replica, Strategy
from strategies.all_reduce.ring_all_reduce import RingAllReduce
from strategies.all_reduce.sharded_ring import ShardedRing
from strategies.asynchronous_server.async_param_server import AsyncParamServer
from strategies.asynchronous_server.dgs import DGS
from strategies.asynchronous_server.downpour import Downpour
from strategies.asynchronous_server.inconsistent_reads import InconsistentReads
from strategies.common.coding import codec_factory
from strategies.common.descent import OptimizerFactory
from strategies.common.worker_optimizer import WorkerOptimizer
from strategies.single import Single
from strategies.synchronous_server.backup_workers import BackupWorkers
from strategies.synchronous_server.param_server import ParamServer
from strategies.synchronous_server.sharded_param_server import ShardedParamServer
from tests.ranks import LIMIT, launch, outcome, virtual_time, wait_until
from tests.runs import IN_MEMORY, SYNCHRONOUS
from tests.strategies.loops import N_STEPS, OPTIMIZERS, Task, X, Y, accuracy, fit, make_model, start
from transports.base import Transport

EPOCHS = 2
MORE: dict[str, Any] = {"clip_norm": 1.0, "schedule": lambda processed: 1 / (1 + processed / 50)}
Found = list[torch.Tensor]
NAME = operator.attrgetter("name")


def x_of(model: nn.Module) -> torch.Tensor:
    return parameters_to_vector(model.parameters()).detach().clone()


def part(task: Task, transport: Transport, step: int) -> torch.Tensor:
    """The samples of this worker's step, counted over all epochs."""
    worker = task.roles[: transport.rank].count("worker")
    if len(task.roles) == 1:
        return task.plan.batch(1 + step // N_STEPS, step % N_STEPS)
    return task.plan.part(1 + step // N_STEPS, step % N_STEPS, worker)


# The same steps


def by_hand(transport: Transport, task: Task, seed: int, more: dict[str, Any]) -> Found:
    """The parameters after each step and each epoch."""

    make = codec_factory(
        task.codec, Setting(task.scope, seed, workers=task.roles.count("worker"), momentum=task.momentum)
    )

    model, strategy, seen = make_model(), dataclasses.replace(task.strategy), []
    if transport.rank:
        model.apply(lambda module: [p.data.zero_() for p in module.parameters()])  # type: ignore[arg-type]
    transport.recorder.epoch = 1
    replica = Replica(model, transport)
    strategy.start(replica, transport, OPTIMIZERS[task.optimizer], codec=make, **more)
    for epoch in range(EPOCHS):
        transport.recorder.epoch = 1 + epoch
        if task.roles[transport.rank] == "server":
            strategy.serve()
        else:
            for i in range(epoch * N_STEPS, (epoch + 1) * N_STEPS):
                samples = part(task, transport, i)
                F.cross_entropy(model(X[samples]), Y[samples]).backward()
                strategy.step(len(samples))
                seen.append(x_of(model))
        strategy.finish()
        seen.append(x_of(model))
    return seen


def by_optimizer(transport: Transport, task: Task, seed: int, more: dict[str, Any]) -> Found:
    """Likewise, where a server has the last only."""
    model, seen = make_model(), []
    if transport.rank:
        model.apply(lambda module: [p.data.zero_() for p in module.parameters()])  # type: ignore[arg-type]
    optimizer = WorkerOptimizer(
        model, transport, task.strategy, OPTIMIZERS[task.optimizer], codec=task.codec, scope=task.scope,
        momentum=task.momentum, seed=seed, **more,
    )  # fmt: skip
    assert optimizer.is_server == (task.roles[transport.rank] == "server")
    assert optimizer.epoch == 1
    if optimizer.is_server:
        optimizer.serve(EPOCHS)
        seen.append(x_of(model))
    else:
        for epoch in range(EPOCHS):
            for i in range(epoch * N_STEPS, (epoch + 1) * N_STEPS):
                samples = part(task, transport, i)
                optimizer.zero_grad()
                F.cross_entropy(model(X[samples]), Y[samples]).backward()
                optimizer.step(len(samples))
                seen.append(x_of(model))
            optimizer.finish()
            seen.append(x_of(model))
    assert optimizer.epoch == 1 + EPOCHS
    return seen


CODED: list[tuple[Codec | None, dict[str, Any]]] = [
    (None, {}),
    (QSGD(bucket=8), {"scope": "vector"}),
    (DGC(density=0.1, warmup_epochs=1), {"momentum": 0.9}),
]
TASKS = [
    pytest.param(
        Task(
            kind(), fit(kind, 4), "momentum" if kind.traits.defaults.get("momentum") else "plain", codec=codec, **more
        ),
        id=f"{name}-{codec.name if codec else '-'}",
    )
    for name, kind in STRATEGIES.items()
    for codec, more in CODED
    if name not in IN_MEMORY and (codec is None or codec.kind in kind.traits.carries)
]


@pytest.mark.parametrize("task", TASKS)
def test_it_takes_the_steps_of_the_strategy_by_hand(task: Task) -> None:
    hand, optimizer = (start(type(task.strategy), how, task.n_gpus, task, 7, MORE) for how in (by_hand, by_optimizer))
    for role, ours, theirs in zip(task.roles, optimizer, hand, strict=True):
        expected = theirs[-1:] if role == "server" else theirs
        assert len(ours) == len(expected)
        assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))


def test_it_takes_the_seed_the_bound_and_the_schedule() -> None:
    """Each of them changes the steps."""
    task = Task(ParamServer(), 3, "plain", codec=QSGD(bucket=8))
    begin: Callable[..., list[Found]] = virtual_time(3).launch
    one, seed, bound, schedule = (
        begin(by_optimizer, 3, task, *given)[0][-1]
        for given in ((7, MORE), (8, MORE), (7, MORE | {"clip_norm": 0.1}), (7, MORE | {"schedule": None}))
    )
    assert not any(torch.equal(one, other) for other in (seed, bound, schedule))


def test_processes_take_the_same_steps_as_virtual_time() -> None:
    task = Task(ParamServer(), 3, "momentum", codec=TopK(density=0.25))
    virtual = virtual_time(3).launch(by_optimizer, 3, task, 0, {})
    real = launch(by_optimizer, 3, task, 0, {}, timeout=LIMIT)
    for ours, theirs in zip(virtual, real, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_where_workers_read_shared_memory_it_takes_the_same_steps() -> None:
    task = Task(InconsistentReads(), 2, "plain", codec=TopK(density=0.25))
    hand, optimizer = (launch(how, 2, task, 7, MORE, timeout=LIMIT)[1] for how in (by_hand, by_optimizer))
    assert all(torch.equal(a, b) for a, b in zip(hand, optimizer, strict=True))


# The script


def script(
    transport: Transport, strategy: Strategy, codec: Codec | None, epochs: int, on_step: Callable[[int], None]
) -> tuple[float, torch.Tensor]:
    """Train, and return the accuracy and the parameters. A worker has a third of the samples, in batches of 4."""
    model = make_model()
    optimizer = WorkerOptimizer(model, transport, strategy, partial(torch.optim.SGD, lr=0.3), codec=codec)
    if optimizer.is_server:
        optimizer.serve(epochs)
    else:
        mine = torch.arange(transport.rank % 3, 45, 3)
        for _ in range(optimizer.epoch, epochs + 1):
            for batch in mine.split(5):
                optimizer.zero_grad()
                F.cross_entropy(model(X[batch]), Y[batch]).backward()
                optimizer.step()
                on_step(transport.rank)
            optimizer.finish()
    return accuracy(x := x_of(model)), x


def nothing(rank: int) -> None:
    """All is well."""


def die(rank: int) -> None:
    """Rank 2 dies after its first step."""
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("strategy", [AsyncParamServer(), BackupWorkers(), RingAllReduce()], ids=NAME)
def test_it_learns_and_all_ranks_end_with_the_same_model(strategy: Strategy) -> None:
    (score, x), *others = virtual_time(4).launch(script, 4, strategy, TopK(density=0.25), 30, nothing)
    assert score > 0.9
    assert all(torch.equal(x, other) for _, other in others)


def test_a_worker_that_dies_ends_the_run_by_name() -> None:
    with pytest.raises(RunFailed, match=r"rank 2 \(worker\) was killed by SIGKILL"):
        launch(script, 4, RingAllReduce(), TopK(density=0.25), 3, die, timeout=LIMIT)


def test_where_workers_may_die_the_others_go_on() -> None:
    strategy = BackupWorkers()
    found = launch(
        script, 4, strategy, TopK(density=0.25), 30, die, roles=strategy.roles(4), timeout=LIMIT, expendable=[1, 2, 3]
    )
    assert found.pop(2) is None
    assert all(torch.equal(x, found[0][1]) for _, x in found)
    assert min(score for score, _ in found) > 0.8


def come_back(transport: Transport, folder: str) -> tuple[int, float]:
    """Rank 2 dies in the second epoch, and comes back; the others wait for it. Return where it began."""
    returned, began = Path(folder, "returned"), []

    def on_step(rank: int) -> None:
        began.append(transport.recorder.epoch)
        if rank == 2 and transport.rejoined:
            returned.touch()
        elif transport.recorder.epoch == 2:
            if rank == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            assert wait_until(returned.exists, LIMIT)

    score, _ = script(transport, AsyncParamServer(), TopK(density=0.25), 20, on_step)
    return began[0] if began else 0, score


def test_a_worker_that_is_started_again_begins_with_the_epoch_of_the_server(tmp_path: Path) -> None:
    found = launch(
        come_back, 3, str(tmp_path), roles=AsyncParamServer().roles(3), timeout=LIMIT, expendable=[1, 2], restarts=1
    )
    assert [began for began, _ in found] == [0, 1, 2]
    assert min(score for _, score in found) > 0.8


def forgets(transport: Transport, strategy: Strategy) -> None:
    optimizer = WorkerOptimizer(make_model(), transport, strategy, OPTIMIZERS["plain"])
    if optimizer.is_server:
        optimizer.serve()


@pytest.mark.parametrize("strategy", [ParamServer(), AsyncParamServer()], ids=NAME)
def test_a_worker_that_does_not_finish_is_named(strategy: Strategy) -> None:
    with pytest.raises(RunFailed, match=r"rank 1.* has closed its transport"):
        launch(forgets, 2, strategy, roles=strategy.roles(2), timeout=LIMIT)


# Its state


def in_two_parts(transport: Transport, task: Task, whole: bool) -> torch.Tensor:
    """Train for two epochs; if not `whole`, with another model and optimizer in the second."""
    model = make_model()
    make = partial(
        WorkerOptimizer, transport=transport, strategy=task.strategy, optimizer=OPTIMIZERS[task.optimizer],
        codec=task.codec, momentum=task.momentum, schedule=MORE["schedule"],
    )  # fmt: skip
    optimizer = make(model)
    for epoch in (1, 2):
        assert optimizer.epoch == epoch
        if optimizer.is_server:
            optimizer.serve()
        else:
            for i in range((epoch - 1) * N_STEPS, epoch * N_STEPS):
                samples = part(task, transport, i)
                optimizer.zero_grad()
                F.cross_entropy(model(X[samples]), Y[samples]).backward()
                optimizer.step(len(samples))
            optimizer.finish()
        if epoch == 1 and not whole:
            state, model = optimizer.state_dict(), make_model()
            transport.recorder.epoch = 0
            optimizer = make(model, state=state)
    return x_of(model)


@pytest.mark.parametrize("strategy", [ParamServer(), ShardedParamServer(), RingAllReduce()], ids=NAME)
@pytest.mark.parametrize("codec", [None, DGC(density=0.1, warmup_epochs=2)], ids=["-", "dgc"])
def test_it_continues_bit_for_bit_from_its_state(strategy: Strategy, codec: Codec | None) -> None:
    if codec and codec.kind not in strategy.traits.carries:
        pytest.skip("cannot carry it")
    task = Task(strategy, 3, "plain" if codec else "momentum", codec=codec, momentum=0.9 if codec else 0.0)
    whole, parts = (virtual_time(3).launch(in_two_parts, 3, task, one) for one in (True, False))
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))


# Gradients


def gradients(transport: Transport) -> list[Any]:
    model = make_model()
    first = next(model.children())
    assert isinstance(first, nn.Linear)
    first.bias.requires_grad = False
    optimizer = WorkerOptimizer(model, transport, Single(), OPTIMIZERS["unit"])
    weight, before, seen = first.weight, x_of(model), []
    for set_to_none in (True, False):
        for _ in range(2):
            (weight * 3).sum().backward()
        optimizer.zero_grad(set_to_none)
        seen.append(None if weight.grad is None else weight.grad.abs().sum().item())
        for _ in range(2):
            (weight * 3).sum().backward()
        optimizer.step(5)
    moved = before - x_of(model)
    optimizer.finish()
    return [*seen, moved[:35].tolist(), moved[35:].tolist(), optimizer.strategy.descent.samples]


def test_gradients_add_up_until_they_are_forgotten() -> None:
    first, second, weight, others, samples = virtual_time(1).launch(gradients, 1)[0]
    assert first is None
    assert second == 0.0
    assert weight == pytest.approx([2 * 6.0] * 35)
    assert others == [0.0] * len(others)
    assert samples == 2 * 5


def weighted(transport: Transport, *samples: tuple[int, ...]) -> float:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = WorkerOptimizer(model, transport, RingAllReduce(), OPTIMIZERS["unit"])
    model(torch.full((1, 1), -float(transport.rank))).sum().backward()
    optimizer.step(*samples[transport.rank])
    optimizer.finish()
    return model.weight.item()


def test_gradients_are_weighted_by_the_samples_and_all_alike_without() -> None:
    assert virtual_time(2).launch(weighted, 2, (1,), (3,)) == [0.75, 0.75]
    assert virtual_time(2).launch(weighted, 2, (), ()) == [0.5, 0.5]


# What is refused


def made(transport: Transport, strategy: Strategy, codec: Codec | None, more: dict[str, Any]) -> Any:
    return outcome(WorkerOptimizer, make_model(), transport, strategy, OPTIMIZERS["plain"], codec=codec, **more)


@pytest.mark.parametrize(
    ("n", "strategy", "codec", "more", "message"),
    [
        (1, ParamServer(), None, {}, "1 rank(s): param_server needs at least 2; launch more"),
        (2, BackupWorkers(), None, {}, "2 rank(s): backup_workers needs at least 3; launch more"),
        (2, Single(), None, {}, "2 ranks: single is at most 1; launch fewer"),
        (3, BackupWorkers(n_backup=2), None, {}, "n_backup=2: must be fewer than the 2 workers"),
        (2, Downpour(n_push=0), None, {}, "n_push=0: must be at least 1"),
        (2, Downpour(), TopK(), {}, "codec=topk: strategy downpour cannot carry it (gathered: codes go to"),
        (2, ShardedRing(), Float16(), {}, "codec=fp16: strategy sharded_ring cannot carry it (dense: codes"),
        (2, ParamServer(), TopK(density=0.0), {}, "density=0.0: must be above 0"),
        (2, ParamServer(), TopK(), {"scope": "layer"}, "scope='layer': must be 'tensor' or 'vector'"),
        (2, RingAllReduce(), PowerSGD(), {"scope": "vector"}, "scope=vector: powersgd codes"),
        (2, ParamServer(), TopK(), {"momentum": 0.9}, "momentum=0.9: no codec carries it; give it to the optimizer"),
        (2, ParamServer(), None, {"momentum": 0.9}, "momentum=0.9: no codec carries it; give it to the optimizer"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(
    n: int, strategy: Strategy, codec: Codec | None, more: dict[str, Any], message: str
) -> None:
    for kind, text in virtual_time(n).launch(made, n, strategy, codec, more):
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


# Torch's schedulers


def scheduled(transport: Transport, strategy: Strategy, make: Callable[[Any], Any]) -> Found:
    """The parameters after each step of a loop with a scheduler."""
    model = make_model()
    optimizer = WorkerOptimizer(model, transport, strategy, OPTIMIZERS["momentum"])
    if optimizer.is_server:
        optimizer.serve()
        return []
    seen = steps_with(make, model, optimizer)
    optimizer.finish()
    return seen


def steps_with(make: Callable[[Any], Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> Found:
    scheduler, seen = make(optimizer), []
    for _ in range(6):
        optimizer.zero_grad()
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()
        scheduler.step()
        seen.append(x_of(model))
    return seen


def in_torch(make: Callable[[Any], Any]) -> Found:
    model = make_model()
    return steps_with(make, model, OPTIMIZERS["momentum"](list(model.parameters())))


SCHEDULERS = [
    partial(torch.optim.lr_scheduler.StepLR, step_size=2),
    partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=5),
    partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.5, total_steps=7),  # which changes the momentum too
]


@pytest.mark.parametrize("make", SCHEDULERS, ids=lambda make: make.func.__name__)
@pytest.mark.parametrize("strategy", [Single(), ShardedRing()], ids=NAME)
def test_a_scheduler_of_torch_does_what_it_does_in_torch(strategy: Strategy, make: Callable[[Any], Any]) -> None:
    n, expected = fit(type(strategy), 3), in_torch(make)
    for seen in virtual_time(n).launch(scheduled, n, strategy, make):
        for ours, theirs in zip(seen, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def with_scheduler(transport: Transport, strategy: Strategy, whole: bool) -> list[Any]:
    """Three steps and then four; if not `whole`, with another optimizer and scheduler, which continue from states."""

    def begin(model: nn.Module, state: Any, of_scheduler: Any) -> tuple[WorkerOptimizer, Any]:
        optimizer = WorkerOptimizer(model, transport, strategy, OPTIMIZERS["momentum"], state=state)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        if of_scheduler:
            scheduler.load_state_dict(of_scheduler)
        return optimizer, scheduler

    model = make_model()
    optimizer, scheduler = begin(model, None, None)
    for n in (3, 4):
        if n == 4 and not whole:
            states = optimizer.state_dict(), scheduler.state_dict()
            model = make_model()
            optimizer, scheduler = begin(model, *states)
        for _ in range(n):
            F.cross_entropy(model(X), Y).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        optimizer.finish()
    return [x_of(model).tolist(), optimizer.param_groups[0]["lr"]]


def test_a_scheduler_continues_with_the_optimizer() -> None:
    whole, parts = (virtual_time(3).launch(with_scheduler, 3, ShardedRing(), one) for one in (True, False))
    assert whole == parts


def test_where_workers_have_the_learning_rate_a_scheduler_changes_it() -> None:
    first, second = (
        virtual_time(2).launch(scheduled, 2, Downpour(), partial(torch.optim.lr_scheduler.StepLR, step_size=by))[1]
        for by in (100, 1)
    )
    assert torch.equal(first[0], second[0])
    assert not torch.equal(first[-1], second[-1])


def test_where_a_server_has_it_a_scheduler_is_refused() -> None:
    for strategy in (ParamServer(), AsyncParamServer()):
        with pytest.raises(RunFailed, match=r"^param_groups: with \w+ the server has the learning rate; give .* sched"):
            virtual_time(2).launch(scheduled, 2, strategy, SCHEDULERS[0])


def two_rates(transport: Transport) -> list[str]:
    optimizer = WorkerOptimizer(make_model(), transport, Single(), OPTIMIZERS["plain"], schedule=lambda samples: 1.0)
    other = WorkerOptimizer(make_model(), transport, Single(), OPTIMIZERS["plain"])
    calls: list[Callable[[], Any]] = [
        partial(torch.optim.lr_scheduler.StepLR, optimizer, 1),
        partial(other.add_param_group, {"params": [nn.Parameter(torch.zeros(1))]}),
        partial(other.load_state_dict, {}),
    ]
    assert isinstance(other, torch.optim.Optimizer)
    assert repr(optimizer) == "WorkerOptimizer(Single(workers_like=1))"
    return [f"{kind}: {text}" for kind, text in map(outcome, calls)]


def test_what_would_change_nothing_is_refused() -> None:
    assert virtual_time(1).launch(two_rates, 1) == [
        [
            "UsageError: param_groups: schedule= sets the learning rate; give it or a scheduler, not both",
            "UsageError: add_param_group: all parameters are one vector, and so one group",
            "UsageError: load_state_dict: give what state_dict returned as WorkerOptimizer(..., state=...)",
        ]
    ]


# Loops that end too early


def loop(transport: Transport, strategy: Strategy, steps: list[int], finishes: bool, norm: bool) -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7) if norm else nn.Tanh(), nn.Linear(7, 3)).double()
    optimizer = WorkerOptimizer(model, transport, strategy, OPTIMIZERS["plain"])
    if optimizer.is_server:
        optimizer.serve()
        return
    for _ in range(steps[transport.rank]):
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()
    if finishes:
        optimizer.finish()


IN_STEP = [
    one for name, one in SYNCHRONOUS.items()
    if name in STRATEGIES and name != "single" and "server" not in one.roles(3)
]  # fmt: skip


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("strategy", IN_STEP, ids=NAME)
def test_a_rank_that_takes_fewer_steps_than_the_others_is_told(strategy: Strategy, norm: bool) -> None:
    for few in range(3):
        steps = [3 - (rank == few) for rank in range(3)]
        with pytest.raises(RunFailed) as caught:
            virtual_time(3).launch(loop, 3, strategy, steps, True, norm)
        assert "in a loop of your own every rank must take the same number of steps" in str(caught.value)
        assert "Traceback" not in str(caught.value)


def test_it_is_told_at_once() -> None:
    with pytest.raises(RunFailed, match=r"rank 2 took 2 steps before finish\(\), and rank 0 has begun 3: in a loop of"):
        launch(loop, 3, RingAllReduce(), [3, 3, 2], True, True, timeout=LIMIT)


@pytest.mark.parametrize("strategy", [RingAllReduce(), ParamServer(), Downpour(), Single()], ids=NAME)
def test_a_forgotten_finish_is_noticed(strategy: Strategy) -> None:
    n = fit(type(strategy), 3)
    with pytest.raises(RunFailed, match=r"rank \d ended after step\(\) without finish\(\), which sends what is unsent"):
        virtual_time(n).launch(loop, n, strategy, [2] * 3, False, False)


def test_an_error_of_a_rank_is_the_launchers() -> None:
    with pytest.raises(RunFailed, match=r"^codec=topk: strategy downpour cannot carry it") as caught:
        launch(script, 2, Downpour(), TopK(), 1, nothing, timeout=LIMIT)
    assert caught.value.exit_code == 2
    assert isinstance(UsageError(), ValueError)


def differences_known(transport: Transport, steps: list[int]) -> Any:
    """Two epochs, in which workers take different numbers of steps; what the server knows, or the worker's own x_k."""
    model = make_model()
    optimizer = WorkerOptimizer(model, transport, DGS(density=0.1), OPTIMIZERS["soft"])
    for epoch in range(2):
        if optimizer.is_server:
            optimizer.serve()
            continue
        for i in range(steps[epoch * 2 + transport.rank - 1]):
            F.cross_entropy(model(X[i : i + 4]), Y[i : i + 4]).backward()
            optimizer.step(4)
            optimizer.zero_grad()
        optimizer.finish()
    strategy = optimizer.strategy
    assert isinstance(strategy, DGS)
    x, shown = optimizer.replica.x.tolist(), strategy.model().tolist()
    return (x, shown, {k: end.w.tolist() for k, end in strategy.differences.items()} if optimizer.is_server else {})


@pytest.mark.parametrize("steps", [[4, 4, 4, 4], [2, 12, 3, 1]], ids=["alike", "apart"])
def test_a_server_of_differences_knows_its_workers_after_every_epoch(steps: list[int]) -> None:
    (x, shown, known), *workers = virtual_time(3).launch(differences_known, 3, steps)
    assert known == {k: own for k, (own, _, _) in enumerate(workers, start=1)}
    assert [model for _, model, _ in workers] == [shown, shown] == [x, x], "the strategy's model is the server's x"


def test_momentum_counts_once() -> None:
    def refused(transport: Transport) -> str:
        with pytest.raises(UsageError) as caught:
            WorkerOptimizer(make_model(), transport, ParamServer(), OPTIMIZERS["momentum"], codec=DGC(), momentum=0.9)
        return str(caught.value)

    for said in virtual_time(3).launch(refused, 3):
        assert said.startswith("optimizer: momentum=0.9: dgc carries the momentum, and the optimizer has none")


# All of the module's state


class Mixed(nn.Module):
    """Trained and frozen parameters, buffers of all kinds: other ones on each rank."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.trained = nn.Linear(3, 2)
        self.frozen = nn.Linear(2, 2).half()
        self.norm = nn.BatchNorm1d(2)
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)
        self.register_buffer("mask", torch.tensor([rank == 0, True, False]))
        self.register_buffer("phase", torch.full((2,), rank + 1j))
        self.register_buffer("nothing", torch.zeros(0, dtype=torch.int64))
        with torch.no_grad():
            for tensor in (*self.parameters(), self.norm.running_mean, self.norm.num_batches_tracked):
                assert isinstance(tensor, torch.Tensor)
                tensor.fill_(rank + 1)


def state_at_the_start(transport: Transport, strategy: Strategy) -> dict[str, list[Any]]:
    model = Mixed(transport.rank)
    strategy = dataclasses.replace(strategy)
    strategy.start(Replica(model, transport), transport, partial(torch.optim.SGD, lr=0.1))
    transport.barrier()
    return {name: tensor.tolist() for name, tensor in model.state_dict().items()}


def test_all_ranks_begin_with_all_of_rank_0s_module(kind: type[Strategy]) -> None:
    strategy = kind()
    if kind.name == "dgs":  # whose optimizer has momentum
        return
    expected = {name: tensor.tolist() for name, tensor in Mixed(0).state_dict().items()}
    assert start(kind, state_at_the_start, fit(kind, 3), strategy) == [expected] * fit(kind, 3)


# Optimizers that need more than one vector


def by_shape(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in parameters if p.dim() >= 2] or parameters)


def in_groups(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = [{"params": parameters}, {"params": [], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [(by_shape, "it asks a parameter for its shape"), (in_groups, "it makes 2 parameter groups")],
)
def test_an_optimizer_that_tells_parameters_apart_is_refused(optimizer: OptimizerFactory, expected: str) -> None:
    def rank(transport: Transport) -> None:
        WorkerOptimizer(make_model(), transport, RingAllReduce(), optimizer)

    with pytest.raises(RunFailed, match=f"^optimizer: {expected}"):
        virtual_time(2).launch(rank, 2)
