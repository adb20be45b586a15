"""The README's complete example runs as printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_example_of_ones_own_loop_runs_as_printed(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert example.count("\n") < 40
    script = tmp_path / "own_loop.py"
    script.write_text(example)
    done = subprocess.run(
        [sys.executable, str(script)], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
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
