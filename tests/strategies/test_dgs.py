"""Dual-way sparsification: what server and worker know of each other, and SAMomentum."""

from typing import Any

import pytest
import torch

from gradwire.core.transports.base import Transport
from gradwire.virtual_time.launcher import Death, VirtualTime
from gradwire.virtual_time.network import OneSwitch
from strategies.asynchronous_server.dgs import DGS
from tests.ranks import virtual_time
from tests.strategies.loops import N_STEPS, Rank, Task


def watched(transport: Transport, task: Task) -> list[tuple[Any, ...]]:
    """Train; return of each difference: on the server (k, number, w_k), on worker k (k, number, x_k)."""
    rank = Rank(transport, task)
    seen: list[tuple[Any, ...]] = []
    strategy, counts = rank.strategy, dict.fromkeys(range(transport.world_size), 0)
    assert isinstance(strategy, DGS)
    if rank.is_server:
        send = strategy.difference

        def noted(k: int) -> torch.Tensor:
            sent = send(k)
            counts[k] += 1
            seen.append((k, counts[k], strategy.differences[k].w.tolist()))
            return sent

        strategy.difference = noted  # type: ignore[method-assign]

    def after_step() -> None:
        counts[transport.rank] += 1
        seen.append((transport.rank, counts[transport.rank], rank.x().tolist()))

    for number in range(1, task.epochs + 1):
        rank.epoch(number, after_step)
    rank.close()
    return seen


@pytest.mark.parametrize(("downlink", "per_tensor"), [(True, True), (True, False), (False, True)])
def test_the_servers_copy_is_the_workers_model_bit_for_bit(downlink: bool, per_tensor: bool) -> None:
    strategy = DGS(density=0.1, downlink=downlink, per_tensor=per_tensor)
    server, *workers = virtual_time(4).launch(watched, 4, Task(strategy, 4, "soft", epochs=4))
    of_workers = {(k, number): x for worker in workers for k, number, x in worker}
    assert len(of_workers) >= 3 * N_STEPS
    assert {(k, number): w for k, number, w in server} == of_workers


def test_who_returns_is_known_to_have_x() -> None:
    """It is sent all of x, and differences from there."""
    time = VirtualTime(OneSwitch(4, 1e6, 1e-3), lambda *_: 0.01, [Death(3, 0.15, 0.2)])
    roles = DGS().roles(4)
    found = time.launch(watched, 4, Task(DGS(density=0.1), 4, "soft", epochs=6), expendable=[1, 2, 3], roles=roles)
    server = [entry for entry in found[0] if entry[0] == 3]
    second_life = [x for _, _, x in found[3]]
    assert 0 < len(second_life) < len(server)
    assert [w for _, _, w in server][-len(second_life) :] == second_life
