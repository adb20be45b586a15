"""The decoder, against torch's own layers; the options of models, and models in files."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from gradwire.checkpoints.model_files import to_bytes
from gradwire.core.records.errors import UsageError
from gradwire.core.workloads import datasets
from gradwire.core.workloads.models import build
from gradwire.language.gpt import Block
from gradwire.options import Options

T, V = 12, 11


def network(options: str = "layers=3,width=32") -> nn.Module:
    torch.manual_seed(0)
    return build("gpt", (T,), V, options)


def tokens(n: int = 2) -> torch.Tensor:
    return torch.randint(V, (n, T), generator=torch.Generator().manual_seed(1))


def test_a_block_is_torchs_own_layer_with_a_causal_mask() -> None:
    torch.manual_seed(0)
    own = Block(32, 4, 0.0).double()
    other = nn.TransformerEncoderLayer(32, 4, 128, 0.0, "gelu", batch_first=True, norm_first=True).double()
    pairs = (
        (own.norm_attention, other.norm1), (own.norm_mlp, other.norm2), (own.add_attention, other.self_attn.out_proj),
        (own.widen, other.linear1), (own.add_mlp, other.linear2),
    )  # fmt: skip
    for mine, theirs in pairs:
        theirs.load_state_dict(mine.state_dict())
    other.self_attn.load_state_dict({f"in_proj_{name}": p for name, p in own.qkv.state_dict().items()}, strict=False)
    x = torch.randn(2, T, 32, dtype=torch.float64)
    mask = nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64)
    torch.testing.assert_close(own(x), other(x, src_mask=mask, is_causal=True))


def test_a_place_sees_itself_and_what_came_before() -> None:
    model, x = network().eval(), tokens()
    changed = x.clone()
    changed[:, 5] = (x[:, 5] + 1) % V
    assert [name for name, p in model.named_parameters() if V in p.shape] == ["tokens.weight"], "it is tied"
    differ = (model(x) - model(changed)).abs().amax(2) > 1e-6
    assert not differ[:, :5].any()
    assert differ[:, 5:].all()
    torch.testing.assert_close(model(x[:, :5]), model(x)[:, :5], msg="a shorter row gives the same")


def test_a_function_of_the_user_gets_its_options(user_module: Callable[[str], str]) -> None:
    name = user_module("def make(shape, n, *, sizes=(4,), bias=True):\n  return nn.Linear(shape[0], sum(sizes), bias)")
    model = build(name, (5,), 3, "sizes=(1,2),bias=False")
    assert isinstance(model, nn.Linear)
    assert (model.out_features, model.bias) == (3, None)
    with pytest.raises(UsageError, match=rf"^--model_options size=3: --model {name} takes sizes=\(4,\), bias=True"):
        build(name, (5,), 3, "size=3")
    with pytest.raises(UsageError, match=rf"^--model {name} with sizes=7: it raised TypeError"):
        build(name, (5,), 3, "sizes=7")


def test_tied_weights_are_saved_under_each_name() -> None:
    load = pytest.importorskip("safetensors.torch").load
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    options = Options()
    found = load(to_bytes(model, "model.safetensors", options, datasets.load(options)))
    assert found.keys() == model.state_dict().keys()
    assert torch.equal(found["1.weight"], found["0.weight"])
