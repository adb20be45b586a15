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


BROKEN = {  # what is replaced by what, and which test finds it
    "test_a_number_arrives_beside_every_payload": ("nbytes, n), sent))", "nbytes, 0), sent))"),
    "test_what_is_not_allocated_may_be_changed": ("as_vector(value).clone()", "as_vector(value)"),
    "test_others_go_on_when_rank_0_has_left": ('put((Message(self.rank, "(goodbye)", None, b"", 0), 0.0))', "qsize()"),
}


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_transport_that_breaks_promises_fails(tmp_path: Path) -> None:
    source = EXAMPLE[0].replace("LIMIT, recorder", "2.0, recorder")
    for right, wrong in BROKEN.values():
        assert right in source
        source = source.replace(right, wrong)
    code, said = contract(tmp_path, source, "-k", " or ".join(BROKEN))
    assert code == 1, said
    for test in BROKEN:
        assert re.search(rf"FAILED {SUITE}/\S+::{test}", said), said


def test_what_is_no_engine_is_refused() -> None:
    assert isinstance(import_engine("tests.ranks:InVirtualTime"), Engine)
    with pytest.raises(TypeError, match=r"--transport tests\.ranks:Link: not a kind of"):
        import_engine("tests.ranks:Link")
