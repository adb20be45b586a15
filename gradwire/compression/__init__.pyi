"""Made by python -m docs.pages."""

from gradwire.compression.bf16 import BFloat16 as BFloat16
from gradwire.compression.blosc import Blosc as Blosc
from gradwire.compression.codec import Code as Code
from gradwire.compression.codec import Codec as Codec
from gradwire.compression.codec import Setting as Setting
from gradwire.compression.dgc import DGC as DGC
from gradwire.compression.fp16 import Float16 as Float16
from gradwire.compression.none import NoCodec as NoCodec
from gradwire.compression.powersgd import PowerSGD as PowerSGD
from gradwire.compression.qsgd import QSGD as QSGD
from gradwire.compression.random_k import RandomK as RandomK
from gradwire.compression.sign import Sign as Sign
from gradwire.compression.topk import TopK as TopK
from gradwire.core.strategy.codes import DENSE as DENSE
from gradwire.core.strategy.codes import GATHERED as GATHERED
from gradwire.core.strategy.codes import KINDS as KINDS
from gradwire.core.strategy.codes import LINEAR as LINEAR
from gradwire.core.strategy.layout import Layout as Layout
from gradwire.lazy import LazyTable

CODECS: LazyTable[type[Codec]]
HOMES: dict[str, str]
