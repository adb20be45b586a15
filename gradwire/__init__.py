"""Gradwire: data-parallel training, taken apart.

What a user's program needs is here and in `strategies`, the algorithms:

    from gradwire import Options, WorkerOptimizer, launch, run

Names are loaded when they are first used, so that `import gradwire` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from gradwire.compression import CODECS as CODECS
    from gradwire.compression import Codec as Codec
    from gradwire.compression.ddp_hook import CodecState as CodecState
    from gradwire.compression.ddp_hook import codec_hook as codec_hook
    from gradwire.core.launchers import launch as launch
    from gradwire.core.records.errors import RunFailed as RunFailed
    from gradwire.core.records.errors import UsageError as UsageError
    from gradwire.core.records.errors import between as between
    from gradwire.core.records.errors import one_of as one_of
    from gradwire.core.strategy.base import RunSize as RunSize
    from gradwire.core.strategy.base import Strategy as Strategy
    from gradwire.core.strategy.factories import ByTensor as ByTensor
    from gradwire.core.strategy.factories import OptimizerFactory as OptimizerFactory
    from gradwire.core.strategy.factories import by_name as by_name
    from gradwire.core.strategy.replica import Replica as Replica
    from gradwire.core.strategy.served import Served as Served
    from gradwire.core.strategy.traits import Cost as Cost
    from gradwire.core.strategy.traits import Footprint as Footprint
    from gradwire.core.strategy.traits import Traffic as Traffic
    from gradwire.core.strategy.traits import Traits as Traits
    from gradwire.core.strategy.worker_optimizer import WorkerOptimizer as WorkerOptimizer
    from gradwire.core.training.options import Options as Options
    from gradwire.core.training.run import run as run
    from gradwire.core.transports.base import Transport as Transport
    from gradwire.every_order.contributions import find_fault as find_fault
    from gradwire.every_order.explore import explore as explore
    from gradwire.strategies import STRATEGIES as STRATEGIES

_HOME = {
    "gradwire.compression": ("CODECS", "Codec"),
    "gradwire.compression.ddp_hook": ("CodecState", "codec_hook"),
    "gradwire.core.launchers": ("launch",),
    "gradwire.core.records.errors": ("RunFailed", "UsageError", "between", "one_of"),
    "gradwire.core.strategy.base": ("RunSize", "Strategy"),
    "gradwire.core.strategy.factories": ("ByTensor", "OptimizerFactory", "by_name"),
    "gradwire.core.strategy.replica": ("Replica",),
    "gradwire.core.strategy.served": ("Served",),
    "gradwire.core.strategy.traits": ("Cost", "Footprint", "Traffic", "Traits"),
    "gradwire.core.strategy.worker_optimizer": ("WorkerOptimizer",),
    "gradwire.core.training.options": ("Options",),
    "gradwire.core.training.run": ("run",),
    "gradwire.core.transports.base": ("Transport",),
    "gradwire.every_order.contributions": ("find_fault",),
    "gradwire.every_order.explore": ("explore",),
    "gradwire.strategies": ("STRATEGIES",),
}
_TRAINS = ("Options", "WorkerOptimizer", "run")

__all__ = [name for names in _HOME.values() for name in names]


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            if name in _TRAINS:  # ranks find loaded what they import
                from gradwire.core.launchers import preload

                preload("gradwire.core.training.preload")
                preload("torch._dynamo")  # which torch's optimizers load when a user's loop makes them
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
