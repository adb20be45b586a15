"""A real browser for tests of pages: Chromium, without a window and without a network."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.ranks import LIMIT

_PROGRAMS = {"chromium": ("chromium", "chromium-browser", "google-chrome"), "its driver": ("chromedriver",)}
_FOUND = {what: next(filter(None, map(shutil.which, names)), None) for what, names in _PROGRAMS.items()}
_MISSING = [what for what, path in _FOUND.items() if path is None]
_CURES = ["apt-get install chromium chromium-driver"] if _MISSING else []
if not find_spec("selenium"):
    _MISSING.append("selenium")
    _CURES.append("pip install -e '.[dev]'")

if TYPE_CHECKING or not _MISSING:  # for it takes seconds to load
    from selenium import webdriver
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.remote.webelement import WebElement
    from selenium.webdriver.support.ui import WebDriverWait
else:
    webdriver = ActionChains = By = Keys = WebElement = WebDriverWait = None  # no test uses them: see NEEDS_BROWSER

__all__ = ["NEEDS_BROWSER", "ActionChains", "Browser", "Keys", "chromium"]

NEEDS_BROWSER = pytest.mark.skipif(
    bool(_MISSING), reason=f"there is no {' and no '.join(_MISSING)}: {' and '.join(_CURES)}"
)


class Browser:
    """A browser with one page open."""

    def __init__(self, driver: "webdriver.Chrome") -> None:
        self.driver = driver

    def open(self, path: Path, width: int = 1600, dark: bool = False, calm: bool = False, ready: bool = True) -> None:
        """Open a file, in a window of this width, for somebody who wants dark colours or no motion."""
        self.logs()
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.prefer(dark, calm)
        self.driver.get(path.as_uri())
        if ready:
            self.until("return !!globalThis.page && page.drawn.frames > 0")

    def prefer(self, dark: bool = False, calm: bool = False) -> None:
        """Tell the page what the user prefers."""
        wishes = {"color-scheme": "dark" if dark else "light", "reduced-motion": "reduce" if calm else "no-preference"}
        features = [{"name": f"prefers-{name}", "value": value} for name, value in wishes.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def run(self, script: str, *args: Any) -> Any:
        """Run a script in the page; return what it returns."""
        return self.driver.execute_script(script, *args)

    def until(self, script: str, *args: Any) -> Any:
        """Run a script again and again until it returns something true, and return that."""
        return WebDriverWait(self.driver, LIMIT, poll_frequency=0.02).until(lambda _: self.run(script, *args), script)

    def frame(self) -> None:
        """Wait until what has changed is drawn."""
        self.driver.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => setTimeout(done, 0));")

    def element(self, css: str) -> WebElement:
        """Return the first element that matches."""
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def text(self, css: str) -> str:
        """Return the text of an element, when what has changed is drawn."""
        self.frame()
        return self.element(css).text

    def logs(self) -> tuple[list[str], list[str]]:
        """Return, since the last call, what the console said, and which addresses were asked for over a network."""
        said = [entry["message"] for entry in self.driver.get_log("browser")]
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return said, [address for address in asked if not address.startswith(("file:", "data:", "about:"))]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Yield a browser, which is closed after the block."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(_FOUND["chromium"])
    # As root there is no sandbox; in a container /dev/shm may be small.
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(str(_FOUND["its driver"])))
    try:
        driver.set_script_timeout(LIMIT)
        driver.set_page_load_timeout(LIMIT)
        yield Browser(driver)
    finally:
        driver.quit()
