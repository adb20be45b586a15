"""What a student hands in: which file is that of a lab, what is flagged, and when it is judged again."""

from pathlib import Path

import pytest

from lessons import submissions
from lessons.check import SOLUTIONS
from lessons.lab import Fault
from lessons.labs import LABS
from lessons.submissions import find_file, find_flags, key_of
from tests.runs import ROOT

SOLVED = (SOLUTIONS / "ring.py").read_text()


def test_the_file_of_a_lab_is_found_or_what_is_ambiguous_is_said(tmp_path: Path) -> None:
    def found(lab: str, alone: bool = True) -> str:
        try:
            return str(find_file(LABS[lab], tmp_path, alone).relative_to(tmp_path))
        except Fault as fault:
            return str(fault)

    assert found("ring") == "there is no ring.py, and no file that defines all_reduce"
    (tmp_path / "mine.py").write_text("def all_reduce(:\n")
    assert found("ring") == "mine.py", "which then cannot be imported"
    assert "there is no ring.py" in found("ring", alone=False)
    (tmp_path / "mine.py").write_text(SOLVED)
    (tmp_path / "other.py").write_text((SOLUTIONS / "links.py").read_text())
    assert (found("ring"), found("links")) == ("mine.py", "other.py"), "that of the links has an all_reduce, too"
    (tmp_path / "again.py").write_text(SOLVED)
    assert found("ring") == "which file is it? again.py, mine.py; name one ring.py, or leave the others out"
    (tmp_path / "deep").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "ring.py").write_text("")
    (tmp_path / "deep" / "ring.py").write_text("")
    assert found("ring", alone=False) == "deep/ring.py"
    (tmp_path / "ring.py").write_text("")
    assert found("ring") == "ring.py"


@pytest.mark.parametrize(
    ("text", "flagged"),
    [
        ("import lessons.solutions.ring", True),
        ("from lessons import (\n    solutions)", True),
        ("def f():\n    from strategies.collectives import share_reduce", True),
        ("from strategies import (\n    RingAllReduce,\n    collectives)", True),
        ("import strategies as s", True),
        ("importlib.import_module('lessons.solutions.ring')", True),
        ("__import__('strategies')", True),
        ("exec(open('/x/lessons/solutions/ring.py').read())", True),
        ("import importlib as i\ni.import_module('strat' + 'egies')", True),
        ("getattr(__import__('lessons.' + x), y)", True),
        ("import sys\ns = sys.modules", True),
        ("from lessons.labs.not_waiting_words import descend", True),
        ("'''As strategies/collectives.py has it.'''  # strategies", False),
        ((ROOT / "lessons" / "ring.py").read_text(), False),
        ("from lessons import lab\nimport torch", False),
    ],
)
def test_what_uses_solutions_or_strategies_is_flagged(tmp_path: Path, text: str, flagged: bool) -> None:
    for name in ("ring.py", "helper.py"):
        (tmp_path / "ring.py").write_text("")
        (tmp_path / name).write_text(text)
        flags = find_flags(LABS["ring"], tmp_path / "ring.py", tmp_path)
        assert (len(flags), any(name in flag for flag in flags)) == (flagged, flagged)
    (tmp_path / name).rename(tmp_path / "links.py")
    (tmp_path / "my_shards.py").write_text(f"{text}\ndef step():\n    pass\n")
    assert not find_flags(LABS["ring"], tmp_path / "ring.py", tmp_path), "which are graded as other labs'"


def test_a_key_changes_with_the_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ring.py").write_text("a")
    key = key_of(LABS["ring"], tmp_path)
    assert key != key_of(LABS["links"], tmp_path)
    with monkeypatch.context() as changed:
        changed.setattr(submissions, "LESSONS", SOLUTIONS)
        assert key != key_of(LABS["ring"], tmp_path)
    (tmp_path / "ring.py").write_text("b")
    assert key != key_of(LABS["ring"], tmp_path)
