"""A language model: the decoder of GPT-2 (Radford et al., 2019), which predicts at every place the token that follows.

Each block adds to the stream what attention gathers from earlier places, then what an MLP makes of each place alone;
both read the stream normalised (pre-norm). One matrix embeds tokens and scores them (Press & Wolf, 2017).
"""

import math

import torch.nn.functional as F
from torch import Tensor, nn

from gradwire.core.records.errors import UsageError

_STD = 0.02  # of all weights at first


class GPT(nn.Module):
    """Maps tokens (B, T) int64 to logits (B, T, n_tokens) of the token that follows each, T being at most `context`."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        n_tokens: int,
        layers: int = 2,
        width: int = 96,
        heads: int = 4,
        context: int = 0,  # 0: the length of a sample
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if len(input_shape) != 1:
            raise UsageError(f"--model gpt: needs a row of tokens, but a sample is {input_shape}; take --dataset text")
        context = context or input_shape[0]
        checks = {
            f"layers={layers}: must be at least 1": layers >= 1,
            f"width={width}: must be a multiple of heads={heads}": width > 0 < heads and width % heads == 0,
            f"dropout={dropout}: must be at least 0 and less than 1": 0 <= dropout < 1,
            f"context={context}: a sample has {input_shape[0]} tokens; take as many, or a smaller --context":
                context >= input_shape[0],
        }  # fmt: skip
        for what, holds in checks.items():
            if not holds:
                raise UsageError(f"--model_options {what}")
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
                nn.init.normal_(parameter, std=_STD / math.sqrt(2 * layers) if ".add_" in name else _STD)

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
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.add_attention = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.add_mlp = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the stream after this block."""
        x = x + self.dropout(self.add_attention(self.attention(self.qkv(self.norm_attention(x)))))
        return x + self.dropout(self.add_mlp(F.gelu(self.widen(self.norm_mlp(x)))))

    def attention(self, qkv: Tensor) -> Tensor:
        """Return in each head and at each place t the mean of v[0..t], weighed by softmax(q[t] k[0..t] / sqrt(d))."""
        B, T, _ = qkv.shape
        q, k, v = qkv.view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # each (B, heads, T, d)
        p = self.dropout.p if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True).transpose(1, 2).flatten(2)
