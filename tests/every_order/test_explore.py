import re
from pathlib import Path

import pytest

import explore
from records.page.__main__ import main as write_page
from tests.runs import made, metadata, said, said_by

PLANTED = "tests.every_order.planted"
OFF_BY_ONE = f"--strategy {PLANTED}:OffByOne --max_staleness 0 --n_gpus 3 --steps 4"


def explored(text: str, folder: Path | str = "results") -> tuple[int, str]:
    return said_by(lambda: explore.main([*text.split(), "--results_dir", str(folder)]))


def test_an_order_is_told_written_shown_and_repeated_also_by_processes(tmp_path: Path) -> None:
    code, text = explored(OFF_BY_ONE, tmp_path)
    assert code == 1
    order = re.search(r"^an order with .*?^ +not so: .*?\n", text, re.MULTILINE | re.DOTALL)
    path = re.search(r"^written +(\S+)\.\{csv,json,events", text, re.MULTILINE)
    assert order
    assert path
    first, *lines, last = order[0].splitlines()
    assert first == "an order with 1 departure from the plain order:"
    assert 0 < len(lines) <= 10
    assert all(re.match(r" +\d+  rank 0 takes 'gradient' of rank [12]", line) for line in lines)
    assert last == "      not so: no gradient is more than 1 versions stale: one was 2 versions stale"
    assert explored(f"--replay {path[1]}") == explored(f"--replay {path[1]}.json") == (0, order[0])
    assert said_by(lambda: write_page([path[1]]))[0] == 0
    assert "OffByOne" in Path(f"{path[1]}.page.html").read_text()
    code, text = said("--replay", path[1], "--results_dir", str(tmp_path), "--run_name", "again")
    assert code == 0, text
    assert f"bit for bit the parameters of {path[1]}" in text
    kept, again = metadata(tmp_path, Path(path[1]).name), metadata(tmp_path, "again")
    assert kept["arrivals"] == again["arrivals"]
    assert kept["parameter_hash"] == again["parameter_hash"]


@pytest.mark.parametrize(("text", "why"), [
    ("--strategy ad_psgd --steps 1 --own_steps", "ranks other than a server choose"),
    ("--own_steps", "there an epoch has the gradients of whole steps"),
    (f"--strategy param_server --deaths 1 --invariant {PLANTED}:nobody_dies", "it does not end, or a rank dies"),
])  # fmt: skip
def test_what_processes_cannot_repeat_the_explorer_does(text: str, why: str, tmp_path: Path) -> None:
    code, told = explored(f"{text} --invariant {PLANTED}:is_plain", tmp_path)
    assert code == 1
    assert f"(not train.py: {why})" in told
    (file,) = tmp_path.glob("*.json")
    code, again = explored(f"--replay {file}")
    assert code == 0
    assert again in told


def test_an_invariant_of_ones_own_may_hold_in_some(tmp_path: Path) -> None:
    assert explored("--steps 3", tmp_path)[0] == 0
    assert not any(tmp_path.iterdir())
    code, text = explored(f"--steps 3 --invariant {PLANTED}:is_plain", tmp_path)
    assert code == 1
    assert re.search(rf"\n{PLANTED}:is_plain +holds in 1 of 8\n", text)


@pytest.mark.parametrize(("text", "says"), [
    *((f"--{name} 0", f"--{name} 0: must be from 1 to") for name in ("steps", "epochs", "at_most", "random")),
    ("--deaths 2", "--deaths 2: must be from 0 to 1"),
    ("--seed -1", "--seed -1: "),
    ("--n_gpus 1", "--n_gpus 1: must be from 2 to"),
    ("--n_gpus 99", "--n_gpus 99: must be from 2 to"),
    ("--strategy param_server --own_steps", "--own_steps: "),
    ("--strategy ddp", "--strategy ddp: unknown"),
    ("--strategy param_server_builtin:BuiltinParamServer", "--strategy param_server_builtin"),
    ("--strategy downpour --n_push 9", "--n_push 9: must be at most 1"),
    ("--invariant nowhere:function", "--invariant nowhere:function: there is no module nowhere"),
    (f"--invariant {PLANTED}:NO_FUNCTION", f"--invariant {PLANTED}:NO_FUNCTION: is no function"),
    (f"--invariant {PLANTED}:raises", f"--invariant {PLANTED}:raises: it raised KeyError: 'none of that name'"),
    ("--replay nowhere/none", "--replay nowhere/none: "),
    ("--replay pyproject.toml", "--replay pyproject.toml: "),
    ("--stepz 3", "--stepz: there is no such option; did you mean --steps?"),
])  # fmt: skip
def test_bad_input_is_one_line(text: str, says: str) -> None:
    code, told = explored(text)
    line = told.split("\r")[-1].rstrip("\n")  # a progress bar may come before it
    assert code == 2, told
    assert "\n" not in line
    assert line.strip().startswith(f"error: {says}")


def test_a_folder_that_cannot_be_written_is_refused_before_the_search() -> None:
    code, told = explored(OFF_BY_ONE, "/proc/none")
    assert (code, told.count("\n")) == (2, 1)
    assert told.startswith("error: --results_dir: cannot write in /proc/none")


def test_the_record_of_a_run_is_no_order(tmp_path: Path) -> None:
    made(tmp_path, "single", epochs=1)
    code, told = explored(f"--replay {tmp_path}/run")
    assert (code, told.count("\n")) == (2, 1)
    assert "run.json is not an order that explore.py has saved" in told
