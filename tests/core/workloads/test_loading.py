"""The loaders: the same files and labels in the same steps, whoever decodes; nobody is left when they end.

DALI decodes JPEG and resizes by other code than PIL: of 255, a pixel differs by up to 3 here, on the mean by 0.2.
Tests allow 6 and 1. Pictures of other files, or cut elsewhere, differ by more than 20 on the mean.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor

from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.core.transports.base import Transport
from gradwire.core.workloads import datasets
from gradwire.core.workloads.batches import BatchPlan
from gradwire.core.workloads.data import Data
from gradwire.core.workloads.loading import Loader
from gradwire.images.dali import check_dali
from gradwire.images.images import STD
from gradwire.options import Options
from tests.images.pictures import HAS_DALI, SIZE, write_pictures
from tests.ranks import LIMIT, launch, wait_until

if not find_spec("torchvision"):  # which would take seconds to load
    pytest.skip("needs torchvision", allow_module_level=True)

MOST, MEAN = 6.0, 1.0  # of 255
NEEDS_DALI = pytest.mark.skipif(not HAS_DALI, reason="needs DALI: pip install -e '.[dali]'")
DALI = pytest.param("dali", 2, marks=NEEDS_DALI, id="dali")
ONE = pytest.param("torch", 1, id="1 workers")
WORKERS = [pytest.param("torch", 3, id="3 workers"), pytest.param(*ONE.values, marks=pytest.mark.exhaustive)]
STEPS = (*range(7), 12, 13, 20, 3, 4, 3)  # of three epochs; some are left out, some come again


def open_data(folder: Path, augment: bool) -> Data:
    return datasets.load(Options(dataset="imagefolder", data_dir=str(folder), image_size=SIZE, augment=augment), 5)


def loader_of(data: Data, name: str, n: int, worker: int | None, device: str = "cpu") -> Loader:
    place = torch.device(device)
    plan = BatchPlan(data.n_train, 2, 6, seed=5)  # 21 samples: the parts of the last batch are of 2 and 1
    return Loader(
        data, Options(loader=name, loader_workers=n).make_fetcher(data, place), plan, worker, 2, place, torch.float32
    )


def all_batches(transport: Transport, data: Data, name: str, n: int, workers: tuple[int | None, ...] = (None,)) -> Any:
    """In a rank: what each worker's loader gives in some steps, and then of the test split; its children meanwhile and
    later; whether the rank is as it was.
    """
    seen = []
    for worker in workers:
        state, handler = torch.get_rng_state(), signal.getsignal(signal.SIGCHLD)
        with loader_of(data, name, n, worker, str(transport.device)) as loader:
            steps = [[loader.piece(i, k) for k in range(len(loader.pieces(i)))] for i in STEPS]
            found = [[(x.cpu(), y.cpu()) for x, y in step] for step in (*steps, loader.test_batches())]
            during = len(multiprocessing.active_children())
        after = len(multiprocessing.active_children())
        as_before = torch.equal(state, torch.get_rng_state()) and signal.getsignal(signal.SIGCHLD) == handler
        seen.append((found, during, after, as_before))
    return seen


def expected(data: Data, worker: int | None) -> list[list[tuple[Tensor, Tensor]]]:
    """The same, each sample fetched by itself."""
    plan = BatchPlan(data.n_train, 2, 6, seed=5)
    steps = []
    for i in STEPS:
        epoch, step = 1 + i // plan.n_steps, i % plan.n_steps
        part = plan.part(epoch, step, worker)
        pieces = part.tensor_split(min(2, len(part)))
        steps.append([data.fetch(piece, "train", epoch=epoch) for piece in pieces])
    return [*steps, [data.fetch(torch.arange(data.n_test), "test")]]


def check_alike(found: Any, wanted: Any, most: float, mean: float) -> None:
    """The same labels, and pixels that differ by no more than so much of 255."""
    for mine, theirs in zip(found, wanted, strict=True):
        for (x, y), (x0, y0) in zip(mine, theirs, strict=True):
            assert torch.equal(y, y0)
            error = ((x - x0) * torch.tensor(STD).view(3, 1, 1) * 255).abs()
            assert error.max() <= most
            assert error.mean() <= mean


@pytest.mark.parametrize(("name", "n"), [pytest.param("torch", 0, id="0 workers"), *WORKERS, DALI])
@pytest.mark.parametrize("augment", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_every_loader_gives_the_plans_samples_in_every_step(folder: Path, name: str, n: int, augment: bool) -> None:
    data, workers = open_data(folder, augment), (0, 1, None)
    (seen,) = launch(all_batches, 1, data, name, n, workers, timeout=LIMIT)
    for worker, (found, during, after, as_before) in zip(workers, seen, strict=True):
        check_alike(found, expected(data, worker), *((0.0, 0.0) if name == "torch" else (MOST, MEAN)))
        assert during == (n if name == "torch" else 0)
        assert after == 0, "they have ended with the block"
        assert as_before, "random numbers and signals are the rank's"


@pytest.mark.parametrize(("name", "n"), [ONE, DALI])
def test_what_comes_next_is_requested_beforehand_and_once(folder: Path, name: str, n: int) -> None:
    """The next pieces are requested beforehand, each once, and no more than some."""
    data = open_data(folder, False)
    asked: list[int] = []

    class Watched(Loader):
        def pieces(self, i: int) -> Any:
            asked.append(i)
            return super().pieces(i)

    plain = loader_of(data, name, n, 0)
    with Watched(data, plain.fetch, plain.plan, 0, 1, plain.device, plain.dtype) as loader:
        loader.piece(0, 0)
        asked_first = list(asked[2:])  # the first two are to know the largest
        loader.piece(1, 0)
    assert asked_first == list(range(len(asked_first)))
    assert 2 <= len(asked_first) <= 4
    assert asked[2:] == list(range(len(asked_first) + 1))


# What goes wrong


def failure(code: int, work: Callable[..., Any], *args: Any) -> str:
    """Return the one line with which work on one rank fails."""
    with pytest.raises(RunFailed) as failed:
        launch(work, 1, *args, timeout=LIMIT)
    assert failed.value.exit_code == code
    assert "\n" not in str(failed.value)
    return str(failed.value)


def kill_one(transport: Transport, data: Data) -> str:
    with loader_of(data, "torch", 2, 0) as loader:
        loader.piece(0, 0)
        os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
        for i in range(1, 1000):
            loader.piece(i, 0)
    return "it went on"


def test_the_death_of_a_worker_ends_the_run_with_one_line(folder: Path) -> None:
    said = failure(1, kill_one, open_data(folder, True))
    assert said.startswith("rank 0 (worker): a loader's worker died (")
    assert "--loader_workers" in said


def tell_and_die(transport: Transport, data: Data, place: Path) -> None:
    loader = loader_of(data, "torch", 2, 0)
    loader.piece(0, 0)
    unfinished = place / "unfinished"
    unfinished.write_text(" ".join(str(child.pid) for child in multiprocessing.active_children()))
    unfinished.rename(place / "pids")
    os.kill(os.getpid(), signal.SIGKILL)


def test_workers_end_with_a_rank_that_is_killed(folder: Path, tmp_path: Path) -> None:
    assert "was killed by SIGKILL" in failure(1, tell_and_die, open_data(folder, True), tmp_path)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    assert wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


@pytest.mark.parametrize(("name", "n"), [pytest.param("torch", 0, id="0 workers"), ONE, DALI])
def test_a_picture_that_cannot_be_read_is_named(tmp_path: Path, name: str, n: int) -> None:
    bad = write_pictures(tmp_path) / "train" / "class 1" / "2.jpg"
    bad.write_bytes(b"nonsense")
    said = failure(2, all_batches, open_data(tmp_path, True), name, n)
    assert f"cannot read {bad}" in said


def test_dali_that_is_missing_is_told_and_it_reads_pictures_in_files_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(UsageError, match=r"^--loader dali: needs NVIDIA DALI \(.*pip install -e '\.\[dali\]'"):
        check_dali(open_data(folder, True))
    with pytest.raises(UsageError, match=r"^--loader dali: .* not digits; take --dataset imagefolder"):
        check_dali(datasets.load(Options()))
