"""Made by python -m docs.pages."""

from gradwire.core.records.errors import UsageError as UsageError
from gradwire.core.records.errors import between as between
from gradwire.core.records.errors import one_of as one_of
from gradwire.core.strategy.factories import ByTensor as ByTensor
from gradwire.core.strategy.factories import OptimizerFactory as OptimizerFactory
from gradwire.core.strategy.factories import by_name as by_name
from gradwire.core.strategy.replica import Replica as Replica
from gradwire.core.strategy.run_size import RunSize as RunSize
from gradwire.core.strategy.strategy import Strategy as Strategy
from gradwire.core.strategy.traits import Cost as Cost
from gradwire.core.strategy.traits import Traffic as Traffic
from gradwire.core.strategy.traits import Traits as Traits
from gradwire.lazy import LazyTable
from gradwire.worker_optimizer import WorkerOptimizer as WorkerOptimizer
from strategies.all_reduce.all_gather import AllGather as AllGather
from strategies.all_reduce.all_reduce import FastestAllReduce as FastestAllReduce
from strategies.all_reduce.demo import DeMo as DeMo
from strategies.all_reduce.double_tree import DoubleTree as DoubleTree
from strategies.all_reduce.fully_sharded import FullySharded as FullySharded
from strategies.all_reduce.halving_doubling import HalvingDoubling as HalvingDoubling
from strategies.all_reduce.hierarchical_ring import HierarchicalRing as HierarchicalRing
from strategies.all_reduce.naive_all_reduce import NaiveAllReduce as NaiveAllReduce
from strategies.all_reduce.overlapped_ring import OverlappedRing as OverlappedRing
from strategies.all_reduce.recursive_doubling import RecursiveDoubling as RecursiveDoubling
from strategies.all_reduce.ring_all_reduce import RingAllReduce as RingAllReduce
from strategies.all_reduce.sharded_gradients import ShardedGradients as ShardedGradients
from strategies.all_reduce.sharded_ring import ShardedRing as ShardedRing
from strategies.all_reduce.swing import Swing as Swing
from strategies.all_reduce.synthesised import Synthesised as Synthesised
from strategies.asynchronous_server.async_param_server import AsyncParamServer as AsyncParamServer
from strategies.asynchronous_server.decoupled_diloco import DecoupledDiLoCo as DecoupledDiLoCo
from strategies.asynchronous_server.dgs import DGS as DGS
from strategies.asynchronous_server.downpour import Downpour as Downpour
from strategies.asynchronous_server.easgd import ElasticAveraging as ElasticAveraging
from strategies.asynchronous_server.inconsistent_reads import InconsistentReads as InconsistentReads
from strategies.local_models.ad_psgd import ADPSGD as ADPSGD
from strategies.local_models.des_loc import DESLOC as DESLOC
from strategies.local_models.gossip import Gossip as Gossip
from strategies.local_models.local_sgd import LocalSGD as LocalSGD
from strategies.local_models.noloco import NoLoCo as NoLoCo
from strategies.local_models.none import NoCommunication as NoCommunication
from strategies.local_models.sparta import Sparta as Sparta
from strategies.local_models.streaming_diloco import StreamingDiLoCo as StreamingDiLoCo
from strategies.lock_free.hogwild import Hogwild as Hogwild
from strategies.lock_free.hogwild_pp import HogwildPP as HogwildPP
from strategies.single import Single as Single
from strategies.synchronous_server.backup_workers import BackupWorkers as BackupWorkers
from strategies.synchronous_server.param_server import ParamServer as ParamServer
from strategies.synchronous_server.sharded_param_server import ShardedParamServer as ShardedParamServer

FAMILIES: dict[str, str]
GROUPS: dict[str, tuple[type[Strategy], ...]]
HOMES: dict[str, str]
INSTEAD: dict[tuple[str, str], str]
READ_FIRST: tuple[str, ...]
STRATEGIES: LazyTable[type[Strategy]]
