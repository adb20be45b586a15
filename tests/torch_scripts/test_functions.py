"""A function with torch.distributed on the virtual cluster, from a test, a script and a notebook."""

import os
import sys
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
import torch.distributed as dist
from nbclient import NotebookClient

from gradwire import RunFailed, UsageError, simulate
from gradwire.networks.units import PAYLOAD
from gradwire.results import load_table
from gradwire.torch_scripts import threads
from gradwire.torch_scripts.script import Script
from tests.ranks import LIMIT
from tests.runs import ROOT
from tests.torch_scripts import SCRIPTS

CELL = """
import sys
sys.path.insert(0, {root!r})
import os
import torch
import torch.distributed as dist
from gradwire import simulate

class Found:
    def __init__(self, rank):
        self.rank = rank

counts = []

def count(start):
    dist.init_process_group("gloo")
    total = torch.tensor(float(start + int(os.environ["RANK"])))
    dist.all_reduce(total)
    objects = [Found(dist.get_rank())]
    dist.broadcast_object_list(objects, src=1)
    counts.append(total.item())
    return counts, isinstance(objects[0], Found) and objects[0].rank

found = simulate(count, n_gpus=3, compute="1ms", args=(1,), quiet=True)
print(found.results == [([6.0], 1)] * 3, counts, os.listdir())
"""


def summed(numbers: int) -> float:
    """Return what all ranks get of adding their vectors."""
    dist.init_process_group("gloo")
    vector = torch.full((numbers,), float(dist.get_rank()))
    dist.all_reduce(vector)
    return float(vector[0])


def lonely() -> None:
    """Wait on rank 1 for what no other does."""
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        dist.barrier()


def broken() -> None:
    """Raise an error on rank 2."""
    dist.init_process_group("gloo")
    if int(os.environ["RANK"]) == 2:
        raise ValueError("oh")


@pytest.mark.end_to_end
def test_a_notebook_simulates_what_its_cells_define(tmp_path: Path) -> None:
    again = "print(found)\nfound.table"
    cells = [nbformat.v4.new_code_cell(text) for text in (CELL.format(root=str(ROOT)), again)]
    node = nbformat.v4.new_notebook(cells=cells)
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(node, timeout=LIMIT, kernel_name="python3", resources=where).execute()
    assert node.cells[0].outputs[-1]["text"] == "True [] []\n"
    assert node.cells[1].outputs[0]["text"].startswith("script count, n_gpus 3, time virtual, bandwidth 10gbit\n")
    assert "<table" in node.cells[1].outputs[1]["data"]["text/html"]


@pytest.mark.parametrize("function", [summed, lambda numbers: summed(numbers), partial(summed)])
def test_a_function_returns_what_its_ranks_do_and_takes_their_time(function: Callable[[int], float]) -> None:
    n, bandwidth = 1_000_000, 1e9 / 8 * PAYLOAD
    found = simulate(function, 4, args=(n,), bandwidth="1gbit", latency="50us", compute="1ms", quiet=True)
    assert found.results == [6.0] * 4
    assert found.bytes == 2 * 3 * n * 4
    assert found.seconds == pytest.approx(2 * 3 * (n / bandwidth + 50e-6), rel=1e-3)
    assert found.table["rank"].tolist() == [0, 1, 2, 3]
    assert repr(found).startswith("script ")


def test_another_network_takes_other_seconds() -> None:
    at_one_switch = simulate(summed, 4, args=(10_000,), compute="1ms", quiet=True)
    on_racks = simulate(
        summed, 4, args=(10_000,), compute="1ms", racks=2, rack_bandwidth="100mbit", all_reduce="naive", quiet=True
    )
    assert on_racks.results == at_one_switch.results
    assert on_racks.seconds > 2 * at_one_switch.seconds


def test_records_are_written_where_they_are_asked_for(tmp_path: Path) -> None:
    found = simulate(summed, args=(5,), compute="1ms", results_dir=str(tmp_path), run_name="mine", quiet=True)
    assert found.text.endswith(f"records        {tmp_path}/mine.{{csv,json,events.csv.gz}}")
    assert load_table(tmp_path / "mine.csv").equals(found.table)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lonely, r"^deadlock: rank 1 waits in barrier at test_functions\.py:\d+ for rank 0"),
        (broken, r"^rank 2 raised ValueError: oh, at test_functions\.py:\d+$"),
    ],
)
def test_a_failure_names_the_line_of_the_function(function: Callable[[], None], told: str) -> None:
    with pytest.raises(RunFailed, match=told):
        simulate(function, 3, compute="1ms", quiet=True)


@pytest.mark.parametrize(
    ("function", "options", "told"),
    [
        (print, {}, "function=.*print>: is no function written in Python; give one"),
        (3, {}, "function=3: is no function"),
        (summed, {"n_gpus": 0}, "n_gpus=0: must be from 1 to 1024"),
        (summed, {"bandwidth": "fast"}, "bandwidth=fast: write a bandwidth such as 1gbit"),
        (summed, {"sharing": "none"}, "sharing=none: unknown; .*there are fair, in_order"),
        (summed, {"run_name": "mine"}, "run_name=mine: names the records, which only results_dir asks for"),
        (summed, {"args": (sys.stdout,)}, "cannot send the work and its arguments to the ranks"),
    ],
)
def test_what_cannot_be_simulated_is_refused(function: Any, options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=f"^{told}"):
        simulate(function, **{"compute": "1ms", "quiet": True, **options})


def test_a_program_beside_this_package_is_named_by_its_own_lines() -> None:
    script = Script(str(SCRIPTS / "mistakes.py"))
    script.folder = f"{ROOT}{os.sep}"
    ours = types.FunctionType(compile("sys._getframe()", threads.__file__, "eval"), {"sys": sys})()
    rank = threads.RankThread(script, 0, 1, 0)
    assert rank._line([(ours, 1), (sys._getframe(), 7)]) == "tests/torch_scripts/test_functions.py:7"
