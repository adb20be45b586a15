"""Runs that the tests of pages, timelines and tables share."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from tests.pictures.samples import WORLDS, simulated


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records of WORLDS by `STRATEGY.1`, and those of a run without events, `silent`."""
    folder = tmp_path_factory.mktemp("results")
    for strategy, n_gpus in WORLDS.items():
        simulated(folder, strategy, name=f"{strategy}.1", n_gpus=n_gpus, bandwidth=1e6, latency=1e-3)
    simulated(folder, "single", name="silent", n_gpus=1, events=False)
    return folder


@pytest.fixture
def own(results: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(results, tmp_path / "results"))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved."""
    found: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *args: Any, **more: Any) -> None:
        found.append(figure)
        save(figure, *args, **more)

    monkeypatch.setattr(Figure, "savefig", keep)
    return found


@pytest.hookimpl(tryfirst=True)  # before the process of each group is chosen
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One process makes the runs, for all tests that read them."""
    for item in items:
        if item.path.parent == Path(__file__).parent and "results" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("results"))
