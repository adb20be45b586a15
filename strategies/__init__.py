"""The algorithms, by the name of their module. A new one is one new file here, and its line in this table.

Each is loaded when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gradwire.core.records.errors import UsageError, between, one_of
from gradwire.core.records.lazy import LazyTable
from gradwire.core.strategy.base import Strategy
from gradwire.core.strategy.factories import ByTensor, OptimizerFactory, by_name
from gradwire.core.strategy.replica import Replica
from gradwire.core.strategy.run_size import RunSize
from gradwire.core.strategy.traits import Cost, Traffic, Traits

if TYPE_CHECKING:
    from gradwire.worker_optimizer import WorkerOptimizer as WorkerOptimizer
    from strategies.all_reduce.all_gather import AllGather
    from strategies.all_reduce.all_reduce import FastestAllReduce
    from strategies.all_reduce.demo import DeMo
    from strategies.all_reduce.double_tree import DoubleTree
    from strategies.all_reduce.fully_sharded import FullySharded
    from strategies.all_reduce.halving_doubling import HalvingDoubling
    from strategies.all_reduce.hierarchical_ring import HierarchicalRing
    from strategies.all_reduce.naive_all_reduce import NaiveAllReduce
    from strategies.all_reduce.overlapped_ring import OverlappedRing
    from strategies.all_reduce.recursive_doubling import RecursiveDoubling
    from strategies.all_reduce.ring_all_reduce import RingAllReduce
    from strategies.all_reduce.sharded_gradients import ShardedGradients
    from strategies.all_reduce.sharded_ring import ShardedRing
    from strategies.all_reduce.swing import Swing
    from strategies.all_reduce.synthesised import Synthesised
    from strategies.asynchronous_server.async_param_server import AsyncParamServer
    from strategies.asynchronous_server.decoupled_diloco import DecoupledDiLoCo
    from strategies.asynchronous_server.dgs import DGS
    from strategies.asynchronous_server.downpour import Downpour
    from strategies.asynchronous_server.easgd import ElasticAveraging
    from strategies.asynchronous_server.inconsistent_reads import InconsistentReads
    from strategies.local_models.ad_psgd import ADPSGD
    from strategies.local_models.des_loc import DESLOC
    from strategies.local_models.gossip import Gossip
    from strategies.local_models.local_sgd import LocalSGD
    from strategies.local_models.noloco import NoLoCo
    from strategies.local_models.none import NoCommunication
    from strategies.local_models.sparta import Sparta
    from strategies.local_models.streaming_diloco import StreamingDiLoCo
    from strategies.lock_free.hogwild import Hogwild
    from strategies.lock_free.hogwild_pp import HogwildPP
    from strategies.single import Single
    from strategies.synchronous_server.backup_workers import BackupWorkers
    from strategies.synchronous_server.param_server import ParamServer
    from strategies.synchronous_server.sharded_param_server import ShardedParamServer

    GROUPS: dict[str, tuple[type[Strategy], ...]]

FAMILIES: dict[str, dict[str, str]] = {
    "One process": {
        "Single": "single",
    },
    "A server that waits": {
        "ParamServer": "synchronous_server.param_server",
        "ShardedParamServer": "synchronous_server.sharded_param_server",
        "BackupWorkers": "synchronous_server.backup_workers",
    },
    "A server that does not wait": {
        "AsyncParamServer": "asynchronous_server.async_param_server",
        "InconsistentReads": "asynchronous_server.inconsistent_reads",
        "Downpour": "asynchronous_server.downpour",
        "ElasticAveraging": "asynchronous_server.easgd",
        "DGS": "asynchronous_server.dgs",
        "DecoupledDiLoCo": "asynchronous_server.decoupled_diloco",
    },
    "No server: gradients are summed, and all take the same step": {
        "RingAllReduce": "all_reduce.ring_all_reduce",
        "OverlappedRing": "all_reduce.overlapped_ring",
        "NaiveAllReduce": "all_reduce.naive_all_reduce",
        "AllGather": "all_reduce.all_gather",
        "RecursiveDoubling": "all_reduce.recursive_doubling",
        "HalvingDoubling": "all_reduce.halving_doubling",
        "Swing": "all_reduce.swing",
        "DoubleTree": "all_reduce.double_tree",
        "HierarchicalRing": "all_reduce.hierarchical_ring",
        "Synthesised": "all_reduce.synthesised",
        "FastestAllReduce": "all_reduce.all_reduce",
        "ShardedRing": "all_reduce.sharded_ring",
        "ShardedGradients": "all_reduce.sharded_gradients",
        "FullySharded": "all_reduce.fully_sharded",
        "DeMo": "all_reduce.demo",
    },
    "No server, no lock: all write into shared memory": {
        "Hogwild": "lock_free.hogwild",
        "HogwildPP": "lock_free.hogwild_pp",
    },
    "No server: each has a model of its own": {
        "LocalSGD": "local_models.local_sgd",
        "StreamingDiLoCo": "local_models.streaming_diloco",
        "DESLOC": "local_models.des_loc",
        "NoLoCo": "local_models.noloco",
        "Sparta": "local_models.sparta",
        "Gossip": "local_models.gossip",
        "ADPSGD": "local_models.ad_psgd",
        "NoCommunication": "local_models.none",
    },
}
"""The classes, by their groups: where each is. Its name on the command line is that of its module."""
INSTEAD = {("gossip", "asynchronous"): "ad_psgd", ("param_server", "servers"): "sharded_param_server"}
"""The strategy to take in place of a strategy with this option."""
_PLACES = {name: f"{__name__}.{place}" for group in FAMILIES.values() for name, place in group.items()}
STRATEGIES: LazyTable[type[Strategy]] = LazyTable(
    {place.rpartition(".")[2]: (place, name) for name, place in _PLACES.items()}
)


def __getattr__(name: str) -> Any:
    if name == "GROUPS":
        return {group: tuple(map(__getattr__, names)) for group, names in FAMILIES.items()}
    if name == "WorkerOptimizer":  # which a run does not need
        return import_module("gradwire.worker_optimizer").WorkerOptimizer
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ADPSGD",
    "DESLOC",
    "DGS",
    "FAMILIES",
    "GROUPS",
    "INSTEAD",
    "STRATEGIES",
    "AllGather",
    "AsyncParamServer",
    "BackupWorkers",
    "ByTensor",
    "Cost",
    "DeMo",
    "DecoupledDiLoCo",
    "DoubleTree",
    "Downpour",
    "ElasticAveraging",
    "FastestAllReduce",
    "FullySharded",
    "Gossip",
    "HalvingDoubling",
    "HierarchicalRing",
    "Hogwild",
    "HogwildPP",
    "InconsistentReads",
    "LocalSGD",
    "NaiveAllReduce",
    "NoCommunication",
    "NoLoCo",
    "OptimizerFactory",
    "OverlappedRing",
    "ParamServer",
    "RecursiveDoubling",
    "Replica",
    "RingAllReduce",
    "RunSize",
    "ShardedGradients",
    "ShardedParamServer",
    "ShardedRing",
    "Single",
    "Sparta",
    "Strategy",
    "StreamingDiLoCo",
    "Swing",
    "Synthesised",
    "Traffic",
    "Traits",
    "UsageError",
    "WorkerOptimizer",
    "between",
    "by_name",
    "one_of",
]
