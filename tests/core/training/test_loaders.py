"""Runs whose batches come from a loader: the same bits by any number of workers, resumed too; nobody is left."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire.checkpoints import folder as folder_of
from gradwire.core.records.errors import UsageError
from gradwire.core.training.checks import resolve
from tests.core.workloads.test_loading import DALI
from tests.images.pictures import SIZE, write_pictures
from tests.ranks import LIMIT, virtual_time
from tests.runs import BUILTIN, KINDS, made, n_gpus_of, small

if not find_spec("torchvision"):  # which would take seconds to load
    pytest.skip("needs torchvision", allow_module_level=True)


EXHAUSTIVE_DALI = pytest.param(*DALI.values, marks=[*DALI.marks, pytest.mark.exhaustive])


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Options of a run on some pictures: 21, in batches of 6, so 4 steps an epoch, the last of 3 samples."""
    folder = write_pictures(tmp_path_factory.mktemp("pictures"))
    return {
        "dataset": "imagefolder", "data_dir": str(folder), "image_size": SIZE, "global_batch_size": 6, "batch_size": 64,
        "model": "tests.core.training.test_loaders:network", "lr": 0.01, "n_gpus": 2,
    }  # fmt: skip


def network(input_shape: tuple[int, ...], n_classes: int) -> torch.nn.Module:
    """Return a small network with dropout, which draws from the rank's random numbers."""
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Dropout(0.1), torch.nn.Linear(3 * SIZE * SIZE, n_classes, bias=False)
    )


@pytest.mark.exhaustive  # by default the resumed run of the next test has none
@pytest.mark.parametrize("name", ["param_server", "single", "async_param_server", *BUILTIN])
def test_workers_change_no_bit_of_a_run(tmp_path: Path, pictures: dict[str, Any], name: str) -> None:
    hashes = []
    for workers in (0, 2):
        options = pictures | {"n_gpus": n_gpus_of(name, 1 if KINDS[name].traits.asynchronous else 2)}
        record = made(tmp_path, name, f"run-{workers}", **options, accumulate=2, loader_workers=workers)
        hashes.append(record["parameter_hash"])
        assert record["options"]["loader_workers"] == workers
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize(("loader", "workers"), [("torch", 1), EXHAUSTIVE_DALI])
def test_a_resumed_run_whose_ranks_load_themselves_cuts_what_the_uninterrupted_one_does(
    tmp_path: Path, pictures: dict[str, Any], loader: str, workers: int
) -> None:
    same = pictures | {"loader": loader, "loader_workers": workers, "epochs": 2}
    whole = made(tmp_path, "ring_all_reduce", "whole", **same, checkpoint_every=3)
    first = folder_of.listed(tmp_path / "whole.checkpoints")[0]
    others = {} if loader == "dali" else {"loader_workers": 0}
    resumed = made(tmp_path, "ring_all_reduce", "resumed", **same | others, resume=str(first))
    assert resumed["parameter_hash"] == whole["parameter_hash"]


@pytest.mark.parametrize("option", [{"loader_workers": 1}, {"loader": "dali"}])
def test_ranks_that_share_a_process_have_no_loader(
    tmp_path: Path, pictures: dict[str, Any], option: dict[str, Any]
) -> None:
    ((name, value),) = option.items()
    with pytest.raises(UsageError, match=rf"^--{name} {value}: in virtual time all ranks share a process.*\Z"):
        resolve(small(tmp_path, **pictures, **option), virtual_time(2).launcher())


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize(("loader", "workers"), [("torch", 0), ("torch", 2), DALI])
def test_a_run_on_a_gpu_takes_every_loader(tmp_path: Path, pictures: dict[str, Any], loader: str, workers: int) -> None:
    options = pictures | {"device": "cuda", "loader": loader, "loader_workers": workers}
    record = made(tmp_path, "ring_all_reduce", **options)
    assert record["options"]["device"] == "cuda"
    assert record["replicas_identical"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", KINDS)
def test_every_strategy_trains_on_a_gpu(tmp_path: Path, name: str) -> None:
    record = made(tmp_path, name, n_gpus=n_gpus_of(name, 2), device="cuda", epochs=5, timeout=LIMIT)
    assert record["options"]["device"] == "cuda"
    assert record["test_accuracy"] > 0.8
