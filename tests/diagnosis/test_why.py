"""Differences planted into runs, and the causes that `gradwire.diagnosis.why` names."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from gradwire import run
from gradwire.core.records.errors import RunFailed
from gradwire.core.strategy.updater import Updater
from gradwire.core.training.rank import Rank
from gradwire.core.workloads.batches import BatchPlan
from gradwire.diagnosis import why
from gradwire.names import class_of
from gradwire.virtual_time.launcher import VirtualTime
from gradwire.virtual_time.network import OneSwitch
from strategies import STRATEGIES, RingAllReduce
from tests.runs import n_gpus_of, said_by, small
from tests.selection import by_default

W = 3  # workers
MLP: dict[str, Any] = {"model": "mlp"}
Patch = Callable[[], AbstractContextManager[Any]]


def make(folder: Path, name: str, strategy: str = "ring_all_reduce", jitter: float = 0.0, **changes: Any) -> None:
    """One run of a moment in virtual time."""
    n = n_gpus_of(strategy, W)
    if "codec" in changes:
        changes["codec"] = class_of("codec", changes["codec"])()
    kind = STRATEGIES[strategy]()
    options = small(folder, kind, n_gpus=n, run_name=name, **({"epochs": 3, "hashes": True} | changes))
    seconds = {rank: 1 + jitter * rank for rank in range(n)}
    time = VirtualTime(OneSwitch(n, 1e9, 1e-5), lambda rank, phase, part: 1e-3 * seconds[rank] * part)
    with suppress(RunFailed):  # its replicas differ, which it says when its records are written
        run(options, quiet=True, launcher=time.launcher())


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[tuple[str, Any], ...]], Path]:
    """Gives a function that makes run a with some options, once, and returns its folder."""

    @cache
    def make_a(options: tuple[tuple[str, Any], ...]) -> Path:
        make(folder := tmp_path_factory.mktemp("a"), "a", **dict(options))
        return folder

    return make_a


def around(owner: Any, name: str, change: Callable[..., Any]) -> Patch:
    """Replace a function by `change(original, *arguments)`."""
    original = getattr(owner, name)
    return lambda: patch.object(owner, name, lambda *a, **k: change(original, *a, **k))


def update(change: Callable[[Updater, torch.Tensor], object], since: int = 0) -> Patch:
    """Change the gradient before each update, from a step on."""

    def changed(step: Any, updater: Updater, g: torch.Tensor, *a: Any, **k: Any) -> None:
        if updater.version >= since:
            change(updater, g)
        step(updater, g, *a, **k)

    return around(Updater, "step", changed)


def contribution(change: Callable[[int, torch.Tensor], object]) -> Patch:
    """Change what a rank gives to the sum."""

    def changed(add: Any, strategy: RingAllReduce, vector: torch.Tensor, n: int) -> int:
        change(strategy.transport.rank, vector)
        return int(add(strategy, vector, n))

    return around(RingAllReduce, "all_reduce", changed)


def times(rank: int, factor: float) -> Patch:
    """Scale what a rank gives."""
    return contribution(lambda r, vector: vector.mul_(factor if r == rank else 1))


def late() -> Patch:
    """Let ranks give the gradient of the step before."""
    kept: dict[int, torch.Tensor] = {}

    def change(r: int, vector: torch.Tensor) -> None:
        now = vector.clone()
        vector.copy_(kept.get(r, now))
        kept[r] = now

    return contribution(change)


def before_step(change: Callable[[Rank, int], None]) -> Patch:
    """Do something when a rank begins to compute a gradient."""

    def changed(gradient: Any, rank: Rank, i: int) -> Any:
        change(rank, i)
        return gradient(rank, i)

    return around(Rank, "gradient", changed)


def after_backward(change: Callable[[Rank], None]) -> Patch:
    def changed(gradient: Any, rank: Rank, i: int) -> Any:
        found = gradient(rank, i)
        if i >= 3:
            change(rank)
        return found

    return around(Rank, "gradient", changed)


def overwritten(rank: Rank, i: int) -> None:
    if i == 4 and rank.transport.rank == 1:
        rank.replica.x[0] += 1e-3


def stale_x() -> Patch:
    kept: dict[int, torch.Tensor] = {}

    def change(rank: Rank, i: int) -> None:
        if i == 3:
            kept[rank.transport.rank] = rank.replica.x.clone()
        if i == 5:
            rank.replica.x.copy_(kept[rank.transport.rank])

    return before_step(change)


def scaled(rank: Rank, factor: float, tensors: int | None = None) -> None:
    for p in rank.replica.parameters[:tensors]:
        assert p.grad is not None
        p.grad.mul_(factor)


def noise(scale: float) -> Callable[[Rank], None]:
    def change(rank: Rank) -> None:
        for p in rank.replica.parameters:
            if p.grad is not None:
                p.grad.add_(torch.linspace(-1, 1, p.numel()).view(p.shape), alpha=scale)

    return change


@contextmanager
def another_torch() -> Iterator[None]:
    from gradwire.core.training import report

    original = report.machine
    with patch.object(report, "machine", lambda: original() | {"torch": "2.12.1"}), after_backward(noise(1e-8))():
        yield


def shuffled(part: Any, plan: BatchPlan, epoch: int, step: int, worker: int | None) -> Any:
    return part(plan, epoch + 5, step, worker)


def exchanged(part: Any, plan: BatchPlan, epoch: int, step: int, worker: int | None) -> Any:
    return part(plan, epoch, step, worker if worker is None or step < 3 else W - 1 - worker)


PLANTED: dict[str, tuple[str, dict[str, Any], dict[str, Any], Patch]] = {
    # what is planted: the cause, the options of A, those of B, and what is changed in B
    "naive all-reduce": ("another order of addition", {}, {"strategy": "naive_all_reduce"}, nullcontext),
    "a server": ("another order of addition", {}, {"strategy": "param_server"}, nullcontext),
    "sum, no mean": ("a missing mean", {}, {}, update(lambda _, g: g.mul_(W))),
    "mean of the mean": ("a missing mean", {}, {}, update(lambda _, g: g.div_(W))),
    "loss times 2": ("a factor", {}, {}, after_backward(lambda rank: scaled(rank, 2.0))),
    "rank 1 gives zeros": ("a rank that is missing", {}, {}, times(1, 0)),
    "rank 2 counts twice": ("a rank too often", {}, {}, times(2, 2)),
    "all late by a step": ("a stale version", {}, {}, late()),
    "x of two steps before": ("a stale version", {}, {}, stale_x()),
    "another seed": ("another start", {}, {"seed": 7}, nullcontext),
    "float64": ("another start", {}, {"dtype": "float64"}, nullcontext),
    "other batches": ("another batch", {}, {}, around(BatchPlan, "part", shuffled)),
    "exchanged batches": ("another batch: workers", {}, {}, around(BatchPlan, "part", exchanged)),
    "fp16": ("a lossy codec", {}, {"codec": "fp16"}, nullcontext),
    "learning rate": ("another update of x: lr", {}, {"lr": 0.05}, nullcontext),
    "adam": ("another update of x: optimizer", {}, {"optimizer": "adam"}, nullcontext),
    "one element overwritten": ("x of worker 1 was changed", {}, {}, before_step(overwritten)),
    "a tensor is frozen": ("a gradient that is missing", {}, {},
                           after_backward(lambda rank: scaled(rank, 0.0, 1))),
    "another torch": ("rounding of another version", {}, {}, another_torch),
    "bf16": ("another arithmetic: amp", {}, {"amp": "bf16"}, nullcontext),
    "order of arrival": ("another order of messages", {"strategy": "async_param_server"},
                         {"strategy": "async_param_server", "jitter": 0.4}, nullcontext),
    "an element that is not kept": ("not known: 1.weight differs only", MLP, MLP, update(lambda _, g: g[3].add_(9), 2)),
    "noise": ("not known", {}, {}, after_backward(noise(1e-2))),
}  # fmt: skip


def compared(folder: Path, other: str = "b") -> tuple[int, str]:
    """Return the exit code of the command for runs a and `other`, and what it says."""
    return said_by(lambda: why.main([str(folder / "a"), str(folder / other)]))


FIRST_OF_EACH_CAUSE = {cause: what for what, (cause, *_) in reversed(PLANTED.items())}


@pytest.mark.parametrize("what", by_default([*FIRST_OF_EACH_CAUSE.values()], PLANTED))
def test_the_cause_of_a_planted_difference_is_named(
    what: str, tmp_path: Path, made_once: Callable[[tuple[tuple[str, Any], ...]], Path]
) -> None:
    cause, of_a, of_b, planted = PLANTED[what]
    for path in made_once(tuple(of_a.items())).glob("a*"):
        (tmp_path / path.name).hardlink_to(path)
    with planted():
        make(tmp_path, "b", **of_b)
    code, text = compared(tmp_path, "b.json")
    assert code == 0, text
    assert text.rpartition("cause")[2].strip().startswith(cause)


@pytest.mark.parametrize("strategy", ["ring_all_reduce", "overlapped_ring"])  # which sends and changes its gradient
def test_two_runs_that_are_alike_are_said_to_be(strategy: str, tmp_path: Path) -> None:
    make(tmp_path, "a")
    make(tmp_path, "b", strategy)
    code, text = compared(tmp_path)
    assert (code, "the same bits in all 12 steps" in text) == (0, True), text


def test_where_they_part_is_the_first_step_and_tensor(tmp_path: Path) -> None:
    make(tmp_path, "a")
    with update(lambda _, g: g[-1:].mul_(2), 2)():
        make(tmp_path, "b")
    _, text = compared(tmp_path)
    assert "part at   epoch 1, step 3: the gradient that is applied, on updating rank 0" in text


def test_a_difference_in_the_last_update_is_found(tmp_path: Path) -> None:
    def changed(step: Any, updater: Updater, *a: Any, **k: Any) -> None:
        step(updater, *a, **k)
        if updater.version == 12 and updater.parameters[0].data_ptr() in last:
            updater.parameters[0].data[0] += 1

    last: set[int] = set()

    def note(rank: Rank, i: int) -> None:
        if rank.transport.rank == 1:
            last.add(rank.replica.x.data_ptr())

    make(tmp_path, "a")
    with before_step(note)(), around(Updater, "step", changed)():
        make(tmp_path, "b")
    _, text = compared(tmp_path)
    assert "part at   epoch 3, after step 12: the parameters x of worker 1" in text
    assert "x of worker 1 was changed by something else than the update" in text


def test_runs_that_cannot_be_compared_are_named_in_one_line(tmp_path: Path) -> None:
    make(tmp_path, "a")
    make(tmp_path, "other", model="tests.workload:batch_norm")
    make(tmp_path, "plain", hashes=False)
    make(tmp_path, "damaged")
    (tmp_path / "damaged.hashes.npz").write_bytes(b"PK" + bytes(100))
    said = {"nowhere": "no such file", "other": "another model", "plain": "with --hashes", "damaged": "with --hashes"}
    for other, says in said.items():
        code, text = compared(tmp_path, other)
        assert (code, says in text) == (2, True), text
