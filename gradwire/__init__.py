"""Gradwire: data-parallel training, taken apart.

What a user's program needs is here and in `strategies`, the algorithms:

    from gradwire import Options, WorkerOptimizer, launch, run

Names are loaded when they are first used, so that `import gradwire` is quick; type checkers read `__init__.pyi`.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

__version__ = "0.2.0"

_HOME = {
    "gradwire.compression": "BFloat16 Blosc CODECS Codec DGC Float16 NoCodec PowerSGD QSGD RandomK Sign TopK",
    "gradwire.compression.base": "pack unpack",
    "gradwire.compression.ddp_hook": "CodecState codec_hook",
    "gradwire.core.launchers": "launch",
    "gradwire.core.records.errors": "RunFailed UsageError between one_of",
    "gradwire.core.records.tables": "aligned",
    "gradwire.core.strategy.strategy": "RunSize Strategy",
    "gradwire.core.strategy.factories": "ByTensor OptimizerFactory by_name",
    "gradwire.core.strategy.replica": "Replica",
    "gradwire.core.strategy.served": "Mean Served",
    "gradwire.core.strategy.traits": "Cost Footprint Traffic Traits",
    "gradwire.worker_optimizer": "WorkerOptimizer",
    "gradwire.options": "Options",
    "gradwire.core.training.run": "run",
    "gradwire.core.transports.base": "ANY Transport Work",
    "gradwire.every_order.contributions": "check_all_reduce",
    "gradwire.every_order.explore": "explore",
    "gradwire.every_order.runs": "Case run_once",
    "gradwire.pictures.page": "show",
    "gradwire.strategies": "STRATEGIES",
    "gradwire.torch_scripts.simulate": "SimulatedProgram simulate",
    "gradwire.virtual_time.cluster": "ClusterOptions",
    "gradwire.virtual_time.dry_run": "dry_run",
    "gradwire.virtual_time.footprints": "smallest_n",
    "gradwire.virtual_time.launcher": "VirtualTime",
    "gradwire.virtual_time.meta_models": "sizes_of",
    "gradwire.virtual_time.network": "Network",
}
"""The module of each public name."""
_TRAINS = ("Options", "WorkerOptimizer", "run")

__all__ = [name for names in _HOME.values() for name in names.split()]
_FORMER = {"find_fault": "check_all_reduce"}


def __getattr__(name: str) -> Any:
    name = _FORMER.get(name, name)
    for module, names in _HOME.items():
        if name in names.split():
            if name in _TRAINS:  # ranks find loaded what they import
                from gradwire.core.launchers import preload

                preload("gradwire.preload")
                preload("torch._dynamo")  # which torch's optimizers load when a user's loop makes them
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if find_spec("gradwire.backend"):  # an installed package is also found by torch's entry point
    import_module("gradwire.backend.registration").register_when_torch_is_loaded()
