"""What holds of the sources as a whole: who may import whom, who may ask for the time, who knows a strategy by name."""

import ast
import dataclasses
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from strategies import STRATEGIES, Strategy
from tests.runs import ROOT

SCRIPTS = tuple(sorted(path.stem for path in ROOT.glob("*.py")))
MAY_IMPORT = {
    "records": (),
    "transports": ("records",),
    "compression": ("records",),
    "workloads": ("records",),
    "strategies": ("compression", "transports", "records"),
    "launchers": ("transports", "records"),
    "checkpoints": ("transports", "records"),
    "training": ("launchers", "checkpoints", "strategies", "workloads", "compression", "transports", "records"),
    "virtual_time": ("training", "launchers", "strategies", "workloads", "compression", "transports", "records"),
}
ROOMS = tuple(MAY_IMPORT)
NO_ROOMS = ("tests", "benchmarks", "experiments", "lessons")
SIDEWAYS = {("checkpoints/evaluator.py", "launchers")}  # what a rank's environment is, torchrun's room knows
CLOCKS = ("time", "timeit", "sched", "asyncio")
SOURCES = sorted(path.relative_to(ROOT).as_posix() for room in ROOMS for path in (ROOT / room).glob("**/*.py"))


def tree(source: str) -> ast.Module:
    return ast.parse((ROOT / source).read_text())


def imports(source: str) -> Iterator[str]:
    """The names of the modules that a file imports, anywhere in it."""
    for node in ast.walk(tree(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_all_rooms_are_known() -> None:
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} - {*NO_ROOMS} == set(ROOMS)


@pytest.mark.parametrize("source", SOURCES)
def test_imports_point_one_way(source: str) -> None:
    room = source.split("/")[0]
    for module in imports(source):
        first = module.split(".")[0]
        assert first not in (*NO_ROOMS, *SCRIPTS), f"{source} imports {module}"
        if first in ROOMS and first != room and (source, first) not in SIDEWAYS:
            assert first in MAY_IMPORT[room], f"{source} imports {module}"


@pytest.mark.parametrize("source", [*SOURCES, *(f"{script}.py" for script in SCRIPTS)])
def test_the_time_is_the_transports(source: str) -> None:
    if source.startswith(("transports/", "records/")):
        return
    assert not [module for module in imports(source) if module.split(".")[0] in CLOCKS]


GLOBAL = ("set_num_threads", "set_num_interop_threads", "manual_seed", "manual_seed_all", "seed", "set_rng_state",
          "set_default_dtype", "set_default_device", "use_deterministic_algorithms")  # fmt: skip
ALLOWED = {
    ("training/saved.py", "load"),  # a checkpoint brings the random state of its rank
    ("training/layers.py", "choose_threads"),  # known only once there is a model
    ("evaluate.py", "main"),
}


def global_settings(source: str) -> Iterator[str]:
    """Calls that change what is global in a process, with the function they are in, outside of fork_rng."""

    def visit(node: ast.AST, function: str, forked: bool) -> Iterator[str]:
        if isinstance(node, ast.FunctionDef):
            function = node.name
        if isinstance(node, ast.With):
            forked = forked or any("fork_rng" in ast.unparse(item.context_expr) for item in node.items)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in GLOBAL:
            owner = ast.unparse(node.func.value)
            own = owner.endswith(("Generator()", "generator"))  # a generator of one's own
            if not (forked and "seed" in node.func.attr) and not own and (source, function) not in ALLOWED:
                yield f"{source}, {function}: {ast.unparse(node)}"
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function, forked)

    return visit(tree(source), "", False)


@pytest.mark.parametrize("source", [*SOURCES, *(f"{script}.py" for script in SCRIPTS)])
def test_what_is_global_in_a_process_is_set_by_its_launcher_alone(source: str) -> None:
    if source == "launchers/devices.py":
        assert list(global_settings(source)), "here it is set"
        return
    assert list(global_settings(source)) == []


# A strategy is one file and one line

NAMES = set(STRATEGIES) - {"none", "single"}  # words of English, which may stand anywhere
OPTIONS = {option.name for kind in STRATEGIES.values() for option in dataclasses.fields(kind)} - set(vars(Strategy))
KNOWN = {
    ("training/options.py", "ring_all_reduce"),  # the default strategy
    ("training/options.py", "RingAllReduce"),
    ("training/ddp_hook.py", "all_gather"),  # torch's
    ("training/checks.py", "workers_like"),  # a cure that only `single` has
    ("training/report.py", "workers_like"),  # the run to compare with
}


def names_in(source: str) -> Iterator[str]:
    """All names and words of a file that are code: identifiers, arguments, attributes, imports, and strings."""
    module = tree(source)
    texts = {
        id(node.value)
        for node in ast.walk(module)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }  # docstrings
    for node in ast.walk(module):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg | ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            yield from "".join(c if c.isalnum() or c == "_" else " " for c in node.value).split()
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (*node.module.split("."), *(alias.name for alias in node.names))


FOREIGN = [source for source in SOURCES if not source.startswith(("strategies/", "compression/"))]


@pytest.mark.parametrize("source", FOREIGN)
def test_no_strategy_and_no_option_of_one_is_known_outside_its_file(source: str) -> None:
    classes = {kind.__name__ for kind in STRATEGIES.values()}
    found = {(source, name) for name in names_in(source) if name in NAMES | OPTIONS | classes}
    assert found <= KNOWN


@pytest.mark.parametrize("source", [source for source in SOURCES if source.startswith("strategies/")])
def test_only_the_table_and_a_strategy_that_derives_from_it_know_a_strategy(source: str) -> None:
    """Each file of a strategy is known to `__init__`, and to those that are a kind of it."""
    stem = Path(source).stem
    users = [
        other
        for other in SOURCES
        if other.startswith("strategies/")
        and any(m.startswith("strategies.") and m.endswith(f".{stem}") for m in imports(other))
    ]
    if stem in STRATEGIES:
        assert "strategies/__init__.py" in users
        for user in set(users) - {"strategies/__init__.py"}:
            module = importlib.import_module(user.removesuffix(".py").replace("/", "."))
            assert any(inspect.isclass(one) and issubclass(one, STRATEGIES[stem]) and one.__module__ == module.__name__
                       for one in vars(module).values())  # fmt: skip


def test_every_source_has_tests_where_it_is_looked_for() -> None:
    for folder in ("virtual_time", "training", "checkpoints", "records", "workloads", "launchers", "transports"):
        assert (ROOT / "tests" / folder / "__init__.py").is_file()
        assert not (ROOT / "tests" / f"test_{folder}.py").exists()
