"""Torch's own pipeline schedules in virtual time, beside a student's. Raises RunFailed."""

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

from gradwire import simulate
from lessons.report import Report, Shown, new_picture

V = 2  # stages of a rank, where a schedule has several
# By schedule: the bubble in passes of a micro-batch through a stage, as a part of p - 1, and the stages of a rank.
TORCH: dict[str, tuple[float, int]] = {
    "GPipe": (1, 1), "1F1B": (1, 1), "Interleaved1F1B": (1, V), "LoopedBFS": (1, V),
    "InterleavedZeroBubble": (1 / 3, V), "ZBVZeroBubble": (1 / 3, V), "DualPipeV": (2 / 3, V),
}  # fmt: skip
_IS_V = ("ZBVZeroBubble", "DualPipeV")  # in which the first and the last stage are one rank's


def closed_form(name: str, p: int, m: int) -> float:
    """Return the time of a schedule of torch's, in c: that of a micro-batch on a rank."""
    bubble, v = TORCH[name]
    return (m * v + bubble * (p - 1)) / v


def compare(report: Report, p: int = 4, m: int = 8) -> Shown | str:
    """Return a picture of the seven schedules and of the report's three: the time of a step, and their closed forms."""
    if not report.right:
        return "not measured: first have the check say that it is right"
    rows = {f"torch, {name}": (measure(name, p, m), closed_form(name, p, m)) for name in TORCH}
    rows |= {f"yours, {figure.name.partition(', ')[2]}": (figure.yours, figure.best) for figure in report.figures
             if figure.name.startswith("seconds")}  # fmt: skip
    picture, axes = new_picture(xlabel=f"the time of a step in c; p = {p}, m = {m}; |: the closed form")
    names = [*rows]
    axes.barh(names, [measured for measured, _ in rows.values()], color="#3b6ea5", height=0.6)
    axes.plot([formula for _, formula in rows.values()], names, "|", color="#d9903d", markersize=14, markeredgewidth=3)
    axes.axvline(m, color="#888888", linestyle=":")
    axes.invert_yaxis()
    lines = [f"{name:28} {measured:6.3f} c, closed form {formula:6.3f} c" for name, (measured, formula) in rows.items()]
    return Shown("\n".join(lines), picture, "The time of a step by each schedule; dotted: without any bubble.")


def measure(name: str, p: int, m: int) -> float:
    """Return the virtual time of a step of one of torch's schedules, in c."""
    second = simulate(_step, n_gpus=p, args=(name, m), compute="1s", bandwidth="1tbit", latency="0s", quiet=True)
    return float(second.results[0]) / TORCH[name][1]


def _step(name: str, m: int) -> float:
    """Make two steps on each rank; return the seconds of the second, in which a micro-batch takes 1 s at a stage."""
    dist.init_process_group("gloo")
    rank, p, v = dist.get_rank(), dist.get_world_size(), TORCH[name][1]
    places = [rank, 2 * p - 1 - rank if name in _IS_V else p + rank][:v]
    stages = [PipelineStage(nn.Sequential(nn.Linear(8, 8, bias=False)), place, v * p, torch.device("cpu"))
              for place in places]  # fmt: skip
    given: Any = stages if v > 1 else stages[0]
    schedule = getattr(schedules, f"Schedule{name}")(given, m, loss_fn=nn.functional.mse_loss)
    x, target, begun = torch.randn(2 * m, 8), torch.randn(2 * m, 8), 0.0
    for _ in range(2):
        dist.barrier()
        begun = time.perf_counter()
        schedule.step(*([x] if 0 in places else []), **({"target": target} if v * p - 1 in places else {}))
        dist.barrier()
    return time.perf_counter() - begun
