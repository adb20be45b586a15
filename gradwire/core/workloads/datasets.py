"""The data sets by name: small digits, a synthetic one, the user's own, and what wings add."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import interpolate

from gradwire.core.records.errors import UsageError, unknown
from gradwire.core.workloads.assemble import from_arrays, of_any_task
from gradwire.core.workloads.data import BadData, Data, refused
from gradwire.core.workloads.lookup import call_user_function
from gradwire.core.workloads.options import DataOptions
from gradwire.core.workloads.tasks import CLASSIFICATION, find


@dataclass(frozen=True)
class Source:
    """A data set by name: `load(options, data_dir, seed)` returns it. Raises UsageError."""

    load: Callable[[Any, Path, int], Data]


def load(options: DataOptions, seed: int = 0) -> Data:
    """Load a data set into memory, or open it if it is decoded on demand.

    yourmodule:function is called without argument for four tensors or arrays (train_x, train_y, test_x, test_y) or for
    two map-style datasets (train, test) of items (x, y), by default of classes. `--train_size` takes the first samples
    of a fixed permutation. `seed` makes the synthetic data set, and the random cuts of imagefolder; the others do not
    depend on it. Raises UsageError if there is no such data set, or it is missing, damaged, badly formed or too small.
    """
    if options.task is not None:
        find(options.task)
    try:
        data = _load_whole(options, Path(options.data_dir).expanduser(), seed)
    except BadData as error:
        raise refused(options.dataset, error) from error
    data, size = replace(data, name=str(options.dataset)), options.train_size
    if options.task == CLASSIFICATION and data.vocabulary is not None:
        raise UsageError(f"--task {CLASSIFICATION}: --dataset {options.dataset} has no classes; leave it out")
    data = data if options.task is None else replace(data, task=options.task)
    if not 0 <= size <= data.n_train:
        raise UsageError(
            f"--train_size: {size} is not in 1..{data.n_train}, what {options.dataset} has; take 0 for all"
        )
    if not size:
        return data
    chosen = np.random.default_rng(0).permutation(data.n_train)[:size]
    return replace(data, train=data.train.subset(torch.from_numpy(chosen)))


def _load_whole(options: DataOptions, data_dir: Path, seed: int) -> Data:
    name = options.dataset
    if name not in DATASETS and ":" not in name:
        raise unknown("--dataset", name, DATASETS, "yourmodule:function")
    source = DATASETS.get(name) or Source(lambda *_: _user(name, options.task in (None, CLASSIFICATION)))
    return source.load(options, data_dir, seed)


def _user(name: str, is_class: bool) -> Data:
    result = call_user_function("--dataset", name)
    if isinstance(result, (tuple, list)) and len(result) in MAKERS:
        return MAKERS[len(result)](str(name), result, is_class)
    kind = f"{len(result)} things" if isinstance(result, (tuple, list)) else f"a {type(result).__name__}"
    raise BadData(f"returned {kind}; return (train_x, train_y, test_x, test_y) or (train Dataset, test Dataset)")


def _synthetic(seed: int, n_train: int = 2048, n_test: int = 512, n_classes: int = 10) -> Data:
    """Smooth random images, each the enlargement of 4 x 4 numbers; a linear teacher labels them."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n_train + n_test, 1, 4, 4, generator=generator)
    y = (hidden.flatten(1) @ torch.randn(16, n_classes, generator=generator)).argmax(1)
    x = interpolate(hidden, size=(28, 28), mode="bilinear")
    x += 0.1 * torch.randn(x.shape, generator=generator)
    return from_arrays((x[:n_train], y[:n_train], x[n_train:], y[n_train:]), n_classes)


def _digits() -> Data:
    """The 8 x 8 digits of the UCI archive (Alpaydin and Kaynak, 1998, CC BY 4.0), as in scikit-learn, a fifth held out.

    The file is scikit-learn's `load_digits`, split by `train_test_split(x, y, test_size=0.2, stratify=y,
    random_state=0)`: kept here, since importing scikit-learn takes a second.
    """
    with np.load(Path(__file__).with_name("digits.npz")) as kept:
        train_x, test_x = ((kept[name] / 16).astype(np.float32).reshape(-1, 1, 8, 8) for name in ("train_x", "test_x"))
        train_y, test_y = (kept[name].astype(np.int64) for name in ("train_y", "test_y"))
    scale = (float(train_x.mean()),), (float(train_x.std()),)
    return from_arrays((train_x, train_y, test_x, test_y), scale=scale)


MAKERS: dict[int, Callable[[str, Sequence[Any], bool], Data]] = {
    4: lambda name, arrays, is_class: from_arrays(arrays) if is_class else of_any_task(arrays)
}
"""What makes a data set of so many objects of yourmodule:function, given its name and whether targets are classes.

Wings add theirs.
"""
DATASETS = {
    "synthetic": Source(lambda options, data_dir, seed: _synthetic(seed)),
    "digits": Source(lambda options, data_dir, seed: _digits()),
}
"""The data sets that `load` knows, besides yourmodule:function; wings add theirs."""
