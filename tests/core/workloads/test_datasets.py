import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from gradwire.core.records.errors import UsageError
from gradwire.core.workloads import datasets
from gradwire.core.workloads.data import Data, InMemory
from gradwire.images.map_style import Decoded
from gradwire.options import Options
from tests.images.pictures import write_pictures

WriteModule = Callable[[str], str]


def load(name: str, data_dir: str | Path, seed: int = 0, **options: Any) -> Data:
    return datasets.load(Options(dataset=name, data_dir=str(data_dir), **options), seed)


def refusal(name: str, data_dir: Path | str = "absent", **options: bool | int) -> str:
    with pytest.raises(UsageError) as caught:
        load(name, data_dir, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def write_mnist(directory: Path) -> None:
    directory.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for prefix, n in (("train", 12), ("t10k", 4)):
        images, labels = rng.integers(0, 256, (n, 28, 28), np.uint8), (np.arange(n) % 10).astype(np.uint8)
        for what, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
            (directory / f"{prefix}-{what}-ubyte").write_bytes(header + array.tobytes())


def test_synthetic_is_made_from_the_seed_and_can_be_learned() -> None:
    data, again, other = (load("synthetic", "", seed=seed) for seed in (1, 1, 2))
    assert (data.n_train, data.n_test, data.n_classes, data.input_shape) == (2048, 512, 10, (1, 28, 28))
    indices = torch.arange(100)
    assert torch.equal(data.fetch(indices)[0], again.fetch(indices)[0])
    assert not torch.equal(data.fetch(indices)[0], other.fetch(indices)[0])


def test_digits_are_scaled_and_hold_out_a_fixed_fifth() -> None:
    data = load("digits", "", seed=1)
    assert torch.equal(data.fetch(torch.arange(360), "test")[0], load("digits", "").fetch(torch.arange(360), "test")[0])
    assert (data.n_train, data.n_test, data.n_classes, data.input_shape) == (1437, 360, 10, (1, 8, 8))
    assert data.fetch(torch.arange(360), "test")[1].bincount().min() >= 34
    x, _ = data.fetch(torch.arange(data.n_train))
    torch.testing.assert_close(x.mean(), torch.tensor(0.0), atol=1e-4, rtol=0)
    torch.testing.assert_close(x.std(), torch.tensor(1.0), atol=1e-3, rtol=0)


def test_train_size_takes_a_fixed_choice_whatever_the_seed() -> None:
    small, larger = load("digits", "", train_size=10, seed=1), load("digits", "", train_size=20, seed=2)
    assert (small.n_train, small.n_test) == (10, 360)
    assert torch.equal(small.fetch(torch.arange(10))[0], larger.fetch(torch.arange(10))[0])
    assert not torch.equal(small.fetch(torch.arange(10))[1], load("digits", "").fetch(torch.arange(10))[1])


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("digits", {"train_size": 1438}, ("1437",)),
        ("fashion_mist", {}, ("did you mean fashion_mnist?", "imagefolder")),
        ("not_there:make", {}, ("no module not_there",)),
    ],
)
def test_what_cannot_be_is_refused(name: str, options: dict[str, Any], told: tuple[str, ...]) -> None:
    message = refusal(name, **options)
    assert all(part in message for part in told), message


