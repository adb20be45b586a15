"""Pages in one browser, which the tests of this folder share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gradwire.pictures import page
from gradwire.pictures.finished import Recorded
from gradwire.virtual_time.launcher import Death
from tests.browser import Browser, chromium
from tests.pictures.samples import WORLDS, loaded, simulated


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="package")
def pages(results: Path) -> Path:
    """The folder of the pages, beside the records."""
    for strategy in WORLDS:
        (results / f"{strategy}.html").write_text(page.show(results / f"{strategy}.1").text)
    both = page.show(results / "param_server.1", results / "ring_all_reduce.1")
    (results / "both.html").write_text(both.text)
    return results


@pytest.fixture
def ring(browser: Browser, pages: Path) -> Browser:
    browser.open(pages / "ring_all_reduce.html")
    return browser


@pytest.fixture(autouse=True)
def nothing_is_wrong(browser: Browser) -> Iterator[None]:
    """No page says anything on the console, or asks for anything over a network."""
    yield
    assert browser.logs() == ([], [])


@pytest.fixture(scope="package")
def bereaved(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A run of which rank 2 dies, and rank 3, which returns."""
    simulated(folder := tmp_path_factory.mktemp("bereaved"), "async_param_server", Death(3, 0.02, 0.04), Death(2, 0.03))
    return loaded(folder)
