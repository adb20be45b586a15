"""Hogwild: one x for all ranks, counts of which none is lost, and a meter of the updates that are."""

from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from gradwire.checkpoints.folder import listed
from gradwire.core.transports.base import Transport
from strategies import Hogwild, Single
from tests.ranks import run
from tests.strategies.kinds import on_ranks
from tests.strategies.loops import N_SAMPLES, Rank, Task
from tests.strategies.runs import BATCH_NORM, made


def zeros() -> nn.Module:
    """A model of float32 whose parameters are 0."""
    model = nn.Linear(2, 2)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def test_one_worker_is_one_process(tmp_path: Path) -> None:
    same: dict[str, Any] = BATCH_NORM | {"n_gpus": 1, "momentum": 0.9, "lr_schedule": "cosine"}
    same |= {"checkpoint_every": 5, "weight_decay": 0.01}
    single, hogwild = (made(tmp_path, kind.name, kind(), **same) for kind in (Single, Hogwild))
    assert hogwild["parameter_hash"] == single["parameter_hash"]
    tables = [pd.read_csv(tmp_path / f"{kind.name}.csv") for kind in (Single, Hogwild)]
    for column in ("step", "samples", "train_loss", "test_accuracy"):
        assert tables[0][column].equals(tables[1][column]), column
    last = listed(tmp_path / "hogwild.checkpoints")[-1]
    resumed = made(tmp_path, "resumed", Hogwild(), **same, resume=str(last))
    assert resumed["parameter_hash"] == single["parameter_hash"]


def test_a_resumed_epoch_in_which_rank_0_takes_no_step_keeps_its_number_of_steps(tmp_path: Path) -> None:
    n_steps = 12  # of 190 samples in batches of 16, the last of 14
    made(tmp_path, "run", Hogwild(), n_gpus=1, epochs=1, checkpoint_every=n_steps)
    made(tmp_path, "resumed", Hogwild(), n_gpus=1, epochs=1, resume=str(tmp_path / "run.checkpoints"))
    assert pd.read_csv(tmp_path / "resumed.csv")["step"].tolist() == [n_steps]


# Counts


def counted(rank: Rank) -> tuple[list[int], list[list[int]], float, float]:
    """The numbers of the steps that this rank takes in two epochs, and at their end what is counted."""
    strategy, steps = rank.strategy, list[int]()
    assert isinstance(strategy, Hogwild)
    for number in (1, 2):
        strategy.updater.until = number * N_SAMPLES
        for i in strategy.steps_of_epoch(0, 0):
            steps.append(i)
            rank.take(i)
        strategy.finish()
    return steps, strategy.counts.of_ranks.tolist(), strategy.updater.samples, strategy.updater.processed


def test_no_count_is_lost_and_together_they_have_the_samples() -> None:
    ranks = on_ranks(Task(Hogwild(), 3, "plain"), counted)
    _, (samples, updates), *progress = ranks[0]
    assert progress == [sum(samples)] * 2
    for (steps, *_), own in zip(ranks, updates, strict=True):
        assert steps == list(range(own)), "each takes its own steps, one after the other"
    assert 2 * N_SAMPLES <= sum(samples) < 2 * N_SAMPLES + 3 * 4, "nobody begins a step when all are done"


def scheduled(transport: Transport) -> list[float]:
    """What the schedule of the learning rate is told in this rank's steps; both take turns."""
    seen = list[float]()

    def note(processed: float) -> float:
        seen.append(processed)
        return 1.0

    rank = Rank(transport, Task(Hogwild(), 2, "unit", schedule=note), zeros())
    for turn in range(4):
        if turn % 2 == transport.rank:
            next(rank.strategy.steps_of_epoch(0, 0))
            rank.constant_step(0.0, 10)
        transport.barrier()
    rank.stop()
    return seen


def test_the_schedule_counts_the_samples_of_all_ranks() -> None:
    assert run("shared_memory", scheduled, 2) == [[5.0, 25.0], [15.0, 35.0]]


# Lost updates


def colliding(rank: Rank) -> float | None:
    """Rank 0 writes an update of 1 between the reading and the writing of rank 1, whose update is 2."""
    strategy, transport = rank.strategy, rank.transport
    assert isinstance(strategy, Hogwild)
    assert strategy.lost is not None
    lost = strategy.lost

    def overwrite(increment: torch.Tensor) -> None:
        read = strategy.replica.x.clone()
        transport.barrier()
        transport.barrier()  # rank 0 has written
        strategy.replica.x.copy_(read + increment)
        lost.note(increment)

    if transport.rank == 1:
        lost.write = overwrite  # type: ignore[method-assign]
        rank.constant_step(2.0, 1)
    else:
        transport.barrier()
        rank.constant_step(1.0, 1)
        transport.barrier()
    strategy.finish()
    return transport.recorder.meters.get("lost_updates")


def test_an_update_that_another_overwrites_is_counted_as_lost() -> None:
    assert on_ranks(Task(Hogwild(count_lost=True), 2, "unit"), colliding, zeros) == [1 / 3, None]
