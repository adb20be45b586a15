"""The commands that show finished runs: bad input gets one line and writes nothing, a failed write leaves nothing."""

import errno
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from gradwire.core.records.unfinished import EVENTS_SUFFIX
from gradwire.pictures import compare, page, plot, staleness, timeline
from gradwire.results import load_events
from tests.ranks import LIMIT
from tests.runs import ROOT

MAIN: dict[str, Callable[[list[str]], int]] = {
    "compare": compare.main,
    "page": page.main,
    "plot": plot.main,
    "staleness": staleness.main,
    "timeline": timeline.main,
}
TOO_MANY = [f"copy{i}.json" for i in range(plot.MOST + 1)]


@pytest.fixture(scope="module")
def damaged(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs, and beside them what is none."""
    folder = Path(shutil.copytree(results, tmp_path_factory.mktemp("damaged") / "results"))
    events, csv = ((folder / f"single.1{suffix}").read_bytes() for suffix in (EVENTS_SUFFIX, ".csv"))
    facts = json.loads((folder / "single.1.json").read_text())
    of_three = load_events(folder / "param_server.1")
    backwards = of_three.assign(t1=-1.0).to_csv(index=False).encode()
    made: dict[str, tuple[bytes, Any]] = {
        "torn": (events[:-20], facts),
        "backwards": (gzip.compress(backwards), facts | {"roles": ["server", "worker", "worker"]}),
        "broken": (events, [1]),
        "fewer": (gzip.compress(of_three.to_csv(index=False).encode()), facts),
        "roleless": (events, {key: value for key, value in facts.items() if key != "roles"}),
        "deaths": (events, facts | {"deaths": [{"rank": "1"}]}),
    }
    for name, (content, metadata) in made.items():
        (folder / f"{name}{EVENTS_SUFFIX}").write_bytes(content)
        (folder / f"{name}.json").write_text(json.dumps(metadata))
    for name, table in {"ragged": b"a,b\n1,2\n1,2,3\n", "deep": csv}.items():
        (folder / f"{name}.csv").write_bytes(table)
    (folder / "deep.json").write_text("[" * 200_000)
    (folder / "single.1.trace.json").write_text('{"traceEvents": []}')
    (folder / "link.html").symlink_to("single.1.json")
    for copy in TOO_MANY:
        for suffix in (".csv", ".json"):
            (folder / copy).with_suffix(suffix).symlink_to(folder / f"single.1{suffix}")
    return folder


WRONG: list[tuple[str, ...]] = [  # a command, and what its line says
    ("timeline missing", "missing", "no such run", "RESULTS_DIR/RUN_NAME"),
    ("timeline silent", "silent.events.csv.gz", "without events", "--no_events"),
    ("timeline torn", "torn.events.csv.gz", "damaged", "repeat"),
    ("timeline backwards", "backwards.events.csv.gz", "damaged", "repeat"),
    ("timeline fewer", "fewer.events.csv.gz", "same run", "fewer.json"),
    ("timeline roleless", "roleless.json", "roles"),
    ("timeline deaths", "deaths.json: its deaths are not a list of ranks"),
    ("timeline single.1 --step 99", "--step 99", "steps 1 to 24"),
    ("page single.1 --step 9999", "--step 9999 --steps 1: the run has the steps 1 to"),
    ("page single.1 --out single.1.json", "end it with .html"),
    ("page single.1 --out link.html", "link.html: the name of a run's records"),
    ("staleness ring_all_reduce.1", "ring_all_reduce.1: ring_all_reduce recorded no versions"),
    ("compare single.1.csv nothing*.json", "compare: nothing*.json"),
    ("compare single.1.csv broken.json", "compare: broken."),
    ("compare single.1.csv ragged.csv", "compare: ragged.csv"),
    ("compare single.1.csv deep.csv", "compare: deep.json"),
    ("compare single.1.csv --lats", "compare: unrecognized arguments: --lats; see --help"),
    ("compare single.1.csv --last 0", "compare: --last 0: must be 1 or more"),
    ("compare single.1.trace.json", "compare: single.1.trace.json: not the record of a run; give its .json"),
    ("compare", "compare: results/*.json: no such file; give the .json of a run"),
    ("plot single.1.json --out picture.jpeg", "plot: --out picture.jpeg: must end in .png"),
    ("plot single.1.json --out no/f.png", "plot: cannot write no/f.png: No such file or directory"),
    (f"plot {' '.join(TOO_MANY)}", f"plot: {len(TOO_MANY)} runs are too many to tell apart"),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong[0][:40])
def test_bad_input_gets_one_line_and_writes_nothing(
    damaged: Path, wrong: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(damaged)
    before = {path: path.stat().st_mtime_ns for path in damaged.rglob("*")}
    command, *arguments = wrong[0].split()
    assert MAIN[command](arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith(f"{command}: ")
    for part in wrong[1:]:
        assert part in line
    assert {path: path.stat().st_mtime_ns for path in damaged.rglob("*")} == before


@pytest.mark.parametrize(
    ("command", "where", "said"),
    [
        ("timeline", (os, "replace"), ("single.1.timeline.png", "single.1.trace.json", "No space left", "copy")),
        ("timeline", (Figure, "savefig"), ("single.1.timeline.png", "single.1.trace.json")),
        ("staleness", (os, "replace"), ("async_param_server.1.staleness.png: No space left",)),
    ],
)  # fmt: skip
def test_a_failed_write_leaves_nothing(
    own: Path, command: str, where: tuple[Any, str], said: tuple[str, ...], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = sorted(os.listdir(own))
    monkeypatch.setattr(*where, fail)
    assert MAIN[command]([str(own / ("single.1" if command == "timeline" else "async_param_server.1"))]) == 2
    monkeypatch.undo()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{command}: cannot write")
    assert all(part in line for part in said)
    assert sorted(os.listdir(own)) == before


WITHOUT_PYPLOT = """
import sys, gradwire.pictures.plot, gradwire.pictures.timeline
from gradwire.pictures.staleness import main
code = main(sys.argv[1:])
sys.exit("a backend is chosen for others" if "matplotlib.pyplot" in sys.modules else code)
"""


def test_a_command_works_anywhere_and_its_reader_may_stop_reading(own: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", WITHOUT_PYPLOT, "async_param_server.1"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=own, env=environment, stdout=write, stderr=subprocess.PIPE, text=True,
                          timeout=LIMIT, check=False)  # fmt: skip
    os.close(write)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
    assert (own / "async_param_server.1.staleness.png").exists()
