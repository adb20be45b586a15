"""Ranks run what a script without a main guard or a notebook's cell defines, without running these again."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.ranks import LIMIT
from tests.runs import ROOT

WORK = """
import sys
from dataclasses import dataclass

sys.path.insert(0, {root!r})
import torch
from strategies.collectives import ring_all_reduce
from gradwire import launch

@dataclass
class Sum:
    value: float

factor = 2.0

def work(transport, start):
    vector = torch.full((4,), start.value * factor + transport.rank)
    ring_all_reduce(vector, transport)
    return Sum(float(vector[0]))

print(launch(work, 3, Sum(1.0)) == [Sum(9.0)] * 3)
"""


@pytest.mark.end_to_end
def test_a_script_without_a_main_guard_may_launch_what_it_defines(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(WORK.format(root=str(ROOT)))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.slow
@pytest.mark.end_to_end
def test_a_notebook_may_launch_what_its_cells_define(tmp_path: Path) -> None:
    cell = nbformat.v4.new_code_cell(WORK.format(root=str(ROOT)))
    node = nbformat.v4.new_notebook(cells=[cell])
    NotebookClient(
        node, timeout=LIMIT, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert node.cells[0].outputs[0]["text"] == "True\n"
