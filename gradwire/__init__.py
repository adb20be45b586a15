"""Gradwire: data-parallel training, taken apart.

What a user's program needs is here and in `strategies`, the algorithms:

    from gradwire import Options, WorkerOptimizer, launch, run

Names are loaded when they are first used, so that `import gradwire` is quick.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from gradwire.compression import CODECS as CODECS
    from gradwire.compression import DGC as DGC
    from gradwire.compression import QSGD as QSGD
    from gradwire.compression import BFloat16 as BFloat16
    from gradwire.compression import Blosc as Blosc
    from gradwire.compression import Codec as Codec
    from gradwire.compression import Float16 as Float16
    from gradwire.compression import NoCodec as NoCodec
    from gradwire.compression import PowerSGD as PowerSGD
    from gradwire.compression import RandomK as RandomK
    from gradwire.compression import Sign as Sign
    from gradwire.compression import TopK as TopK
    from gradwire.compression.base import pack as pack
    from gradwire.compression.base import unpack as unpack
    from gradwire.compression.ddp_hook import CodecState as CodecState
    from gradwire.compression.ddp_hook import codec_hook as codec_hook
    from gradwire.core.launchers import launch as launch
    from gradwire.core.records.errors import RunFailed as RunFailed
    from gradwire.core.records.errors import UsageError as UsageError
    from gradwire.core.records.errors import between as between
    from gradwire.core.records.errors import one_of as one_of
    from gradwire.core.records.tables import aligned as aligned
    from gradwire.core.strategy.factories import ByTensor as ByTensor
    from gradwire.core.strategy.factories import OptimizerFactory as OptimizerFactory
    from gradwire.core.strategy.factories import by_name as by_name
    from gradwire.core.strategy.replica import Replica as Replica
    from gradwire.core.strategy.run_size import RunSize as RunSize
    from gradwire.core.strategy.served import Mean as Mean
    from gradwire.core.strategy.served import Served as Served
    from gradwire.core.strategy.strategy import Strategy as Strategy
    from gradwire.core.strategy.traits import Cost as Cost
    from gradwire.core.strategy.traits import Footprint as Footprint
    from gradwire.core.strategy.traits import Traffic as Traffic
    from gradwire.core.strategy.traits import Traits as Traits
    from gradwire.core.training.run import run as run
    from gradwire.core.transports.base import ANY as ANY
    from gradwire.core.transports.base import Transport as Transport
    from gradwire.core.transports.base import Work as Work
    from gradwire.every_order.contributions import check_all_reduce as check_all_reduce
    from gradwire.every_order.explore import explore as explore
    from gradwire.every_order.runs import Case as Case
    from gradwire.every_order.runs import run_once as run_once
    from gradwire.options import Options as Options
    from gradwire.pictures.page import show as show
    from gradwire.strategies import STRATEGIES as STRATEGIES
    from gradwire.torch_scripts.simulate import SimulatedProgram as SimulatedProgram
    from gradwire.torch_scripts.simulate import simulate as simulate
    from gradwire.virtual_time.cluster import ClusterOptions as ClusterOptions
    from gradwire.virtual_time.dry_run import dry_run as dry_run
    from gradwire.virtual_time.footprints import smallest_n as smallest_n
    from gradwire.virtual_time.launcher import VirtualTime as VirtualTime
    from gradwire.virtual_time.meta_models import sizes_of as sizes_of
    from gradwire.virtual_time.network import Network as Network
    from gradwire.worker_optimizer import WorkerOptimizer as WorkerOptimizer

_HOME = {
    "gradwire.compression": (
        "BFloat16",
        "Blosc",
        "CODECS",
        "Codec",
        "DGC",
        "Float16",
        "NoCodec",
        "PowerSGD",
        "QSGD",
        "RandomK",
        "Sign",
        "TopK",
    ),
    "gradwire.compression.base": (
        "pack",
        "unpack",
    ),
    "gradwire.compression.ddp_hook": (
        "CodecState",
        "codec_hook",
    ),
    "gradwire.core.launchers": ("launch",),
    "gradwire.core.records.errors": (
        "RunFailed",
        "UsageError",
        "between",
        "one_of",
    ),
    "gradwire.core.records.tables": ("aligned",),
    "gradwire.core.strategy.strategy": (
        "RunSize",
        "Strategy",
    ),
    "gradwire.core.strategy.factories": (
        "ByTensor",
        "OptimizerFactory",
        "by_name",
    ),
    "gradwire.core.strategy.replica": ("Replica",),
    "gradwire.core.strategy.served": (
        "Mean",
        "Served",
    ),
    "gradwire.core.strategy.traits": (
        "Cost",
        "Footprint",
        "Traffic",
        "Traits",
    ),
    "gradwire.worker_optimizer": ("WorkerOptimizer",),
    "gradwire.options": ("Options",),
    "gradwire.core.training.run": ("run",),
    "gradwire.core.transports.base": (
        "ANY",
        "Transport",
        "Work",
    ),
    "gradwire.every_order.contributions": ("check_all_reduce",),
    "gradwire.every_order.explore": ("explore",),
    "gradwire.every_order.runs": (
        "Case",
        "run_once",
    ),
    "gradwire.pictures.page": ("show",),
    "gradwire.strategies": ("STRATEGIES",),
    "gradwire.torch_scripts.simulate": (
        "SimulatedProgram",
        "simulate",
    ),
    "gradwire.virtual_time.cluster": ("ClusterOptions",),
    "gradwire.virtual_time.dry_run": ("dry_run",),
    "gradwire.virtual_time.footprints": ("smallest_n",),
    "gradwire.virtual_time.launcher": ("VirtualTime",),
    "gradwire.virtual_time.meta_models": ("sizes_of",),
    "gradwire.virtual_time.network": ("Network",),
}
_TRAINS = ("Options", "WorkerOptimizer", "run")

__all__ = [name for names in _HOME.values() for name in names]


_FORMER = {"find_fault": "check_all_reduce"}


def __getattr__(name: str) -> Any:
    name = _FORMER.get(name, name)
    for module, names in _HOME.items():
        if name in names:
            if name in _TRAINS:  # ranks find loaded what they import
                from gradwire.core.launchers import preload

                preload("gradwire.preload")
                preload("torch._dynamo")  # which torch's optimizers load when a user's loop makes them
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "torch.distributed" in sys.modules:  # else torch's entry point does it
    from gradwire.backend.registration import register

    register()
