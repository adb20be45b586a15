"""The algorithms, by name: that of their module. A new one is one new file here, and its line in this table."""

from records.errors import UsageError, between, one_of
from strategies.all_gather import AllGather
from strategies.async_param_server import AsyncParamServer
from strategies.backup_workers import BackupWorkers
from strategies.common.base import RunSize, Strategy
from strategies.common.descent import OptimizerFactory
from strategies.common.replica import Replica
from strategies.common.traffic import Traffic
from strategies.dgs import DGS
from strategies.downpour import Downpour
from strategies.easgd import ElasticAveraging
from strategies.gossip import Gossip
from strategies.hogwild import Hogwild
from strategies.hogwild_pp import HogwildPP
from strategies.inconsistent_reads import InconsistentReads
from strategies.local_sgd import LocalSGD
from strategies.naive_all_reduce import NaiveAllReduce
from strategies.none import NoCommunication
from strategies.overlapped_ring import OverlappedRing
from strategies.param_server import ParamServer
from strategies.ring_all_reduce import RingAllReduce
from strategies.sharded_ring import ShardedRing
from strategies.single import Single
from strategies.sparta import Sparta

GROUPS: dict[str, tuple[type[Strategy], ...]] = {
    "One process": (Single,),
    "A server, and all keep step": (ParamServer, BackupWorkers),
    "A server, and nobody waits for the slowest": (
        AsyncParamServer,
        InconsistentReads,
        Downpour,
        ElasticAveraging,
        DGS,
    ),
    "No server: gradients are summed, and all take the same step": (
        RingAllReduce,
        OverlappedRing,
        NaiveAllReduce,
        AllGather,
        ShardedRing,
    ),
    "No server, no lock: all write into shared memory": (Hogwild, HogwildPP),
    "No server: each has a model of its own": (
        LocalSGD,
        Sparta,
        Gossip,
        NoCommunication,
    ),
}
STRATEGIES: dict[str, type[Strategy]] = {strategy.name: strategy for group in GROUPS.values() for strategy in group}

__all__ = [
    "GROUPS",
    "STRATEGIES",
    "OptimizerFactory",
    "Replica",
    "RunSize",
    "Strategy",
    "Traffic",
    "UsageError",
    "between",
    "one_of",
]
