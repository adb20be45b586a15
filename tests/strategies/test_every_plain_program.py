"""Every strategy takes the steps of its plain program, on float64; see `tests/strategies/plain`."""

from types import ModuleType
from typing import Any

import pandas as pd
import torch

from gradwire.core.transports.base import Transport
from strategies import Strategy
from tests.strategies.kinds import fit, start, with_workers
from tests.strategies.loops import N_SAMPLES, N_STEPS, Rank, Task
from tests.strategies.plain import PlainRun, plain_module

Kind = type[Strategy]
EPOCHS = 3
STEPS = EPOCHS * N_STEPS


def trained(transport: Transport, task: Task) -> tuple[list[list[float]], pd.DataFrame]:
    """Train for one long epoch, each worker at a pace of its own: the x after each of its steps, and the events."""
    rank, seen = Rank(transport, task), []
    transport.recorder.epoch, rank.strategy.updater.until = 1, EPOCHS * N_SAMPLES
    if rank.is_server:
        rank.strategy.serve()
    else:
        for i in rank.strategy.steps_of_epoch(0, STEPS):
            transport.sleep(0.01 * (1 + 0.3 * rank.worker))
            rank.take(i)
            seen.append(rank.x().tolist())
    rank.strategy.finish()
    events = transport.recorder.frame()
    rank.close()
    return seen, events


def module_of(kind: Kind) -> ModuleType:
    """Those that wait, agree, and step by the mean gradient have one together."""
    steps_by_mean = not kind.traits.asynchronous and kind.traits.agree and kind.traits.steps_by_mean
    return plain_module(kind, ":" not in kind.name, shared="mean" if steps_by_mean else "")


def assert_plain(kind: Kind, options: dict[str, Any], n_gpus: int = 4, clip_norm: float = 0.0) -> None:
    """It takes the steps of its plain program, with these options, on about so many ranks."""
    module = module_of(kind)
    most = getattr(module, "WORKERS", None)
    n_gpus = with_workers(kind, most) if most else fit(kind, n_gpus)
    task = Task(kind(**options), n_gpus, getattr(module, "OPTIMIZER", "plain"), clip_norm)
    seen, events = zip(*start(kind, trained, len(task.roles), task, record=True), strict=True)
    found = [own for own, role in zip(seen, task.roles, strict=True) if role == "worker"]
    run = PlainRun(task, STEPS, EPOCHS * N_SAMPLES, pd.concat(events, ignore_index=True))
    expected = module.plain_program(run, task.strategy)
    for own, plain in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.tensor(own, dtype=torch.float64), plain, rtol=1e-9, atol=1e-11)


def test_its_steps_are_those_of_its_plain_program(kind: Kind) -> None:
    """With some of its options, on 4 ranks and on 3 in turn."""
    for i, options in enumerate(getattr(module_of(kind), "OPTIONS", [{}])):
        assert_plain(kind, options, 4 - i % 2)
