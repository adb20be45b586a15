"""What the tests of several files use."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.workloads.pictures import write_pictures


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Gives a function that writes a module into the current directory and names its function `make`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"user_{tmp_path.name}"

    def write(body: str) -> str:
        imports = "import numpy as np, torch\nfrom torch import nn\nfrom torch.utils.data import *\n"
        (tmp_path / f"{name}.py").write_text(f"{imports}{body}\n")
        return f"{name}:make"

    return write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"))
