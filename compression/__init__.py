"""How a vector looks on the wire: codecs, by the name of their module. A new one is one file here and its name."""

from compression.base import DENSE, GATHERED, KINDS, LINEAR, Code, Codec, Setting
from compression.bf16 import BFloat16
from compression.blosc import Blosc
from compression.dgc import DGC
from compression.fp16 import Float16
from compression.layout import Layout
from compression.none import NoCodec
from compression.powersgd import PowerSGD
from compression.qsgd import QSGD
from compression.random_k import RandomK
from compression.sign import Sign
from compression.topk import TopK

CODECS: dict[str, type[Codec]] = {
    codec.name: codec for codec in (NoCodec, Float16, BFloat16, Blosc, TopK, RandomK, DGC, QSGD, Sign, PowerSGD)
}

__all__ = ["CODECS", "DENSE", "GATHERED", "KINDS", "LINEAR", "Code", "Codec", "Layout", "Setting"]
