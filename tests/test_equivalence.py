"""Every synchronous strategy takes the same steps as one process: float64, step by step, uneven last batch included.

A new synchronous strategy is put through this module by its line in the registry. The built-in baselines are in it too.
"""

import copy
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from param_server_builtin import BuiltinParamServer
from ring_all_reduce_builtin import BuiltinRingAllReduce
from strategies import STRATEGIES, OptimizerFactory, Replica, Strategy
from training import launch
from transports.base import Transport
from workloads.batches import BatchPlan

EPOCHS = 3
N_SAMPLES, BATCH = 47, 12  # batches of 12, 12, 12, 11
X = torch.randn(N_SAMPLES, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = torch.randint(0, 3, (N_SAMPLES,), generator=torch.Generator().manual_seed(2))
OPTIMIZERS: dict[str, OptimizerFactory] = {
    "sgd": partial(torch.optim.SGD, lr=0.3, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": partial(torch.optim.Adam, lr=0.01),
}
SYNCHRONOUS = {name: kind for name, kind in STRATEGIES.items() if kind.replicas_agree}
KINDS: dict[str, type[Strategy]] = {**SYNCHRONOUS, "DDP": BuiltinRingAllReduce, "DataParallel": BuiltinParamServer}
CASES = [(name, workers) for name in KINDS for workers in (1, 2, 3, 4) if name != "single" or workers == 1]


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def plan_of(workers: int) -> BatchPlan:
    return BatchPlan(N_SAMPLES, workers, BATCH, seed=3)


def one_process(workers: int, optimizer: str, clip_norm: float) -> list[torch.Tensor]:
    """Plain torch, nothing of this project but the batches: the parameters after every step."""
    model, plan, trajectory = make_model(), plan_of(workers), []
    optim = OPTIMIZERS[optimizer](list(model.parameters()))
    for epoch in range(EPOCHS):
        for step in range(plan.n_steps):
            batch = plan.batch(epoch, step)
            optim.zero_grad()
            F.cross_entropy(model(X[batch]), Y[batch]).backward()
            if clip_norm:
                nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
            optim.step()
            trajectory.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    return trajectory


def rank_trajectory(transport: Transport, name: str, workers: int, optimizer: str, clip_norm: float) -> list[Any]:
    """One rank of the strategy: the parameters after every step (on a server: after every epoch)."""
    kind, plan = KINDS[name], plan_of(workers)
    roles = kind.roles(transport.world_size)
    strategy = kind(OPTIMIZERS[optimizer], clip_norm)
    module = strategy.wrap(make_model(), transport, workers)
    trajectory = []
    for epoch in range(EPOCHS):
        if roles[transport.rank] == "server":
            strategy.serve()
        else:
            for step in range(plan.n_steps):
                batch = plan.batch(epoch, step)
                part = batch
                if transport.world_size > 1:
                    part = plan.part(epoch, step, transport.rank - roles.index("worker"))
                loss = F.cross_entropy(module(X[part]), Y[part])
                (loss * strategy.loss_weight(len(part), len(batch))).backward()
                strategy.step(len(part))
                trajectory.append(strategy.parameters().tolist())
        strategy.finish()
        if roles[transport.rank] == "server":
            trajectory.append(strategy.model().tolist())
    strategy.close()
    return trajectory


@pytest.mark.parametrize(
    ("name", "workers", "optimizer", "clip_norm"),
    [(*case, "sgd", 0.0) for case in CASES]
    + [(*case, *other) for case in CASES if case[1] in (1, 3) for other in (("adam", 0.0), ("sgd", 0.05))],
)
def test_takes_the_same_steps_as_one_process(name: str, workers: int, optimizer: str, clip_norm: float) -> None:
    kind = KINDS[name]
    world_size = 1 if kind is BuiltinParamServer else workers + kind.roles(8).count("server")
    expected = torch.stack(one_process(workers, optimizer, clip_norm))
    ranks = launch(rank_trajectory, world_size, name, workers, optimizer, clip_norm, timeout=30)
    roles = kind.roles(world_size)
    of_workers = [trajectory for trajectory, role in zip(ranks, roles, strict=True) if role == "worker"]
    for trajectory in of_workers:
        torch.testing.assert_close(torch.tensor(trajectory, dtype=torch.float64), expected, rtol=1e-10, atol=1e-12)
        assert trajectory == of_workers[0], "replicas must be bit-identical after every step"
    for trajectory, role in zip(ranks, roles, strict=True):
        if role == "server":
            steps = plan_of(workers).n_steps
            assert trajectory == of_workers[0][steps - 1 :: steps], "the server's x is what the workers hold"


def buffers_after_finish(transport: Transport, name: str) -> list[float]:
    """Give each worker other BatchNorm statistics; report them after `finish`."""
    kind = STRATEGIES[name]
    role = kind.roles(transport.world_size)[transport.rank]
    replica = Replica(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), transport)
    strategy = kind(OPTIMIZERS["sgd"])
    strategy.start(replica, transport)
    if role == "server":
        strategy.serve()
    else:
        replica.b.fill_(float(transport.rank))
    strategy.finish()
    return replica.b.tolist()


@pytest.mark.parametrize("name", [name for name in SYNCHRONOUS if name != "single"])
def test_finish_averages_the_buffers_over_the_workers(name: str) -> None:
    roles = STRATEGIES[name].roles(3)
    workers = [rank for rank, role in enumerate(roles) if role == "worker"]
    expected = [sum(workers) / len(workers)] * 4
    assert launch(buffers_after_finish, 3, name, timeout=30) == [expected] * 3


def resume_in_the_middle(transport: Transport, name: str) -> bool:
    """Train, keep a state_dict, train on; load it and train on again: the same parameters?"""
    kind = STRATEGIES[name]
    roles = kind.roles(transport.world_size)
    plan = plan_of(roles.count("worker"))
    replica = Replica(make_model(), transport)
    strategy = kind(OPTIMIZERS["sgd"])
    strategy.start(replica, transport)

    def epoch(number: int) -> None:
        if roles[transport.rank] == "server":
            strategy.serve()
        else:
            for step in range(plan.n_steps):
                part = plan.part(number, step, transport.rank - roles.index("worker"))
                F.cross_entropy(replica.model(X[part]), Y[part]).backward()
                strategy.step(len(part))
        strategy.finish()
        transport.barrier()

    epoch(0)
    state = copy.deepcopy(strategy.state_dict())
    epoch(1)
    expected = replica.x.clone()
    strategy.load_state_dict(state)
    epoch(1)
    return torch.equal(replica.x, expected)


@pytest.mark.parametrize("name", [name for name, kind in STRATEGIES.items() if not kind.own_pace])
def test_a_state_dict_continues_bit_for_bit(name: str) -> None:
    world_size = 1 if name == "single" else 3
    assert launch(resume_in_the_middle, world_size, name, timeout=30) == [True] * world_size


def steps_and_bytes(transport: Transport, name: str, steps: int) -> tuple[int, list[int], list[int]]:
    """Return the number of parameters, and messages and bytes sent per destination, in `steps` steps."""
    kind = STRATEGIES[name]
    replica = Replica(make_model(), transport)
    strategy = kind(OPTIMIZERS["sgd"])
    strategy.start(replica, transport)
    messages, nbytes = list(transport.messages_sent), list(transport.bytes_sent)
    if kind.roles(transport.world_size)[transport.rank] == "server":
        strategy.serve()
    else:
        for _ in range(steps):
            strategy.step(1)
    sent = ([now - was for now, was in zip(transport.messages_sent, messages, strict=True)],
            [now - was for now, was in zip(transport.bytes_sent, nbytes, strict=True)])  # fmt: skip
    strategy.finish()
    return replica.x.numel(), *sent


def test_a_parameter_server_moves_one_vector_each_way_per_worker_and_step() -> None:
    steps = 5
    n, messages, nbytes = launch(steps_and_bytes, 4, "param_server", steps, timeout=30)[0]
    assert messages == [0] + [steps] * 3
    assert nbytes == [0] + [steps * n * 8] * 3
    for n, messages, nbytes in launch(steps_and_bytes, 4, "param_server", steps, timeout=30)[1:]:
        assert messages == [steps, 0, 0, 0]
        assert nbytes == [steps * (n + 1) * 8, 0, 0, 0]


def alone(transport: Transport, steps: int) -> tuple[list[float], list[float], int]:
    """One rank of `none`, and plain torch on the same batches: the parameters of both, and the messages sent."""
    plan, plain = plan_of(transport.world_size), make_model()
    optimizer = OPTIMIZERS["sgd"](list(plain.parameters()))
    model = make_model()
    strategy = STRATEGIES["none"](OPTIMIZERS["sgd"])
    strategy.start(Replica(model, transport), transport)
    sent = sum(transport.messages_sent)
    for step in range(steps):
        part = plan.part(1, step, transport.rank)
        for network in (model, plain):
            F.cross_entropy(network(X[part]), Y[part]).backward()
        strategy.step(len(part))
        optimizer.step()
        optimizer.zero_grad()
    strategy.finish()
    plain_x = torch.cat([p.detach().reshape(-1) for p in plain.parameters()])
    return strategy.parameters().tolist(), plain_x.tolist(), sum(transport.messages_sent) - sent


def test_without_communication_every_rank_is_one_process_on_its_own_part() -> None:
    ranks = launch(alone, 3, 4, timeout=30)
    for x, plain_x, messages in ranks:
        assert x == pytest.approx(plain_x, rel=1e-12)
        assert messages == 0
    assert ranks[0][0] != ranks[1][0]
