# mypy: ignore-errors
"""After torch's tutorial of pipeline parallelism: a transformer that is split by hand, or by the tracer."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, SplitPoint, pipeline


class Transformer(nn.Module):
    def __init__(self, vocab=200, d=32, n=4):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab, d)
        self.layers = nn.ModuleDict({str(i): nn.TransformerDecoderLayer(d, 4, batch_first=True) for i in range(n)})
        self.norm, self.output = nn.LayerNorm(d), nn.Linear(d, vocab)

    def forward(self, tokens):
        h = self.tok_embeddings(tokens) if self.tok_embeddings else tokens
        for layer in self.layers.values():
            h = layer(h, h)
        h = self.norm(h) if self.norm else h
        return self.output(h).clone() if self.output else h


def init_distributed():
    global rank, device, pp_group, stage_index, num_stages
    rank = int(os.environ["LOCAL_RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    dist.init_process_group()
    pp_group = dist.new_group()
    stage_index, num_stages = rank, world_size


def manual_model_split(model):
    n = len(model.layers)
    if stage_index == 0:
        for i in range(n // 2, n):
            del model.layers[str(i)]
        model.norm = None
        model.output = None
    elif stage_index == 1:
        for i in range(n // 2):
            del model.layers[str(i)]
        model.tok_embeddings = None
    return PipelineStage(model, stage_index, num_stages, device)


def tracer_model_split(model, example):
    pipe = pipeline(module=model, mb_args=(example,), split_spec={"layers.2": SplitPoint.BEGINNING})
    return pipe.build_stage(stage_index, device, pp_group)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--tracer", action="store_true")
    args = parser.parse_args()
    init_distributed()
    torch.manual_seed(0)
    num_microbatches = 4
    model = Transformer()
    x = torch.ones(32, 16, dtype=torch.long)
    y = torch.randint(0, 200, (32, 16), dtype=torch.long)
    stage = tracer_model_split(model, x.chunk(num_microbatches)[0]) if args.tracer else manual_model_split(model)

    def tokenwise_loss_fn(outputs, targets):
        return nn.CrossEntropyLoss()(outputs.reshape(-1, 200), targets.reshape(-1))

    schedule = ScheduleGPipe(stage, n_microbatches=num_microbatches, loss_fn=tokenwise_loss_fn)
    for _ in range(2):
        if rank == 0:
            schedule.step(x)
        else:
            losses = []
            output = schedule.step(target=y, losses=losses)
            print(f"losses: {[loss.item() for loss in losses]}")
    dist.destroy_process_group()
