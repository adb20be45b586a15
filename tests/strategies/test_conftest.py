"""The option with which the suites of all strategies are those of one, also of a class of a user's own."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from strategies import RunSize, UsageError
from strategies.all_reduce.ring_all_reduce import RingAllReduce
from tests.ranks import LIMIT
from tests.strategies.loops import fit, sizes, variants, with_workers

ROOT = Path(__file__).parents[2]
OWN = '''
from dataclasses import dataclass
from strategies.all_reduce.ring_all_reduce import RingAllReduce

@dataclass(kw_only=True)
class Forgetful(RingAllReduce):
    """The ring, but each worker has the weight of one, whatever its samples."""

    def step(self, n_samples: int) -> None:
        g = self.replica.collect()
        self.descent.step(g.div_(self.all_reduce(g, 1)), n_samples)
'''


def suites(folder: Path, *arguments: str, of: str = "tests/strategies") -> subprocess.CompletedProcess[str]:
    python = [sys.executable, "-m", "pytest", str(ROOT / of), "-c", str(ROOT / "pyproject.toml")]
    return subprocess.run([*python, "-p", "no:cacheprovider", *arguments], cwd=folder, capture_output=True, text=True,
                          timeout=10 * LIMIT, check=False)  # fmt: skip


@dataclass(kw_only=True)
class PowersOfTwo(RingAllReduce):
    """A ring of 1, 2, 4 or 8 ranks."""

    def check(self, run: RunSize) -> None:
        """See Strategy."""
        if run.n_ranks & (run.n_ranks - 1):
            raise UsageError(f"--n_gpus {run.n_ranks}: must be a power of two")


def test_a_strategy_may_refuse_some_numbers_of_ranks() -> None:
    assert list(sizes(PowersOfTwo)) == [1, 2, 4]
    assert [fit(PowersOfTwo, n) for n in (1, 3, 5, 7)] == [1, 2, 4, 8]
    assert with_workers(PowersOfTwo, 3) == 2
    assert all(variants(PowersOfTwo, n) for n in sizes(PowersOfTwo))


@pytest.mark.slow
def test_one_strategy_of_the_table(tmp_path: Path) -> None:
    """Wherever they are: those with its name or class, of its source, of its own file, and of the whole table."""
    done = suites(tmp_path, "--strategy", "sharded_ring", "--collect-only", "-o", "addopts=-q", of="tests")
    assert done.returncode == 0, done.stdout + done.stderr
    collected = re.findall(r"^tests/(.*)::(.*)$", done.stdout, re.MULTILINE)
    others = [(file, test) for file, test in collected if "sharded_ring" not in file + test]
    assert {file for file, _ in others} <= {
        "training/test_catalogue.py", "training/test_options.py", "training/test_command_line.py",
        "virtual_time/test_dry_run.py", "training/test_preflight.py", "records/test_known.py",
    }, "all of the table"  # fmt: skip
    for file, test in (
        ("strategies/test_sharded_ring.py", "test_"),
        ("strategies/test_every_strategy.py", "test_it_takes_the_same_steps_as_one_process[sharded_ring-3]"),
        ("virtual_time/test_dry_run.py", "test_a_synchronous_step_takes_what_is_predicted[sharded_ring-None]"),
        ("virtual_time/test_dry_run.py", "test_of_what_has_no_simple_form_nothing_is_predicted"),
        (
            "test_sources.py",
            "test_only_the_table_and_a_strategy_that_derives_from_it_know_a_strategy[strategies/all_red",
        ),
        ("records/test_page.py", "test_every_strategy_has_a_page[sharded_ring]"),
    ):
        assert [one for one in collected if one[0] == file and one[1].startswith(test)], (file, test)


@pytest.mark.slow
@pytest.mark.timeout(10 * LIMIT)
def test_a_class_of_a_users_own_and_what_is_wrong_with_it(tmp_path: Path) -> None:
    (tmp_path / "mymodule.py").write_text(OWN)
    done = suites(tmp_path, "--strategy", "mymodule:Forgetful", "-k", "takes_the_same_steps and 3 or first_line")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED" in done.stdout
    assert "test_its_first_line_describes_it[mymodule:Forgetful]" not in done.stdout, "only what is wrong"
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert all("mymodule:Forgetful" in line for line in failed)
    assert any("test_it_takes_the_same_steps_as_one_process[mymodule:Forgetful-3]" in line for line in failed)


@pytest.mark.slow
def test_what_is_no_strategy_is_one_line(tmp_path: Path) -> None:
    done = suites(tmp_path, "--strategy", "downpur", "--collect-only")
    assert done.returncode != 0
    assert "did you mean downpour?" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
