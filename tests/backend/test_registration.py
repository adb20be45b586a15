"""`import gradwire` is enough for `init_process_group("gradwire")`, before `import torch` as well as after it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ranks import LIMIT
from tests.runs import ROOT

SCRIPT = """
import sys
sys.path.append({root!r})
sys.modules["importlib.metadata"].entry_points = lambda **_: ()  # no installed package has a backend
{imports}
print("torch.distributed" in sys.modules)
import torch.distributed as dist
print("gradwire" in dist.Backend.backend_list)
"""


@pytest.mark.parametrize(
    ("imports", "is_loaded"),
    [("import gradwire", False),  # all other tests import torch first
     pytest.param("import torch.distributed\nimport gradwire", True, marks=pytest.mark.exhaustive)],
)  # fmt: skip
def test_the_backend_is_known_whichever_is_imported_first(imports: str, is_loaded: bool, tmp_path: Path) -> None:
    script = "import importlib.metadata" + SCRIPT.format(root=str(ROOT), imports=imports)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT, cwd=tmp_path,
                          check=True)  # fmt: skip
    assert done.stdout.split() == [str(is_loaded), "True"]
