"""Bad usage of the commands of the lessons is one line, before anything is run."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.runs import handlers_kept

SAID = {
    "check rnig x.py": "error: rnig: there is no such lab; did you mean ring?",
    "check ring nothing.py": "error: nothing.py: there is no such file",
    "check ring lessons/ring.py --picture x.bmp": "error: --picture x.bmp: must end with .png, .svg, .pdf",
    "check ring lessons/ring.py --json /dev/null/x/y.json": "error: --json /dev/null/x/y.json: cannot be written",
    "check ring lessons/ring.py --json lessons": "error: --json lessons: cannot be written: Is a directory",
    "check ring lessons/ring.py --json lessons/ring.py": "error: --json lessons/ring.py: is your file; give another",
    "check ring lessons/ring.py --json x.json --gradescope ./x.json": "error: --gradescope ./x.json: is --json;",
    "check ring lessons/ring.py --jsn x": "error: --jsn: there is no such option; did you mean --json?",
    "release .": "error: .: exists already; give another name, or remove it",
    "release /dev/null/x": "error: /dev/null/x: cannot be written: Not a directory",
    "autograder rnig": "error: rnig: there is no such lab; did you mean ring?",
    "grade rnig .": "rnig: there is no such lab; did you mean ring?",
    "grade ring nowhere": "/nowhere: there is no such folder; give that with a folder or a .py file for each student",
    "grade ring empty": "/empty: no submission is in it",
    "grade ring twice": "/twice/a.py: has the name of a; rename one",
    "grade ring . --jobs 0": "--jobs 0: must be at least 1",
    "grade ring . --seconds nan": "--seconds nan: must be at least 1",
    "grade ring . --csv twice/b.csv": "--csv twice/b.csv: cannot be written: Is a directory",
    "grade ring . --csv grades.txt": "--csv grades.txt: cannot be written: its name must end with .csv",
    "grade ring . --csv /dev/null/x.csv": "--csv /dev/null/x.csv: cannot be written",
    "grade ring . --cvs x": "--cvs: there is no such option; did you mean --csv?",
}


@pytest.mark.parametrize("line", SAID)
def test_bad_usage_is_one_line(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command, *arguments = line.split()
    if command == "grade" and sys.platform != "linux":
        pytest.skip("the grader needs Linux")
    monkeypatch.chdir(tmp_path)
    for folder in ("empty", "lessons", "twice/a", "twice/b.html"):
        Path(folder).mkdir(parents=True)
    Path("twice/a.py").touch()
    Path("lessons/ring.py").touch()
    with handlers_kept():
        assert import_module(f"lessons.{command}").main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert err.startswith("error: ")
    assert SAID[line] in err
