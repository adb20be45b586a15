"""`gradwire new` writes a strategy or a codec that works at once, or nothing."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from gradwire import new
from strategies import FAMILIES
from tests.ranks import LIMIT
from tests.runs import ROOT, said_by

KINDS = [*(("strategy", family) for family in FAMILIES if family), ("codec", "")]
COPIED = ("gradwire", "strategies", "tests", "docs", "lessons", "benchmarks", "results")
LONGEST = "a_name_of_no_more_than_30_char"


def words(what: str, name: str, family: str) -> list[str]:
    return [what, name, *(["--family", family] if family else [])]


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty clone of the repository, into which files are written."""
    for folder in ("gradwire/compression", "tests/compression/plain", "tests/strategies/plain"):
        (tmp_path / folder).mkdir(parents=True)
    for family in FAMILIES:
        (tmp_path / "strategies" / family).mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(new, "_PROJECT", tmp_path)
    return tmp_path


def written(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_it_says_what_it_wrote_and_what_comes_next(clone: Path) -> None:
    code, output = said_by(lambda: new.main(["strategy", "my_ring", "--family", "all_reduce"]))
    assert (code, output.splitlines()) == (0, [
        "wrote strategies/all_reduce/my_ring.py", "wrote tests/strategies/test_my_ring.py",
        "next:", "    python -m docs.pages", "    pytest --strategy my_ring",
    ])  # fmt: skip
    assert written(clone) == ["strategies/all_reduce/my_ring.py", "tests/strategies/test_my_ring.py"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("strategy my-ring --family all_reduce", "my-ring: is no name of a module"),
        ("strategy MyRing --family all_reduce", "MyRing: is no name of a module"),
        ("strategy class --family all_reduce", "class: is no name of a module"),
        (f"strategy {LONGEST}s --family all_reduce", "has 31 characters; take at most 30"),
        ("strategy my_ring", "give its --family too, one of synchronous_server,"),
        ("strategy my_ring --family ring", "--family ring: unknown; there are synchronous_server,"),
        ("strategy swing --family lock_free", "strategy swing: exists; take another name"),
        ("strategy easgd --family all_reduce", "strategy easgd: exists; take another name"),  # ElasticAveraging
        ("strategy elastic_averaging --family lock_free", "there is a class ElasticAveraging; take another name"),
        ("strategy traits --family lock_free", "there is a class Traits; take another name"),
        ("codec my_code --family lock_free", "--family lock_free: codecs have none; leave it out"),
        ("codec base", "base.py exists; take another name"),
        ("codec sign", "codec sign: exists; take another name"),
        ("layer mine", "invalid choice 'layer'"),
        ("strategy", "give NAME; see --help"),
    ],
)
def test_what_cannot_be_written_gets_one_line(clone: Path, arguments: str, expected: str) -> None:
    (clone / "gradwire" / "compression" / "base.py").touch()
    code, output = said_by(lambda: new.main(arguments.split()))
    assert code == 2
    assert expected in output
    assert output.count("\n") == 1
    assert written(clone) == ["gradwire/compression/base.py"]


def test_nothing_is_half_written(clone: Path) -> None:
    (clone / "tests" / "compression" / "plain").rmdir()
    code, output = said_by(lambda: new.main(["codec", "my_code"]))
    assert (code, output.count("\n")) == (2, 1)
    assert "cannot be written" in output
    assert written(clone) == []


def test_outside_a_clone_it_says_so(clone: Path) -> None:
    shutil.rmtree(clone / "tests")
    code, output = said_by(lambda: new.main(["codec", "my_code"]))
    assert code == 2
    assert "is no clone of the repository; run this in one" in output


@pytest.mark.skipif(find_spec("ruff") is None, reason="ruff is not installed")
def test_what_is_written_is_clean(clone: Path) -> None:
    for i, (what, family) in enumerate(KINDS):
        assert said_by(lambda: new.main(words(what, f"{LONGEST[:-1]}{i}", family)))[0] == 0  # noqa: B023 - at once
    shutil.copy(ROOT / "pyproject.toml", clone)
    ours = "lint.isort.known-first-party = ['gradwire', 'strategies', 'tests']"  # of which little is there
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run([sys.executable, "-m", "ruff", *command, "--no-cache", "--config", ours, "."], cwd=clone,
                              capture_output=True, text=True, timeout=LIMIT, check=False)  # fmt: skip
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("what", "family"),
    [
        pytest.param(*kind, marks=pytest.mark.end_to_end if kind[1] == "local_models" else pytest.mark.exhaustive)
        for kind in KINDS
    ],
)
def test_what_is_written_passes_the_suites(tmp_path: Path, what: str, family: str) -> None:
    for folder in COPIED:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / file, tmp_path)
    suites = ("test_my_own.py", "test_every_plain_program.py", "test_every_strategy.py", "test_traffic.py")
    tests = [f"tests/strategies/{suite}" for suite in suites] if what == "strategy" else ["tests/compression"]
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    for command in (
        ["-m", "gradwire", "new", *words(what, "my_own", family)],
        ["-m", "docs.pages"],
        ["-m", "pytest", "-n", "0", f"--{what}", "my_own", *tests],
    ):
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True,
                              timeout=10 * LIMIT, check=False)  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
