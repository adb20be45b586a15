# mypy: ignore-errors
"""After torch's FSDP2 tutorial (fully_shard): a transformer, mixed precision, prefetch, checkpoints of DTensors."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.n1, self.n2, self.h = nn.LayerNorm(d), nn.LayerNorm(d), h
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.w1, self.w2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.h, -1).transpose(1, 2) for y in self.qkv(self.n1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(y)
        return x + self.w2(F.gelu(self.w1(self.n2(x))))


class Transformer(nn.Module):
    def __init__(self, vocab=1000, d=64, h=4, n=4, seq=32):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(seq, d)
        self.layers = nn.ModuleList(Block(d, h) for _ in range(n))
        self.norm, self.output = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)

    def forward(self, tokens):
        x = self.tok(tokens) + self.pos(torch.arange(tokens.size(1)))
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))

    def reset_parameters(self):
        pass


def main(args):
    rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group(backend="gloo")
    torch.manual_seed(0)
    with torch.device("meta"):
        model = Transformer()
    kw = {}
    if args.mixed_precision:
        kw["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, **kw)
    fully_shard(model, **kw)
    if args.explicit_prefetching:
        for i, layer in enumerate(model.layers[:-1]):
            layer.set_modules_to_forward_prefetch(model.layers[i + 1 : i + 2])
        for i, layer in list(enumerate(model.layers))[1:]:
            layer.set_modules_to_backward_prefetch(model.layers[i - 1 : i])
    model.to_empty(device="cpu")
    for p in model.parameters():
        nn.init.normal_(p, std=0.02)
    optim = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(4):
        if args.explicit_prefetching:
            model.unshard()
        x = torch.randint(0, 1000, (2, 32))
        loss = model(x).float().sum() / 1e4
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optim.step()
        optim.zero_grad()
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    set_model_state_dict(
        model, full if rank == 0 else {}, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    )
    print(rank, len(full), loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--explicit-prefetching", action="store_true")
    parser.add_argument("--mixed-precision", action="store_true")
    main(parser.parse_args())
