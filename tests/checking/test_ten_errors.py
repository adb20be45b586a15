"""The exercise of the course: ten scripts, each with the error that its answer names."""

import re

import pytest

from gradwire.checking.command import check
from gradwire.torch_scripts.script import Script
from gradwire.torch_scripts.simulate import ClusterScript
from tests.runs import ROOT

ANSWERS = (ROOT / "lessons" / "solutions" / "ten_errors.md").read_text()
KINDS = re.findall(r"^\| `(\d+\.py)` \| ([a-z ]+) \|", ANSWERS, re.MULTILINE)


def test_there_are_ten() -> None:
    assert [name for name, _ in KINDS] == [f"{i}.py" for i in range(1, 11)]


@pytest.mark.parametrize(
    ("name", "kind"), [pytest.param(*of, marks=[] if of in KINDS[::4] else pytest.mark.exhaustive) for of in KINDS]
)
def test_a_script_has_one_error_and_it_is_the_one_of_its_answer(name: str, kind: str) -> None:
    path = str(ROOT / "lessons" / "ten_errors" / name)
    found = check(ClusterScript(script=path, n_gpus=3, flops=1e12), Script(path))
    assert [finding.kind for finding in found.findings] == [kind]
    assert found.failure == ""
