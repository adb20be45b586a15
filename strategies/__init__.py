"""The algorithms, by the names of their files. A new one is one new file in the folder of its family.

All names are loaded when they are first asked for. Type checkers read them in `__init__.pyi`, which
`python -m docs.pages` makes.
"""

from pathlib import Path
from typing import Any

from gradwire.lazy import LazyTable, find_classes, load_name

FAMILIES = {
    "": "One process",
    "synchronous_server": "A server that waits",
    "asynchronous_server": "A server that does not wait",
    "all_reduce": "No server: gradients are summed, and all take the same step",
    "lock_free": "No server, no lock: all write into shared memory",
    "local_models": "No server: each has a model of its own",
}
"""The common property of the strategies in each folder."""
READ_FIRST = ("param_server", "async_param_server", "ring_all_reduce", "hogwild", "local_sgd")
"""Those with which a family begins; the others follow by name."""
INSTEAD = {("gossip", "asynchronous"): "ad_psgd", ("param_server", "servers"): "sharded_param_server"}
"""The strategy to take in place of a strategy with this option."""
_FOUND = {family: find_classes(Path(__path__[0], family), READ_FIRST) for family in FAMILIES}
STRATEGIES: LazyTable[Any] = LazyTable(
    {
        file: (".".join(filter(None, (__name__, family, file))), name)
        for family, found in _FOUND.items()
        for file, name in found.items()
    }
)
_OF_THE_CORE = {
    "ByTensor": "gradwire.core.strategy.factories",
    "Cost": "gradwire.core.strategy.traits",
    "OptimizerFactory": "gradwire.core.strategy.factories",
    "Replica": "gradwire.core.strategy.replica",
    "RunSize": "gradwire.core.strategy.run_size",
    "Strategy": "gradwire.core.strategy.strategy",
    "Traffic": "gradwire.core.strategy.traits",
    "Traits": "gradwire.core.strategy.traits",
    "UsageError": "gradwire.core.records.errors",
    "WorkerOptimizer": "gradwire.worker_optimizer",
    "between": "gradwire.core.records.errors",
    "by_name": "gradwire.core.strategy.factories",
    "one_of": "gradwire.core.records.errors",
}
HOMES = _OF_THE_CORE | {name: module for module, name in STRATEGIES.places.values()}
"""The module of each name that is loaded when it is asked for."""

__all__ = ["FAMILIES", "GROUPS", "INSTEAD", "STRATEGIES", *HOMES]


def __getattr__(name: str) -> Any:
    if name == "GROUPS":
        return {FAMILIES[family]: tuple(map(STRATEGIES.get, found)) for family, found in _FOUND.items()}
    return load_name(__name__, name, HOMES)
