"""Runs whose batches come from a loader: the same bits by any number of workers, resumed too; nobody is left."""

import contextlib
import os
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from checkpoints import folder as folder_of
from records.errors import RunFailed, UsageError
from strategies.all_reduce.ring_all_reduce import RingAllReduce
from tests.ranks import LIMIT, virtual_time, wait_until
from tests.runs import BUILTIN, KINDS, made, n_gpus_of, small
from tests.strategies.runs import made as made_virtually
from tests.workloads.pictures import N_CLASSES, SIZE, write_pictures
from tests.workloads.test_loading import DALI, needs_dali
from training import run
from training.checks import resolve

pytest.importorskip("torchvision")


EXHAUSTIVE_DALI = pytest.param(*DALI.values, marks=[*DALI.marks, pytest.mark.exhaustive])
OTHERS = ("single", "async_param_server", *BUILTIN)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Options of a run on some pictures: 21, in batches of 6, so 4 steps an epoch, the last of 3 samples."""
    folder = write_pictures(tmp_path_factory.mktemp("pictures"))
    return {
        "dataset": "imagefolder", "data_dir": str(folder), "image_size": SIZE, "global_batch_size": 6, "batch_size": 64,
        "model": "tests.training.test_loaders:network", "lr": 0.01, "n_gpus": 2,
    }  # fmt: skip


def network(input_shape: tuple[int, ...], n_classes: int) -> torch.nn.Module:
    """Return a small network with dropout, which draws from the rank's random numbers."""
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Dropout(0.1), torch.nn.Linear(3 * SIZE * SIZE, n_classes, bias=False)
    )


@pytest.mark.parametrize(
    "name", ["param_server", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in OTHERS)]
)
def test_workers_change_no_bit_of_a_run(tmp_path: Path, pictures: dict[str, Any], name: str) -> None:
    hashes = []
    for workers in (0, 2):
        options = pictures | {"n_gpus": n_gpus_of(name, 1 if KINDS[name].traits.asynchronous else 2)}
        record = made(tmp_path, name, f"run-{workers}", **options, accumulate=2, loader_workers=workers)
        hashes.append(record["parameter_hash"])
        assert record["options"]["loader_workers"] == workers
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize(("loader", "workers"), [("torch", 1), EXHAUSTIVE_DALI])
def test_a_resumed_run_cuts_what_the_uninterrupted_one_does(
    tmp_path: Path, pictures: dict[str, Any], loader: str, workers: int
) -> None:
    same = pictures | {"loader": loader, "loader_workers": workers, "epochs": 2}
    whole = made(tmp_path, "ring_all_reduce", "whole", **same, checkpoint_every=3)
    first = folder_of.listed(tmp_path / "whole.checkpoints")[0]
    resumed = made(tmp_path, "ring_all_reduce", "resumed", **same, resume=str(first))
    assert resumed["parameter_hash"] == whole["parameter_hash"]


@pytest.mark.exhaustive
@needs_dali
def test_dali_ends_where_torch_does_but_for_rounding(tmp_path: Path, pictures: dict[str, Any]) -> None:
    """Both have the same cuts of the same pictures; a pixel differs by some 255ths."""
    models = []
    for loader in ("torch", "dali"):
        path = tmp_path / f"{loader}.pt"
        made(tmp_path, "ring_all_reduce", loader, **pictures, loader=loader, save=str(path))
        models.append(torch.cat([tensor.flatten() for tensor in torch.load(path).values()]))
    torch.manual_seed(0)
    start = network((3, SIZE, SIZE), N_CLASSES).state_dict()["2.weight"].flatten()
    moved = (models[0] - start).norm()
    assert (models[0] - models[1]).norm() < 0.05 * moved


# Who is left


class Told(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Samples whose reading tells the process that reads: a file of its number in `folder`."""

    classes = "ab"

    def __init__(self, folder: str, deadly: int | None) -> None:
        self.folder, self.deadly = folder, deadly

    def __len__(self) -> int:
        return 60

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        Path(self.folder, str(os.getpid())).touch()
        if i == self.deadly:
            os._exit(7)
        return torch.full((2,), float(i % 2)), i % 2


def told() -> tuple[Told, Told]:
    """Return such data sets."""
    return Told(os.environ["TOLD"], None), Told(os.environ["TOLD"], None)


def deadly() -> tuple[Told, Told]:
    """Return such data sets; who reads one sample of the first dies."""
    return Told(os.environ["TOLD"], 33), Told(os.environ["TOLD"], None)


@pytest.mark.parametrize(
    ("dataset", "model", "message"),
    [
        ("told", "linear", None),
        ("told", "mortal", r"rank 2 \(worker\) was killed by SIGKILL"),
        ("deadly", "linear", r"a loader's worker died \("),
    ],
)
def test_no_worker_is_left_however_a_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dataset: str, model: str, message: str | None
) -> None:
    place = tmp_path / "pids"
    place.mkdir()
    monkeypatch.setenv("TOLD", str(place))
    options = small(
        tmp_path, n_gpus=3, global_batch_size=6, dataset=f"{__name__}:{dataset}", model=f"tests.workload:{model}",
        loader_workers=2,
    )  # fmt: skip
    with pytest.raises(RunFailed, match=message) if message else contextlib.nullcontext() as failed:
        run(options, quiet=True)
    if failed is not None:
        assert "\n" not in str(failed.value)
    pids = {int(path.name) for path in place.iterdir()}
    assert len(pids) >= 3
    assert wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids - {os.getpid()}))


# Where there are none


@pytest.mark.parametrize("option", [{"loader_workers": 1}, {"loader": "dali"}])
def test_ranks_that_share_a_process_have_no_loader(
    tmp_path: Path, pictures: dict[str, Any], option: dict[str, Any]
) -> None:
    with pytest.raises(UsageError) as refused:
        resolve(small(tmp_path, **pictures, **option), virtual_time(2).launcher())
    ((name, value),) = option.items()
    assert str(refused.value).startswith(f"--{name} {value}: in virtual time all ranks share a process")
    assert "\n" not in str(refused.value)


def test_pictures_are_trained_on_in_virtual_time_too_and_augmentation_decides_the_result(
    tmp_path: Path, pictures: dict[str, Any]
) -> None:
    real = made(tmp_path, "ring_all_reduce", "real", **pictures)["parameter_hash"]["0"]
    virtual, other = (
        made_virtually(tmp_path, f"{augment}", RingAllReduce(), **pictures | {"augment": augment, "epochs": 2})
        for augment in (True, False)
    )
    assert virtual["parameter_hash"]["0"] == real != other["parameter_hash"]["0"]


# On a GPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("loader", "workers"), [("torch", 0), ("torch", 2), DALI])
def test_a_run_on_a_gpu_takes_every_loader(tmp_path: Path, pictures: dict[str, Any], loader: str, workers: int) -> None:
    options = pictures | {"device": "cuda", "loader": loader, "loader_workers": workers}
    record = made(tmp_path, "ring_all_reduce", **options)
    assert record["options"]["device"] == "cuda"
    assert record["replicas_identical"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", KINDS)
def test_every_strategy_trains_on_a_gpu(tmp_path: Path, name: str) -> None:
    record = made(tmp_path, name, n_gpus=n_gpus_of(name, 2), device="cuda", epochs=5, timeout=LIMIT)
    assert record["options"]["device"] == "cuda"
    assert record["test_accuracy"] > 0.8
