"""The contract suite takes engines that it has never seen."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines import import_engine
from tests.ranks import LIMIT
from tests.runs import ROOT

SUITE = "tests/core/transports/contract"


@pytest.mark.end_to_end
@pytest.mark.parametrize("outside", ["tests.ranks:InVirtualTime", "tests.backend.engine:GroupRanks"])
def test_engines_outside_the_suite_pass(outside: str) -> None:
    command = [sys.executable, "-m", "pytest", SUITE, "--transport", outside, "-n0", "-vv"]
    done = subprocess.run(
        [*command, "-m", "not slow", "-p", "no:cacheprovider"], cwd=ROOT, capture_output=True, text=True,
        timeout=LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    modules = {path.name for path in (ROOT / SUITE).glob("test_*.py")} - {"test_deaths.py"}
    assert {Path(name).name for name in re.findall(r"(\S+\.py)::\S+ PASSED", done.stdout)} == modules


def test_what_is_no_engine_is_refused() -> None:
    with pytest.raises(TypeError, match=r"--transport tests\.ranks:Link: not a kind of"):
        import_engine("tests.ranks:Link")
