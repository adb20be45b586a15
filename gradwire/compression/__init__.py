"""How a vector looks on the wire: codecs, by the name of their module. A new one is one file here and its line.

Each is loaded when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gradwire.compression.base import DENSE, GATHERED, KINDS, LINEAR, Code, Codec, Setting
from gradwire.core.records.lazy import LazyTable
from gradwire.core.strategy.layout import Layout

if TYPE_CHECKING:
    from gradwire.compression.bf16 import BFloat16 as BFloat16
    from gradwire.compression.blosc import Blosc as Blosc
    from gradwire.compression.dgc import DGC as DGC
    from gradwire.compression.fp16 import Float16 as Float16
    from gradwire.compression.none import NoCodec as NoCodec
    from gradwire.compression.powersgd import PowerSGD as PowerSGD
    from gradwire.compression.qsgd import QSGD as QSGD
    from gradwire.compression.random_k import RandomK as RandomK
    from gradwire.compression.sign import Sign as Sign
    from gradwire.compression.topk import TopK as TopK

CLASSES: dict[str, str] = {
    "NoCodec": "none",
    "Float16": "fp16",
    "BFloat16": "bf16",
    "Blosc": "blosc",
    "TopK": "topk",
    "RandomK": "random_k",
    "DGC": "dgc",
    "QSGD": "qsgd",
    "Sign": "sign",
    "PowerSGD": "powersgd",
}
"""The module that each is in, which gives it its name on the command line."""
CODECS: LazyTable[type[Codec]] = LazyTable({place: (f"{__name__}.{place}", name) for name, place in CLASSES.items()})

__all__ = ["CODECS", "DENSE", "GATHERED", "KINDS", "LINEAR", "Code", "Codec", "Layout", "Setting"]


def __getattr__(name: str) -> Any:
    if name in CLASSES:
        return getattr(import_module(f"{__name__}.{CLASSES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
