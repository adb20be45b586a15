"""Pictures in files: what is cut of each, against torchvision's transforms; names and labels as tensors."""

import importlib
import math
import os
import pickle
import random
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire.core.workloads import datasets
from gradwire.core.workloads.data import Data, Samples
from gradwire.images import sample_images, wing
from gradwire.images.images import Pictures, opened, random_cut
from gradwire.images.torchvision_data import SOURCES
from gradwire.images.torchvision_models import LEAST_SIDE
from gradwire.options import Options
from tests.images.pictures import SIZE
from tests.runs import said_by

if not find_spec("torchvision"):
    pytest.skip("needs torchvision", allow_module_level=True)


@pytest.fixture
def transforms() -> Any:
    return importlib.import_module("torchvision.transforms")  # here, for it takes seconds to load


def load(folder: Path, seed: int = 0, **options: Any) -> Data:
    sized = {"image_size": SIZE} | options
    return datasets.load(Options(dataset="imagefolder", data_dir=str(folder), **sized), seed)


def pictures(samples: Samples) -> Pictures:
    assert isinstance(samples, Pictures)
    return samples


@pytest.mark.parametrize("size", [SIZE, 25, 64])
def test_without_augmentation_pictures_are_those_of_torchvisions_transforms(
    folder: Path, size: int, transforms: Any
) -> None:
    data = load(folder, image_size=size, augment=False)
    centre = transforms.Compose(
        [transforms.Resize(round(size * 256 / 224)), transforms.CenterCrop(size), transforms.PILToTensor()]
    )
    for files in (pictures(data.train), pictures(data.test)):
        x, y = files.raw(torch.arange(len(files)), 0)
        assert y.tolist() == sorted(y.tolist())
        for i, pixels in enumerate(x):
            with opened(files.path(i)) as image:
                assert torch.equal(pixels, centre(image))


def test_a_random_cut_is_resized_as_by_torchvision(folder: Path, transforms: Any) -> None:
    train = pictures(load(folder, seed=3).train)
    x, _ = train.raw(torch.arange(len(train)), epoch=2)
    mirrored = []
    for i, pixels in enumerate(x):
        with opened(train.path(i)) as image:
            cut = train.cut(i, 2, image)
            expected = transforms.functional.pil_to_tensor(
                transforms.functional.resized_crop(image, cut.top, cut.left, cut.height, cut.width, [SIZE, SIZE])
            )
        assert torch.equal(pixels, expected.flip(2) if cut.mirrored else expected)
        mirrored.append(cut.mirrored)
    assert len(set(mirrored)) == 2


def test_what_is_cut_follows_from_seed_epoch_and_sample_alone(folder: Path) -> None:
    data = load(folder, seed=3)
    picture, alike = data.train.raw(torch.tensor([4, 5]), 2)[0]
    again, _ = pickle.loads(pickle.dumps(data)).train.raw(torch.tensor([9, 5, 4]), 2)
    assert torch.equal(again[2], picture)
    assert torch.equal(again[1], alike)
    for other in (data.train.raw(torch.tensor([4]), 3), load(folder, seed=4).train.raw(torch.tensor([4]), 2)):
        assert not torch.equal(other[0][0], picture)
    test, later, plain = (
        samples.raw(torch.arange(data.n_test), epoch)[0]
        for samples, epoch in ((data.test, 1), (data.test, 2), (load(folder, augment=False).test, 1))
    )
    assert torch.equal(test, later)
    assert torch.equal(test, plain)


def test_cuts_are_distributed_as_torchvisions(transforms: Any) -> None:
    height, width, n = 375, 500, 4000
    draw = random.Random(0)
    cuts = [random_cut(draw, height, width, SIZE) for _ in range(n)]
    torch_cuts = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for _ in range(n):
            torch_cuts.append(
                transforms.RandomResizedCrop.get_params(torch.empty(3, height, width), [0.08, 1], [3 / 4, 4 / 3])
            )
    for k, scale in enumerate((height, width, height, width)):
        mine = torch.tensor([cut[k] / scale for cut in cuts])
        theirs = torch.tensor([cut[k] / scale for cut in torch_cuts])
        error = math.sqrt((mine.var() + theirs.var()) / n)
        assert abs(mine.mean() - theirs.mean()) < 4 * error
    assert abs(sum(cut.mirrored for cut in cuts) / n - 0.5) < 0.03


def test_names_of_any_bytes_are_kept(tmp_path: Path) -> None:
    names = [b"a", b"with space/\xff\xfe", "ü/ß".encode(), b"x" * 200]
    paths = [os.path.join(tmp_path, os.fsdecode(name)) for name in names]
    files = Pictures.listed(str(tmp_path), [(path, i) for i, path in enumerate(paths)], SIZE)
    files.share_memory_()
    assert files.names.is_shared()
    for pictures in (files, pickle.loads(pickle.dumps(files))):
        assert [pictures.path(i) for i in range(len(pictures))] == paths
    some = files.subset(torch.tensor([3, 1]))
    assert [some.path(0), some.path(1)] == [paths[3], paths[1]]
    assert some.labels.tolist() == [3, 1]


def test_samples_can_be_written_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "samples"
    sample_images.write(sample_images.Settings(place, per_class=4, side=20))
    data = load(place)
    assert (data.n_train, data.n_test, data.n_classes) == (40, 10, 10)
    monkeypatch.setattr(sys, "argv", ["sample_images", str(place), "--per_class", "3"])
    assert said_by(sample_images.main) == (2, "error: --per_class 3: must be at least 4\n")


def test_the_wing_names_what_torchvision_is_asked_for() -> None:
    assert set(wing.DOWNLOADS) == set(SOURCES)
    assert set(wing.TORCHVISION_MODELS) == set(LEAST_SIDE)
