"""A language model: the decoder of GPT-2 (Radford et al., 2019), which predicts at every place the token that follows.

Each block adds to the stream what attention gathers from earlier places, then what an MLP makes of each place alone;
both read the stream normalised (pre-norm). One matrix embeds tokens and scores them (Press & Wolf, 2017).
"""

import math

import torch.nn.functional as F
from torch import Tensor, nn

from records.errors import UsageError

_STD = 0.02  # of all weights at first


def gpt(
    input_shape: tuple[int, ...],
    n_classes: int,
    *,
    layers: int = 4,
    width: int = 128,
    heads: int = 4,
    context: int | None = None,
    dropout: float = 0.0,
) -> nn.Module:
    """Return a decoder for samples of `input_shape` tokens, of which there are `n_classes`.

    `context`: the most tokens it can look at, by default those of a sample. Raises UsageError.
    """
    if len(input_shape) != 1:
        raise UsageError(f"--model gpt: needs a row of tokens, but a sample is {input_shape}; take --dataset text")
    context = input_shape[0] if context is None else context
    for option, value in {"layers": layers, "width": width, "heads": heads, "context": context}.items():
        if type(value) is not int or value < 1:
            raise UsageError(f"--model_options {option}={value!r}: must be a whole number from 1 on")
    if width % heads:
        raise UsageError(f"--model_options width={width}: each of heads={heads} has an equal part; take a multiple")
    if not 0 <= dropout < 1:
        raise UsageError(f"--model_options dropout={dropout}: must be at least 0 and less than 1")
    if context < input_shape[0]:
        raise UsageError(
            f"--model_options context={context}: a sample has {input_shape[0]} tokens; take as many or more, or a "
            "smaller --context"
        )
    return GPT(n_classes, layers, width, heads, context, dropout)


class GPT(nn.Module):
    """Maps tokens (B, T) int64 to logits (B, T, n_tokens) of the next token at each place, T <= context."""

    def __init__(self, n_tokens: int, layers: int, width: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(n_tokens, width)
        self.places = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                # What adds to the stream is smaller, so that the stream does not grow with the number of layers.
                nn.init.normal_(parameter, std=_STD / math.sqrt(2 * layers) if "add" in name else _STD)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits."""
        x = self.dropout(self.tokens(tokens) + self.places.weight[: tokens.shape[1]])
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


class Block(nn.Module):
    """x + attention(norm(x)), then x + MLP(norm(x)); x is (B, T, width)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.mlp = nn.Sequential()
        self.mlp.add_module("widen", nn.Linear(width, 4 * width))
        self.mlp.add_module("gelu", nn.GELU())
        self.mlp.add_module("add", nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the stream after this block."""
        x = x + self.dropout(self.attention(self.norm_attention(x)))
        return x + self.dropout(self.mlp(self.norm_mlp(x)))


class Attention(nn.Module):
    """At each place and in each head, a mean of what the places up to it say, weighed by softmax(q k / sqrt(d))."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.add = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return what is to be added to the stream x (B, T, width)."""
        B, T, width = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # each (B, heads, T, width / heads)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.add(y.transpose(1, 2).reshape(B, T, width))