def test_mnist_is_read_in_torchvisions_layout_and_normalised(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    write_mnist(tmp_path / "MNIST" / "raw")
    data = load("mnist", tmp_path)
    assert isinstance(data.train, InMemory)
    assert data.train.x.dtype == torch.uint8
    assert (data.n_train, data.n_test, data.n_classes, data.input_shape) == (12, 4, 10, (1, 28, 28))
    x, y = data.fetch(torch.tensor([11, 3]))
    assert y.tolist() == [1, 3]
    torch.testing.assert_close(x, (data.train.x[[11, 3]].float() / 255 - 0.1307) / 0.3081)


def test_cifar_and_svhn_put_channels_first_and_scale_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what torchvision reads: N x H x W x 3 and targets of CIFAR, N x 3 x H x W and labels of SVHN."""
    datasets = pytest.importorskip("torchvision.datasets")
    image = np.arange(3 * 32 * 32, dtype=np.uint8).reshape(3, 32, 32)  # each channel differs
    image += np.array([0, 50, 100], np.uint8)[:, None, None]
    images, labels = np.stack([image, image]), [0, 9]
    read = {"CIFAR10": Mock(data=images.transpose(0, 2, 3, 1), targets=labels, spec_set=["data", "targets"])}
    read["SVHN"] = Mock(data=images, labels=np.array(labels), spec_set=["data", "labels"])
    for name, mean, std in (("cifar10", 0.4465, 0.2616), ("svhn", 0.4728, 0.1970)):
        monkeypatch.setattr(datasets, name.upper(), Mock(return_value=read[name.upper()]))
        data = load(name, tmp_path, download=True)
        x, y = data.fetch(torch.tensor([0, 1]), "test")
        assert y.tolist() == [0, 9]
        expected = (torch.from_numpy(image[2]).float() / 255 - mean) / std
        torch.testing.assert_close(x[1, 2], expected)


def test_files_that_are_not_there_or_corrupt_name_place_and_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    message = refusal("fashion_mnist", tmp_path)
    assert all(part in message for part in (str(tmp_path / "FashionMNIST"), "--download", "--data_dir"))
    monkeypatch.setattr(datasets.MNIST, "download", Mock(side_effect=RuntimeError("Error downloading:\nno network")))
    assert re.search("download failed.*no network", refusal("mnist", tmp_path, download=True))
    raw = tmp_path / "MNIST" / "raw"
    write_mnist(raw)
    (raw / "train-images-idx3-ubyte").write_bytes(b"nonsense")
    message = refusal("mnist", tmp_path)
    assert all(part in message for part in (str(raw), "corrupt"))


def test_a_mismatched_torchvision_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    for name in ("cifar10", "imagefolder"):
        assert "pip install torch torchvision" in refusal(name)


def test_imagefolder_refuses_bad_folders(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    assert "--data_dir" in refusal("imagefolder", tmp_path)
    write_pictures(tmp_path)
    (tmp_path / "val" / "class 1").rename(tmp_path / "val" / "c")
    assert "differ in classes (c, class 1)" in refusal("imagefolder", tmp_path)


def test_a_users_arrays_are_taken(user_module: WriteModule) -> None:
    name = user_module(
        "def make():\n"
        "    x = np.arange(40, dtype=np.uint8).reshape(10, 4)[::-1]\n"
        "    return x, np.arange(10, dtype=np.uint16), torch.zeros(3, 4, dtype=torch.uint8), torch.tensor([0, 1, 11])"
    )
    data = load(name, "")
    assert (data.n_train, data.n_test, data.n_classes, data.input_shape) == (10, 3, 12, (4,))
    x, y = data.fetch(torch.tensor([9]))
    torch.testing.assert_close(x, (torch.tensor([[0.0, 1, 2, 3]]) / 255 - 0.5) / 0.5)
    assert y.tolist() == [9]


def test_a_users_map_style_datasets_are_taken(user_module: WriteModule) -> None:
    name = user_module(
        "def make():\n"
        "    x = torch.randn(10, 1, 5, 5)\n"
        "    return TensorDataset(x, torch.arange(10)), TensorDataset(x[:4], torch.arange(4))"
    )
    data = load(name, "", train_size=6)
    assert isinstance(data.train, Decoded)
    assert (data.n_train, data.n_test, data.n_classes, data.input_shape) == (6, 4, 10, (1, 5, 5))
    x, y = data.fetch(torch.tensor([5, 0]))
    assert x.shape == (2, 1, 5, 5)
    assert sorted(data.fetch(torch.arange(6))[1].tolist()) != list(range(6))
    assert load(name, "").fetch(y)[1].tolist() == y.tolist()


def test_for_another_task_a_users_tensors_are_what_they_are(user_module: WriteModule) -> None:
    name = user_module(
        "def make():\n"
        "    x = np.arange(40, dtype=np.uint16).reshape(10, 4)\n"
        "    return x, x[:, :2].astype(np.float64), x[:3], x[:3, :2].astype(np.float64)"
    )
    data = load(name, "", task="tests.tasks:regression")
    x, y = data.fetch(torch.tensor([9]))
    assert (x.dtype, x.tolist(), data.n_classes) == (torch.uint16, [[36, 37, 38, 39]], 2)
    assert (y.dtype, y.tolist()) == (torch.float32, [[36.0, 37.0]])


def test_for_another_task_items_are_any_tensors_of_one_shape(user_module: WriteModule) -> None:
    name = user_module(
        "def make(): return ([(torch.ones(2, 2, 2, 2), i * torch.ones(i)) for i in (3, 3, 4)],) * 2\n"
        "def tokens(): return [([11, 3], [3, 4])], [([1, 2], [3, 4])]"
    )
    data = load(name, "", task="tests.tasks:regression")
    assert (data.input_shape, data.n_classes) == ((2, 2, 2, 2), 3)
    assert data.fetch(torch.arange(2))[1].tolist() == [[3.0, 3.0, 3.0]] * 2
    with pytest.raises(UsageError, match=r"targets of the train set are \(3,\) and \(4,\); make all of one shape"):
        data.fetch(torch.arange(3))
    data = load(name.replace("make", "tokens"), "", task="language_model")
    assert (data.n_classes, data.fetch(torch.arange(1))[0].tolist()) == (12, [[11, 3]])


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("def make(): raise KeyError('oh')", "raised KeyError: 'oh'"),
        ("def other(): pass", "has no make; define it there"),
        ("def make(): return None", "returned a NoneType"),
        ("def make(): return torch.ones(3, 2), [0], torch.ones(3, 2), [0]", "train_y is a list"),
        ("def make(): return (np.array([['a']]), np.ones(1, int)) * 2", "train_x is an array of <U1"),
        ("def make(): return (torch.ones(3, 2), torch.ones(4).long()) * 2", "train_x has 3 samples, train_y 4"),
        ("def make(): return (torch.ones(0, 2), torch.ones(0).long()) * 2", "train set is empty"),
        ("def make(): return (torch.ones(3, 2), -torch.ones(3).long()) * 2", "labels go from -1 to -1"),
        ("def make(): y = torch.ones(3).long(); return torch.ones(3, 2), y, torch.ones(3, 4), y", "make them alike"),
        ("def make(): return [1], [1]", "item 0 is not a pair"),
        ("def make(): return ([(torch.ones(2, 2), 0)],) * 2", "C x H x W"),
    ],
)
def test_a_users_faults_are_told(user_module: WriteModule, body: str, told: str) -> None:
    message = refusal(name := user_module(body))
    assert message.startswith(f"--dataset {name}: ")
    assert told in message
