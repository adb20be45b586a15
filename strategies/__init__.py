"""The algorithms, by the name of their module. A new one is one new file here, and its name in this table."""

from gradwire.core.records.errors import UsageError, between, one_of
from gradwire.core.strategy.base import Strategy
from gradwire.core.strategy.factories import ByTensor, OptimizerFactory, by_name
from gradwire.core.strategy.replica import Replica
from gradwire.core.strategy.run_size import RunSize
from gradwire.core.strategy.traits import Cost, Traffic, Traits
from gradwire.worker_optimizer import WorkerOptimizer
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

GROUPS: dict[str, tuple[type[Strategy], ...]] = {
    "One process": (Single,),
    "A server that waits": (ParamServer, ShardedParamServer, BackupWorkers),
    "A server that does not wait": (
        AsyncParamServer,
        InconsistentReads,
        Downpour,
        ElasticAveraging,
        DGS,
        DecoupledDiLoCo,
    ),
    "No server: gradients are summed, and all take the same step": (
        RingAllReduce,
        OverlappedRing,
        NaiveAllReduce,
        AllGather,
        RecursiveDoubling,
        HalvingDoubling,
        Swing,
        DoubleTree,
        HierarchicalRing,
        Synthesised,
        FastestAllReduce,
        ShardedRing,
        ShardedGradients,
        FullySharded,
        DeMo,
    ),
    "No server, no lock: all write into shared memory": (Hogwild, HogwildPP),
    "No server: each has a model of its own": (
        LocalSGD,
        StreamingDiLoCo,
        DESLOC,
        NoLoCo,
        Sparta,
        Gossip,
        ADPSGD,
        NoCommunication,
    ),
}
INSTEAD = {("gossip", "asynchronous"): "ad_psgd", ("param_server", "servers"): "sharded_param_server"}
"""The strategy to take in place of a strategy with this option."""
STRATEGIES: dict[str, type[Strategy]] = {strategy.name: strategy for group in GROUPS.values() for strategy in group}

__all__ = [
    "ADPSGD",
    "DESLOC",
    "DGS",
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
