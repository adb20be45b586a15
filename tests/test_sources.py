"""What holds of the sources as a whole: who may import whom, who may ask for the time, who knows a strategy by name."""

import ast
import re
from collections.abc import Iterator
from functools import cache

from strategies import STRATEGIES
from tests.runs import ROOT

ROOMS_OF_CORE: dict[str, tuple[str, ...]] = {
    "records": (),
    "transports": ("records",),
    "workloads": ("records",),
    "launchers": ("transports", "records"),
    "strategy": ("transports", "records"),
    "training": ("launchers", "strategy", "workloads", "transports", "records"),
}
"""The rooms of `gradwire.core`, each with those of them that it may import."""
WINGS: dict[str, tuple[str, ...]] = {
    "backend": ("diagnosis",),
    "baselines": ("clusters", "sharding"),
    "checking": ("backend", "torch_scripts", "virtual_time"),
    "checkpoints": ("diagnosis",),
    "clusters": ("networks",),
    "compression": (),
    "diagnosis": ("compression", "pictures"),
    "every_order": ("baselines", "checkpoints", "networks", "torch_scripts"),
    "images": (),
    "language": ("checkpoints",),
    "networks": (),
    "pictures": ("diagnosis",),
    "scoreboard": ("language", "pictures", "virtual_time"),
    "sharding": ("compression",),
    "stragglers": (),
    "torch_scripts": ("backend", "checking", "diagnosis", "every_order", "networks", "virtual_time"),
    "virtual_time": (
        "clusters",
        "compression",
        "diagnosis",
        "images",
        "networks",
        "pictures",
        "sharding",
        "stragglers",
        "torch_scripts",
    ),
}
"""The other rooms of `gradwire`, each with those of them that it may import beside the core."""
OF_ALGORITHMS = ("compression", "networks", "sharding")
NO_ROOMS = ("tests", "benchmarks", "experiments", "lessons")
SCRIPTS = tuple(sorted(path.stem for path in ROOT.glob("*.py")))
CLOCKS = ("time", "timeit", "sched", "asyncio")
SOURCES = sorted(
    path.relative_to(ROOT).as_posix() for room in ("gradwire", "strategies") for path in (ROOT / room).glob("**/*.py")
)
EVERY = [*SOURCES, *(f"{script}.py" for script in SCRIPTS)]


@cache
def tree(source: str) -> ast.Module:
    return ast.parse((ROOT / source).read_text())


@cache
def nodes(source: str) -> list[ast.AST]:
    return [*ast.walk(tree(source))]


def imports(source: str) -> Iterator[str]:
    """The names of the modules that a file imports, anywhere in it."""
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def room_of(module: str) -> tuple[str, str]:
    """The wing, or "core", and the room of the core that a module is in."""
    _, wing, room, *_ = *module.split("."), "", ""
    return wing, room if wing == "core" else ""


def test_imports_point_one_way() -> None:
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == {"gradwire", "strategies", *NO_ROOMS}
    rooms = {path.parent.name for path in (ROOT / "gradwire").glob("*/__init__.py")}
    assert rooms == {"core", *WINGS}
    for source, module in ((path, module) for path in SOURCES for module in imports(path)):
        package = module.split(".")[0]
        assert package not in (*NO_ROOMS, *SCRIPTS), f"{source} imports {module}"
        wing, room = room_of(source.removesuffix(".py").replace("/", "."))
        to_wing, to_room = room_of(module)
        if wing == "core":
            assert package != "strategies", f"{source} imports {module}"
            assert package != "gradwire" or to_wing == "core", f"{source} imports {module}"
        if package != "gradwire" or to_wing not in ("core", *WINGS):
            continue  # a door of the package, or no module of this project
        if source.startswith("strategies/"):
            assert to_wing in ("core", *OF_ALGORITHMS), f"{source} imports {module}"
        elif wing == "core" and to_wing == "core":
            assert to_room == room or to_room in ROOMS_OF_CORE[room], f"{source} imports {module}"
        elif wing in WINGS and to_wing != "core":
            assert to_wing == wing or to_wing in WINGS[wing], f"{source} imports {module}"


