"""The README's complete examples run as printed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ranks import LIMIT

ROOT = Path(__file__).parent.parent


OWN_LOOP, OWN_STRATEGY = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.slow
def test_the_example_of_ones_own_strategy_trains_by_its_name(tmp_path: Path) -> None:
    assert OWN_STRATEGY.count("\n") < 40
    (tmp_path / "mine.py").write_text(OWN_STRATEGY)
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), "--strategy", "mine:EveryOther", "--n_gpus", "2", "--rest", "3"],
        cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (record,) = (tmp_path / "results").glob("*.json")
    facts = json.loads(record.read_text())
    assert facts["strategy"] == "mine:EveryOther"
    assert facts["options"]["rest"] == 3
    assert facts["test_accuracy"] > 0.9


@pytest.mark.slow
def test_the_example_of_ones_own_loop_runs_as_printed(tmp_path: Path) -> None:
    assert OWN_LOOP.count("\n") < 40
    script = tmp_path / "own_loop.py"
    script.write_text(OWN_LOOP)
    done = subprocess.run(
        [sys.executable, str(script)], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    values = re.findall(r"(\w+) \[(.*)\]", done.stdout)
    assert [name for name, _ in values] == ["param_server", "ring_all_reduce"]
    for _, ranks in values:
        results = [float(value) for value in ranks.split(",")]
        assert len(results) == 4
        assert len(set(results)) == 1, "all ranks hold the same model"
        assert abs(results[0] - 0.25) < 0.05
