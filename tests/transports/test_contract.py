"""The contract suite takes transports that it has never seen: here that of docs/transports.md, whole and broken."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines import Engine, import_engine
from tests.ranks import LIMIT
from tests.runs import ROOT

EXAMPLE = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "transports.md").read_text(encoding="utf-8"), re.DOTALL)
SUITE = "tests/transports/contract"


def contract(folder: Path, source: str, *options: str) -> tuple[int, str]:
    """Put the engine in this source through the suite; return pytest's exit code and what it said."""
    (folder / "threads.py").write_text(source)
    command = [sys.executable, "-m", "pytest", SUITE, "--transport", "threads:ThreadEngine", "-n0", "-m", "not slow"]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", *options],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.end_to_end
def test_the_example_of_the_documentation_passes(tmp_path: Path) -> None:
    code, said = contract(tmp_path, EXAMPLE[0], "-vv")
    assert code == 0, said
    modules = {path.name for path in (ROOT / SUITE).glob("test_*.py")} - {"test_deaths.py"}
    assert {Path(name).name for name in re.findall(r"(\S+\.py)::\S+ PASSED", said)} == modules


def test_what_is_no_engine_is_refused() -> None:
    assert isinstance(import_engine("tests.ranks:InVirtualTime"), Engine)
    with pytest.raises(TypeError, match=r"--transport tests\.ranks:Link: not a kind of"):
        import_engine("tests.ranks:Link")
