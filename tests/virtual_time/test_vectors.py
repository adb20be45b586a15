"""Vectors without elements: a run with them is that with torch's own meta tensors, to the last digit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire.compression import CODECS, Codec
from gradwire.options import Options
from gradwire.virtual_time import transport
from gradwire.virtual_time.cluster import ClusterOptions
from gradwire.virtual_time.dry_run import dry_run
from gradwire.virtual_time.vectors import hollow
from strategies import STRATEGIES, Strategy
from tests.runs import n_gpus_of

CASES: list[tuple[str, str]] = [
    *((name, "none") for name in ("async_param_server", "fully_sharded", "sharded_ring", "streaming_diloco")),
    *(("ring_all_reduce", codec) for codec in ("topk", "random_k", "qsgd")),
]


def told(strategy: Strategy, codec: Codec) -> Any:
    """Return all that a dry run says of itself."""
    n_gpus = n_gpus_of(strategy.name, 5)
    of_sgd = strategy.cost().code or codec.carries_momentum
    changes: dict[str, Any] = {} if of_sgd else {"optimizer": "adam", "clip_norm": 1.0}
    options = Options(
        strategy=strategy, codec=codec, n_gpus=n_gpus, device="cpu", bandwidth="1gbit", latency="1ms", batch_size=4,
        slow=(f"{n_gpus - 1}:3",), **changes,
    )  # fmt: skip
    run = dry_run(options, ClusterOptions(compute="30ms"), 1003, 3, quiet=True)
    return run.results, run.memory, run.cards


@pytest.mark.parametrize(("name", "codec"), CASES)
def test_a_run_is_that_with_metas_own_tensors(name: str, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = told(STRATEGIES[name](), CODECS[codec]())
    monkeypatch.setattr(transport, "zeros", lambda n, dtype, device: torch.zeros(n, dtype=dtype, device=device))
    assert made == told(STRATEGIES[name](), CODECS[codec]())


@pytest.mark.parametrize("n", [0, 1, 10, 1003])
def test_parts_are_as_long_as_torchs(n: int) -> None:
    vector, of_torch = hollow(n, torch.float32), torch.zeros(n)
    takes: list[Callable[[torch.Tensor], Any]] = [
        lambda v: v.tensor_split(4), lambda v: v.tensor_split([2, 5]), lambda v: [v[2:7]], lambda v: [v[:-3]],
        lambda v: [v[5:2]], lambda v: [v[::2]], lambda v: [v.view(v.shape)], lambda v: [v.view(-1, 1)],
        lambda v: [v.view(torch.uint8)], lambda v: [v.clone()], lambda v: [v.mul_(3)], lambda v: [v.detach()],
    ]  # fmt: skip
    for take in takes:
        found, right = take(vector), take(of_torch)
        assert [(part.shape, part.dtype, part.nbytes) for part in found] == [
            (part.shape, part.dtype, part.nbytes) for part in right
        ]
        assert all(part.is_meta for part in found)


def test_what_does_not_fit_is_torchs_error() -> None:
    vector = hollow(3, torch.float32)
    for wrong in (hollow(4, torch.float32), torch.zeros(4, device="meta")):
        for method in ("add_", "sub_", "mul_", "div_", "copy_"):
            with pytest.raises(RuntimeError, match=r"shape|size|expand"):
                getattr(vector, method)(wrong)
    assert vector.copy_(hollow(3, torch.float64)).dtype == torch.float32
    assert vector.shape == (3,)
