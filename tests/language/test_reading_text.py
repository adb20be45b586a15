"""Text: whose windows follow each other, in parts that do not overlap."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire.core.records.errors import UsageError
from gradwire.core.workloads import datasets
from gradwire.core.workloads.data import Data
from gradwire.language import pack_text
from gradwire.language.text import Windows
from gradwire.options import Options
from tests.runs import ROOT


def load(file: Path | str = "absent", **options: Any) -> Data:
    name = "text" if file == "absent" else "textfile"
    return datasets.load(Options(dataset=name, data_dir=str(file), **options))


def decoded(data: Data, numbers: torch.Tensor) -> str:
    assert data.vocabulary is not None
    return "".join(data.vocabulary[i] for i in numbers.flatten().tolist())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_bytes("".join(map(chr, range(0x4E00, 0x4E00 + 1000))).encode())  # each character once
    return path


def test_an_epoch_reads_each_character_once_and_nothing_that_is_held_out(file: Path) -> None:
    data = load(file, context=7)
    assert (data.n_classes, data.input_shape, data.n_train, data.n_test) == (1000, (7,), 128, 14)
    text = file.read_text(encoding="utf-8")
    for split, samples, start in (("train", data.train, 0), ("test", data.test, 900)):
        x, y = data.fetch(torch.arange(len(samples)), split)  # type: ignore[arg-type]
        assert x.dtype == y.dtype == torch.int64
        n = 7 * len(samples)
        assert decoded(data, x) == text[start : start + n]
        assert decoded(data, y) == text[start + 1 : start + n + 1]
    x, y = data.fetch(torch.arange(data.n_train))
    assert max(int(x.max()), int(y.max())) < 900
    few, _ = load(file, context=7, train_size=3).fetch(torch.arange(3))
    assert (few[:, 0] % 7 == 0).all()


def test_the_text_that_is_here_is_made_of_its_commit_stored_compactly_and_split_by_position() -> None:
    data = load()
    assert isinstance(data.train, Windows)
    assert isinstance(data.test, Windows)
    whole = torch.cat([data.train.text, data.test.text])
    assert (data.input_shape, whole.dtype, len(data.test.text)) == ((64,), torch.uint8, len(whole) // 10)
    assert "def step(self" in decoded(data, data.train.text)
    known = ["git", "cat-file", "-e", pack_text.COMMIT]
    if subprocess.run(known, cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip("this clone does not have the commit")
    assert decoded(data, whole) == pack_text.packed()


@pytest.mark.parametrize(
    ("content", "context", "told"),
    [
        (None, None, r"^--data_dir \S+: cannot be read \(No such file or directory\); give a file"),
        (b"", None, r"^--data_dir \S+: is empty; give a file"),
        (b"caf\xe9!", None, r"^--data_dir \S+: is no UTF-8: byte 0xe9 at position 3; convert it"),
        (b"a" * 649, None, r"^--context 64: \S+ has 649 characters.* 64 are held out, and a window needs 65"),
        (b"a" * 79, 7, r"^--context 7: .* 7 are held out, and a window needs 8; take a longer text or a smaller"),
    ],
)
def test_what_is_no_text_to_learn_from_is_refused(
    tmp_path: Path, content: bytes | None, context: int | None, told: str
) -> None:
    path = tmp_path / "book.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=told):
        datasets.load(Options(dataset="textfile", data_dir=str(path), context=context))
