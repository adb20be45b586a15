"""The command line: what is found is written, shown and repeated; bad input is one line."""

import re
from pathlib import Path

import pytest

import explore
from records import page
from records.files import load_metadata
from records.page.__main__ import main as write_page
from tests.runs import said, said_by

PLANTED = "tests.every_order.planted"
OFF_BY_ONE = f"--strategy {PLANTED}:OffByOne --max_staleness 0 --n_gpus 3 --steps 4"


def explored(text: str, *more: str) -> tuple[int, str]:
    """What the command line says to the options in `text`."""
    return said_by(lambda: explore.main([*text.split(), *more]))


def found(text: str, folder: Path) -> tuple[str, str]:
    """The path that a broken case is written to, and what is said of its order."""
    code, said_of_it = explored(text, "--results_dir", str(folder))
    assert code == 1, said_of_it
    path = re.search(r"^written +(\S+?)\.\{csv,json,events", said_of_it, re.MULTILINE)
    order = re.search(r"^an order with .*?^ +not so: .*?$", said_of_it, re.MULTILINE | re.DOTALL)
    assert path
    assert order
    return path[1], order[0]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return found(OFF_BY_ONE, tmp_path_factory.mktemp("orders"))


def test_the_first_order_is_told_in_lines(broken: tuple[str, str]) -> None:
    first, *lines, last = broken[1].splitlines()
    assert first == "an order with 1 departure from the plain order:"
    assert all(re.fullmatch(r" +\d+  rank 0 takes 'gradient' of rank [12]( .*)?", line) for line in lines)
    assert len(lines) <= 10
    assert last.strip() == "not so: no gradient is more than 1 versions stale: one was 2 versions stale"


def test_the_explorer_repeats_it(broken: tuple[str, str]) -> None:
    path, order = broken
    for name in (path, f"{path}.json"):
        assert explored(f"--replay {name}") == (0, f"{order}\n")


def test_the_page_shows_it(broken: tuple[str, str], tmp_path: Path) -> None:
    out = tmp_path / "order.html"
    code, text = said_by(lambda: write_page([broken[0], "--out", str(out)]))
    assert code == 0, text
    assert "OffByOne" in out.read_text()
    assert page.__doc__


def test_processes_repeat_it_to_the_bit(broken: tuple[str, str], tmp_path: Path) -> None:
    path = broken[0]
    code, text = said("--replay", path, "--results_dir", str(tmp_path), "--run_name", "again")
    assert code == 0, text
    assert f"bit for bit the parameters of {path}" in text
    kept, again = (load_metadata(Path(f"{one}.json")) for one in (path, tmp_path / "again"))
    assert kept["arrivals"] == again["arrivals"]
    assert kept["parameter_hash"] == again["parameter_hash"]


@pytest.mark.parametrize(("text", "why"), [
    ("--strategy ad_psgd --steps 1 --own_steps", "ranks other than a server choose"),
    ("--strategy async_param_server --steps 2 --own_steps", "there an epoch has the gradients of whole steps"),
    ("--strategy async_param_server --steps 3", "there an epoch has the gradients of whole steps"),
    ("--strategy hogwild --steps 2 --n_gpus 2", "ranks other than a server choose"),
    ("--strategy param_server --deaths 1 --invariant {}:nobody_dies", "it does not end, or a rank dies"),
])  # fmt: skip
def test_what_processes_cannot_repeat_the_explorer_does(text: str, why: str, tmp_path: Path) -> None:
    given = f"{text.format(PLANTED)} --results_dir {tmp_path} --invariant {PLANTED}:first_order_only"
    code, said_of_it = explored(given)
    assert code == 1, said_of_it
    assert f"(not train.py: {why})" in said_of_it
    (file,) = tmp_path.glob("*.json")
    code, again = explored(f"--replay {file}")
    assert code == 0
    assert again in said_of_it


def test_what_holds_in_all_orders_is_exit_code_0(tmp_path: Path) -> None:
    code, text = explored("--steps 3", "--results_dir", str(tmp_path))
    assert code == 0
    assert "async_param_server, 2 workers, an epoch of 3 gradients: 8 orders, all of them; " in text
    assert not any(tmp_path.iterdir())


def test_an_invariant_of_ones_own_holds_in_some(tmp_path: Path) -> None:
    code, text = explored(f"--steps 3 --invariant {PLANTED}:first_order_only", "--results_dir", str(tmp_path))
    assert code == 1
    assert re.search(rf"{PLANTED}:first_order_only +holds in 1 of 8\n", text)
    assert f"not so: {PLANTED}:first_order_only: it is another order" in text


@pytest.mark.parametrize(("text", "says"), [
    ("--steps 0", "--steps 0: must be from 1 to"),
    ("--epochs 0", "--epochs 0: must be from 1 to"),
    ("--at_most 0", "--at_most 0: must be from 1 to"),
    ("--random 0", "--random 0: must be from 1 to"),
    ("--deaths 2", "--deaths 2: must be from 0 to 1"),
    ("--seed -1", "--seed -1: "),
    ("--n_gpus 1", "--n_gpus 1: must be from 2 to"),
    ("--n_gpus 99", "--n_gpus 99: must be from 2 to"),
    ("--strategy backup_workers --n_gpus 2", "--n_gpus 2: must be from 3 to"),
    ("--strategy single --n_gpus 2", "--n_gpus 2: must be "),
    ("--strategy param_server --own_steps", "--own_steps: "),
    ("--strategy ddp", "--strategy ddp: unknown"),
    ("--strategy param_server_builtin:BuiltinParamServer", "--strategy param_server_builtin"),
    ("--strategy downpour --n_push 9", "--n_push 9: must be at most 1"),
    ("--invariant nowhere:function", "--invariant nowhere:function: there is no module nowhere"),
    (f"--invariant {PLANTED}", f"--invariant {PLANTED}: write it as yourmodule:name"),
    (f"--invariant {PLANTED}:absent", f"--invariant {PLANTED}:absent: "),
    (f"--invariant {PLANTED}:NO_FUNCTION", f"--invariant {PLANTED}:NO_FUNCTION: is no function"),
    (f"--invariant {PLANTED}:raising", f"--invariant {PLANTED}:raising: it raised KeyError: 'none of that name'"),
    ("--replay nowhere/none", "--replay nowhere/none: "),
    ("--replay pyproject.toml", "--replay pyproject.toml: "),
    ("--stepz 3", "--stepz: there is no such option; did you mean --steps?"),
    ("--steps three", "--steps"),
    (f"--strategy {PLANTED}:WithoutWaits --results_dir /proc/none", "--results_dir: cannot write in /proc/none"),
])  # fmt: skip
def test_bad_input_is_one_line(text: str, says: str) -> None:
    code, said_of_it = explored(text)
    line = said_of_it.split("\r")[-1].strip()  # a progress bar may come before it
    assert code == 2, said_of_it
    assert "\n" not in line
    assert line.startswith("error: ")
    assert says in line


def test_the_record_of_a_run_is_no_order(tmp_path: Path) -> None:
    code, _ = said("--strategy", "single", "--dataset", "tests.workload:moons", "--model", "tests.workload:linear",
                   "--epochs", "1", "--results_dir", str(tmp_path), "--run_name", "run")  # fmt: skip
    assert code == 0
    code, text = explored(f"--replay {tmp_path}/run")
    assert code == 2
    assert "run.json is not an order that explore.py has saved" in text
    assert text.count("\n") == 1
