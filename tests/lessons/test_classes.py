"""The report on a class."""

from pathlib import Path

import pytest

from lessons import classes
from tests.runs import said_by

HEADER = "name,lab,points,kind,first mistake,flags\n"
GRADES = (
    HEADER
    + """ann,ring,100,right,"right, and as good as is known",
bob,ring,40,wrong,"N = 3, rank 1: line 23 of bob.py (vector / N) gives the sum, 12 elements",
cy,ring,40,wrong,"N = 4, rank 2: line 7 of ring.py (x = y / 4) gives the sum, 24 elements",
dan,ring,0,hole,"still to be written, line 14 of dan.py: all_reduce",
ann,memory,20,kept,"step 1: 48 bytes are held",
"""
)


def test_mistakes_that_differ_in_numbers_and_lines_count_as_one(tmp_path: Path) -> None:
    (tmp_path / "grades.csv").write_text(GRADES)
    code, text = said_by(lambda: classes.main([str(tmp_path / "grades.csv")]))
    assert code == 0
    assert "judged in" not in text  # grades of an earlier version have no seconds
    assert "ring: 4 submissions, 1 with 100 points, median 40" in text
    assert "2  wrong: a line gives the sum, # elements" in text
    assert "1  hole: still to be written, a line: all_reduce" in text
    assert "memory: 1 submissions, 0 with 100 points, median 20" in text
    shown = said_by(lambda: classes.main([str(tmp_path / "grades.csv"), "--most", "1"]))[1]
    assert "and 1 other mistakes" in shown
    assert "hole" not in shown


def test_the_median_of_the_seconds_is_that_of_the_judged(tmp_path: Path) -> None:
    rows = ["ann,ring,100,right,,,2.0", "bob,ring,0,wrong,,,9.0", "cy,ring,0,wrong,,,4.0", "dan,ring,0,failed,,,"]
    (tmp_path / "grades.csv").write_text("\n".join([HEADER.rstrip() + ",seconds", *rows]))
    assert "median 0, judged in 4.0 s (median)" in said_by(lambda: classes.main([str(tmp_path / "grades.csv")]))[1]


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        HEADER,
        "a,b\n1,2\n",
        HEADER + "ann,ring,many,right,,\n",
        HEADER.replace("\n", ",seconds\nann,ring,0,wrong,,,soon\n"),
    ],
)
def test_what_are_no_grades_is_bad_usage(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "grades.csv").write_text(content)
    code, text = said_by(lambda: classes.main([str(tmp_path / "grades.csv")]))
    assert (code, "give the grades.csv that lessons.grade has written" in text) == (2, True), text
