"""The largest 1 % of 5.8 million elements are found in less than a fifth of the time of torch.topk, exactly or about.

python -m benchmarks compression

On one core. The vectors are like gradients: normal, in 20 slices of different scale; one matrix of 1000 rows. A codec's
row has its options' defaults: the time of a code, its size in percent of the vector's, and the error of the first code,
||v - decoded|| / ||v||, to which nothing kept has been added. A row with `torch_ms` has both sides in turns: the
selection against torch.topk(|v|, k), of which `error` is that of the density; and powersgd, in a group of one rank,
against torch's PowerSGD hook of the same rank. There both sides copy the gradient into a buffer first, as a backward
pass does; `ratio` is torch_ms / ms.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from typing_extensions import override

from benchmarks import common
from benchmarks.common import Row, alternate, figures, gloo, require
from gradwire import launch
from gradwire.compression import CODECS, Layout
from gradwire.compression.selection import above, top
from gradwire.core.transports.base import Transport

ROWS, SLICES, DENSITY = 1000, 20, 0.01
DENSITIES: dict[str, dict[str, Any]] = {"random_k": {"density": 0.01}}
"""The measured options, where a codec has other defaults."""
LATE = 1000  # an epoch after every warm-up
KEPT: list[Any] = []
"""Groups, until the process ends: gloo's thread, which may let go of one after a hook, cannot be the last to do so."""
COLUMNS = "what", "elements", "encode_ms", "decode_ms", "percent", "error", "ms", "torch_ms", "ratio"


@dataclass(frozen=True)
class Settings(common.Settings):
    """Options of the benchmark of compression."""

    elements: tuple[int, ...] = (1_200_000, 5_800_000, 11_200_000)
    """Lengths of the vectors: multiples of 1000."""
    codecs: tuple[str, ...] = tuple(CODECS)
    """Which codecs."""

    @override
    def check(self) -> None:
        super().check()
        require(all(n % ROWS == 0 for n in self.elements), f"--elements: give multiples of {ROWS}")
        require(set(self.codecs) <= set(CODECS), f"--codecs: there are {', '.join(CODECS)}")


def gradient(n: int) -> torch.Tensor:
    """Return a vector like a gradient."""
    vector = torch.randn(n, generator=torch.Generator().manual_seed(0))
    for i, part in enumerate(vector.tensor_split(SLICES)):
        part.mul_(10.0 ** (-3 * i / SLICES))
    return vector


def row(what: str, n: int, **values: Any) -> Row:
    """Return a row with all columns."""
    return {**dict.fromkeys(COLUMNS, ""), "what": what, "elements": n, **values}


def started(name: str, vector: torch.Tensor) -> Any:
    """Return a codec for vectors of this length."""
    codec = CODECS[name](**DENSITIES.get(name, {}))
    codec.start(Layout(("matrix",), ((ROWS, len(vector) // ROWS),)), vector)
    return codec


def code(transport: Transport, name: str, vector: torch.Tensor, repeats: int) -> Row:
    """Measure a codec."""
    codec = started(name, vector)
    codec.epoch = LATE
    out = torch.empty_like(vector)
    first = codec.encode(vector).data
    lost = torch.linalg.vector_norm(vector - codec.decode(first, out)) / torch.linalg.vector_norm(vector)
    sides = {"encode_ms": partial(codec.encode, vector), "decode_ms": partial(codec.decode, first, out)}
    ms = figures(**{side: 1e3 * seconds for side, seconds in alternate(transport, sides, repeats).items()})
    return row(name, len(vector), **ms, percent=100 * first.nbytes / vector.nbytes, error=float(lost))


def compare(transport: Transport, what: str, vector: torch.Tensor, repeats: int, *both: Callable[[], Any]) -> Row:
    """Measure both sides, ours and torch's."""
    for side in both:
        side()
    seconds = alternate(transport, dict(zip(("ms", "torch_ms"), both, strict=True)), repeats)
    ms, torch_ms = seconds["ms"] * 1e3, seconds["torch_ms"] * 1e3
    return row(what, len(vector), **figures(ms=ms, torch_ms=torch_ms, ratio=torch_ms / ms))


def against_the_hook(transport: Transport, vector: torch.Tensor, repeats: int) -> Row:
    """Measure powersgd against torch's hook, both with the all-reduces of a group of one."""
    codec = started("powersgd", vector)
    mine, theirs = torch.empty_like(vector), torch.empty_like(vector)
    state = PowerSGDState(None, matrix_approximation_rank=codec.rank, start_powerSGD_iter=2, min_compression_rate=1)
    bucket = SimpleNamespace(  # one matrix, as DDP gives it to a hook
        index=lambda: 0, is_last=lambda: True, buffer=lambda: theirs, gradients=lambda: [theirs.view(ROWS, -1)]
    )

    def ours() -> None:
        for flat in codec.reduce(mine.copy_(vector)):
            dist.all_reduce(flat)

    def hook() -> None:
        theirs.copy_(vector)
        powerSGD_hook(state, cast(dist.GradBucket, bucket)).wait()

    with gloo(transport):
        KEPT.append(dist.group.WORLD)
        for _ in range(3):  # the hook's first steps are without compression
            hook()
        return compare(transport, f"powersgd, rank {codec.rank}", vector, repeats, ours, hook)


def on_one_core(transport: Transport, settings: Settings) -> list[Row]:
    """Return one row per codec and length, and one per comparison and length."""
    torch.set_num_threads(1)
    rows = []
    for n in settings.elements:
        vector = gradient(n)
        rows += [code(transport, name, vector, settings.repeats) for name in settings.codecs]
        k = int(n * DENSITY)
        for find in (top, above):
            sides = partial(find, vector, k), lambda v=vector, k=k: torch.topk(v.abs(), k)
            measured = compare(transport, f"selection.{find.__name__}", vector, settings.repeats, *sides)
            rows.append(measured | {"error": len(find(vector, k)) / k - 1})
        if "powersgd" in settings.codecs:
            rows.append(against_the_hook(transport, vector, settings.repeats))
        else:
            print("powersgd is left out: it is not among the codecs")
    return rows


def measure(settings: Settings) -> Iterator[Row]:
    """Yield the rows of one process."""
    yield from launch(on_one_core, 1, settings)[0]
