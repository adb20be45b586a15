"""The algorithms, by name. A new one is one new file here, and its line in this table."""

from strategies.async_param_server import AsyncParamServer
from strategies.base import OptimizerFactory, Strategy
from strategies.downpour import Downpour
from strategies.naive_all_reduce import NaiveAllReduce
from strategies.none import NoCommunication
from strategies.param_server import ParamServer
from strategies.replica import Replica
from strategies.ring_all_reduce import RingAllReduce
from strategies.single import Single

STRATEGIES: dict[str, type[Strategy]] = {
    "single": Single,
    "param_server": ParamServer,
    "async_param_server": AsyncParamServer,
    "downpour": Downpour,
    "ring_all_reduce": RingAllReduce,
    "naive_all_reduce": NaiveAllReduce,
    "none": NoCommunication,
}

__all__ = ["STRATEGIES", "OptimizerFactory", "Replica", "Strategy"]