def test_the_core_names_no_module_outside_it() -> None:
    of_wings = re.compile(rf"\b(strategies\.\w|gradwire\.(?!core\b)({'|'.join(WINGS)}|options|names)\b)")
    core = [source for source in SOURCES if source.startswith("gradwire/core/")]
    named = {(source, name) for source in core for name in strings_in(source) if of_wings.search(name)}
    assert named == set()


def test_the_time_is_the_transports() -> None:
    elsewhere = [
        source
        for source in EVERY
        if not source.startswith(("gradwire/core/transports/", "gradwire/core/records/"))
        and source != "gradwire/torch_scripts/process.py"  # which replaces the clocks that a script reads
    ]
    assert [
        (source, module) for source in elsewhere for module in imports(source) if module.split(".")[0] in CLOCKS
    ] == []


GLOBAL = ("set_num_threads", "set_num_interop_threads", "manual_seed", "manual_seed_all", "seed", "set_rng_state",
          "set_default_dtype", "set_default_device", "use_deterministic_algorithms")  # fmt: skip
ALLOWED = {
    ("gradwire/random_state.py", "set_random_state"),  # a checkpoint brings the random state of its rank
    ("gradwire/torch_scripts/process_state.py", "install"),  # of the rank that runs next
    ("gradwire/core/training/computing.py", "choose_threads"),  # known only once there is a model
    ("gradwire/checkpoints/evaluate.py", "evaluate_all"),
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


def test_what_is_global_in_a_process_is_set_by_its_launcher_alone() -> None:
    assert list(global_settings("gradwire/core/launchers/devices.py")), "here it is set"
    others = [source for source in EVERY if source != "gradwire/core/launchers/devices.py"]
    assert [call for source in others for call in global_settings(source)] == []


# A strategy is one file

NAMES = set(STRATEGIES) - {"none", "single"}  # words of English, which may stand anywhere
OF_STRATEGIES = (
    "strategies/",
    *(f"gradwire/{folder}/" for folder in ("compression", "baselines", "sharding", "core/strategy")),
)
KNOWN = {
    ("gradwire/options.py", "ring_all_reduce"),  # the default strategy
    ("gradwire/options.py", "RingAllReduce"),
    ("gradwire/compression/ddp_hook.py", "all_gather"),  # torch's
    ("gradwire/strategies.py", "all_reduce"),  # a folder
    ("gradwire/every_order/explore.py", "async_param_server"),  # the default case
    ("gradwire/every_order/contributions.py", "all_reduce"),  # the user's
    *(("gradwire/command.py", name) for name in ("param_server", "ring_all_reduce", "fully_sharded")),  # of baselines
    *((f"gradwire/backend/{name}.py", "all_reduce") for name in ("process_group", "collectives", "chosen")),  # torch's
    ("gradwire/backend/chosen.py", "ring_all_reduce"),  # the collective
    *((f"gradwire/torch_scripts/{name}.py", "all_reduce") for name in ("collectives", "simulate")),
    *((f"gradwire/checking/{name}.py", "all_reduce") for name in ("calls", "replicas")),
    ("gradwire/compression/ddp_hook.py", "all_reduce"),
    ("gradwire/backend/process_group.py", "all_gather"),
    ("gradwire/backend/collectives.py", "all_gather"),
}


def strings_in(source: str) -> Iterator[str]:
    """The strings of a file that are no docstrings."""
    statements = [node for node in nodes(source) if isinstance(node, ast.Expr)]
    docstrings = {id(node.value) for node in statements}
    for node in nodes(source):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def names_in(source: str) -> set[str]:
    """All names and words of a file that are code: identifiers, arguments, attributes, imports, and strings."""
    found = [*strings_in(source), *imports(source)]
    for node in nodes(source):
        found += [str(getattr(node, name)) for name in ("id", "attr", "arg", "name") if name in node._fields]
    return set(re.findall(r"\w+", " ".join(found)))


def test_no_strategy_is_known_outside_its_file() -> None:
    known = NAMES | {kind.__name__ for kind in STRATEGIES.values()}
    foreign = [source for source in SOURCES if not source.startswith(OF_STRATEGIES)]
    assert {(source, name) for source in foreign for name in names_in(source) if name in known} <= KNOWN
