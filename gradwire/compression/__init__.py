"""How a vector looks on the wire: codecs, by the name of their module. A new one is one file here and its name."""

from gradwire.compression.base import DENSE, GATHERED, KINDS, LINEAR, Code, Codec, Setting
from gradwire.compression.bf16 import BFloat16
from gradwire.compression.blosc import Blosc
from gradwire.compression.dgc import DGC
from gradwire.compression.fp16 import Float16
from gradwire.compression.none import NoCodec
from gradwire.compression.powersgd import PowerSGD
from gradwire.compression.qsgd import QSGD
from gradwire.compression.random_k import RandomK
from gradwire.compression.sign import Sign
from gradwire.compression.topk import TopK
from gradwire.core.strategy.layout import Layout

CODECS: dict[str, type[Codec]] = {
    codec.name: codec for codec in (NoCodec, Float16, BFloat16, Blosc, TopK, RandomK, DGC, QSGD, Sign, PowerSGD)
}

__all__ = ["CODECS", "DENSE", "GATHERED", "KINDS", "LINEAR", "Code", "Codec", "Layout", "Setting"]
