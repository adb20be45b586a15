"""What the tests of several files use."""

from pathlib import Path

import pytest

from tests.images.pictures import write_pictures


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"))
