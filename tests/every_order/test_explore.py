import re
from pathlib import Path

import pytest

from gradwire.every_order import explore
from gradwire.pictures.page import main as write_page
from tests.runs import said, said_by

PLANTED = "tests.every_order.planted"
OFF_BY_ONE = f"--strategy {PLANTED}:OffByOne --max_staleness 0 --steps 4"


def explored(text: str) -> tuple[int, str]:
    return said_by(lambda: explore.main(text.split()))


def test_an_order_is_told_written_shown_and_repeated_also_by_processes(tmp_path: Path) -> None:
    code, text = explored(f"{OFF_BY_ONE} --results_dir {tmp_path}")
    assert code == 1
    (order,) = re.findall(r"^an order with .*?^ +not so: .*?\n", text, re.MULTILINE | re.DOTALL)
    (path,) = re.findall(r"^written +(\S+)\.\{csv,json,events", text, re.MULTILINE)
    first, *lines, last = order.splitlines()
    assert re.fullmatch(r"an order with \d departures? from the plain order:", first)
    assert 0 < len(lines) <= 10
    assert all(re.match(r" +\d+  rank 0 takes 'gradient' of rank [12]", line) for line in lines)
    assert re.fullmatch(r" +not so: no gradient is more than 1 versions stale: one was [23] versions stale", last)
    mine = f"--strategy {PLANTED}:OffByOne"
    assert explored(f"--replay {path} {mine}") == explored(f"--replay {path}.json {mine}") == (0, order)
    assert explored(f"--replay {path} --strategy downpour") == (
        2, f"error: --strategy downpour: {path}.json is an order of {PLANTED}:OffByOne; leave it out\n"
    )  # fmt: skip
    assert f"--replay {path} {mine}" in text
    assert said_by(lambda: write_page([path]))[0] == 0
    assert "OffByOne" in Path(f"{path}.page.html").read_text()
    code, text = said("--replay", path, *mine.split(), "--results_dir", str(tmp_path), "--run_name", "again")
    assert code == 0, text
    assert f"bit for bit the parameters of {path}" in text


@pytest.mark.parametrize(("text", "why"), [
    (f"--strategy ad_psgd --steps 1 --own_steps --invariant {PLANTED}:is_plain", "ranks other than a server choose"),
    (f"--own_steps --invariant {PLANTED}:is_plain", "there an epoch has the gradients of whole steps"),
    (f"--strategy async_param_server --deaths 1 --invariant {PLANTED}:nobody_dies", "it does not end, or a rank dies"),
])  # fmt: skip
def test_what_processes_cannot_repeat_the_explorer_does(text: str, why: str, tmp_path: Path) -> None:
    code, told = explored(f"{text} --results_dir {tmp_path}")
    assert code == 1
    assert f"(not train.py: {why})" in told
    (file,) = tmp_path.glob("*.json")
    code, again = explored(f"--replay {file}")
    assert code == 0
    happens, _, broken = again.partition("      not so: ")
    assert happens in told
    assert "(so it was found; what is asked of one run of every strategy holds)" in broken


def test_an_invariant_of_ones_own_may_hold_in_some(tmp_path: Path) -> None:
    assert explored(f"--steps 3 --results_dir {tmp_path}")[0] == len([*tmp_path.iterdir()]) == 0
    code, text = explored(f"--steps 3 --results_dir {tmp_path} --invariant {PLANTED}:is_plain")
    assert code == 1
    assert re.search(rf"\n{PLANTED}:is_plain +holds in 1 of 8\n", text)


@pytest.mark.parametrize(("text", "says"), [
    *((f"--{name} 0", f"--{name} 0: must be from 1 to") for name in ("steps", "epochs", "at_most", "random")),
    ("--deaths 2", "--deaths 2: must be from 0 to 1"), ("--seed -1", "--seed -1: "),
    ("--n_gpus 1", "--n_gpus 1: must be from 2 to"), ("--n_gpus 99", "--n_gpus 99: must be from 2 to"),
    ("--strategy param_server --own_steps", "--own_steps: "), ("--strategy ddp", "--strategy ddp: unknown"),
    ("--strategy param_server_builtin:BuiltinParamServer", "--strategy param_server_builtin"),
    ("--strategy downpour --n_push 9 --steps 2", "--n_push 9: must be at most 1"),
    ("--strategy local_sgd --local_steps 0", "--local_steps 0: must be at least 1"),
    ("--strategy local_sgd --steps 3", "--steps 3: so few that local_sgd sends nothing"),
    ("--invariant nowhere:function", "--invariant nowhere:function: there is no module nowhere"),
    (f"--invariant {PLANTED}:NO_FUNCTION", f"--invariant {PLANTED}:NO_FUNCTION: is no function"),
    (f"--invariant {PLANTED}:raises", f"--invariant {PLANTED}:raises: it raised KeyError: 'none of that name'"),
    ("--replay nowhere/none", "--replay nowhere/none: "),
    ("--replay tests/none", "--replay tests/none: tests/none.json is not an order"),
    (f"{OFF_BY_ONE} --results_dir /proc/none", "--results_dir: cannot write in /proc/none"),
    ("--stepz 3", "--stepz: there is no such option; did you mean --steps?"),
])  # fmt: skip
def test_bad_input_is_one_line(text: str, says: str) -> None:
    code, told = explored(text)
    line = told.split("\r")[-1].rstrip("\n")  # a progress bar may come before it
    assert code == 2, told
    assert "\n" not in line
    assert line.strip().startswith(f"error: {says}")
