"""Wrong scripts, each found wrong for its cause, and right scripts that look like them, in which nothing is found."""

import re
from pathlib import Path

import pytest

from gradwire.checking.command import Checked, check
from gradwire.torch_scripts.script import Script
from gradwire.torch_scripts.simulate import ClusterScript
from tests.selection import by_default

SCRIPTS = Path(__file__).parent / "scripts"
RIGHT = sorted(path.name for path in SCRIPTS.glob("right_*.py"))
WRONG = sorted(path.name for path in SCRIPTS.glob("wrong_*.py"))


def checked(name: str, n: int = 3, steps: int | None = None) -> Checked:
    path = str(SCRIPTS / name)
    return check(ClusterScript(script=path, n_gpus=n, flops=1e12), Script(path), steps)


@pytest.mark.parametrize("name", by_default(WRONG[::3], WRONG))
def test_a_wrong_script_is_found_for_its_cause(name: str) -> None:
    """The first line of the script says what is found, as a pattern."""
    wanted = (SCRIPTS / name).read_text().splitlines()[0].removeprefix("# finds: ")
    found = checked(name)
    first = found.findings[0]
    assert re.match(wanted, f"{'note: ' if first.is_note else ''}{first.kind}: {first.what} {first.cure}")
    assert found.failure == ""
    assert len(found.wrong) <= 1


@pytest.mark.parametrize("name", by_default(RIGHT[::4], RIGHT))
@pytest.mark.parametrize("n", [3, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (2, 4))])
def test_nothing_is_found_in_a_right_script(name: str, n: int) -> None:
    found = checked(name, n)
    assert (found.wrong, found.failure) == ([], "")
