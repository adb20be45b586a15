"""What a student's cut MLP takes on several networks, in virtual time. Raises RunFailed."""

import time
from collections.abc import Callable
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist

from gradwire import simulate
from lessons.passes import Block
from lessons.report import Report

D, TOKENS, FLOPS = 512, 256, 10e12
NETWORKS = {"10 Gbit/s, 50 us": ("10gbit", "50us"), "100 Gbit/s, 10 us": ("100gbit", "10us"),
            "NVLink: 3.6 Tbit/s, 2 us": ("3600gbit", "2us")}  # fmt: skip
Mlp = Callable[[torch.Tensor, Block], torch.Tensor]
Cut = Callable[[Block, int, int], Block]


def measure(report: Report, mlp: Mlp, cut: Cut, n: int = 4) -> pd.DataFrame | str:
    """Return the virtual milliseconds of both passes of an MLP on one rank and on n, by the network."""
    if not report.right:
        return "not measured: first have the check say that it is right"
    rows = {}
    for name, (bandwidth, latency) in NETWORKS.items():
        given: dict[str, Any] = {"args": (mlp, cut), "flops": FLOPS, "bandwidth": bandwidth, "latency": latency}
        alone, cut_up = (1e3 * max(simulate(_pass, ranks, quiet=True, **given).results) for ranks in (1, n))
        rows[name] = {"1 rank": alone, f"{n} ranks": cut_up, "times as fast": alone / cut_up}
    return pd.DataFrame(rows).T.round(3)


def _pass(mlp: Mlp, cut: Cut) -> float:
    """Make both passes on each rank; return their seconds."""
    dist.init_process_group("gloo")
    square = torch.zeros(D, D)
    part = cut(Block(square, square, square, square, torch.zeros(D, 4 * D), torch.zeros(4 * D, D)), dist.get_rank(),
               dist.get_world_size())  # fmt: skip
    part.A.requires_grad_()
    part.B.requires_grad_()
    begun = time.perf_counter()
    mlp(torch.zeros(TOKENS, D, requires_grad=True), part).sum().backward()
    return time.perf_counter() - begun
