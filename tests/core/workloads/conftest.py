"""What the tests of several files use."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.images.pictures import write_pictures


@pytest.fixture
def user_module(own_module: Callable[[str], str]) -> Callable[[str], str]:
    """Gives a function that writes such a module and names its function `make`."""
    imports = "import numpy as np, torch\nfrom torch import nn\nfrom torch.utils.data import *\n"
    return lambda body: f"{own_module(f'{imports}{body}')}:make"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"))
