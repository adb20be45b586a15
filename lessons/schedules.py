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
# A student's order stands below the schedule that it should be.
TORCH: dict[str, tuple[float, int]] = {
    "GPipe": (1, 1), "1F1B": (1, 1), "Interleaved1F1B": (1, V), "LoopedBFS": (1, V),
    "InterleavedZeroBubble": (1 / 3, V), "ZBVZeroBubble": (1 / 3, V), "DualPipeV": (2 / 3, V),
}  # fmt: skip
_YOURS = {"GPipe": "gpipe", "1F1B": "one_f_one_b", "Interleaved1F1B": "interleaved"}
_IS_V = ("ZBVZeroBubble", "DualPipeV")  # in which the first and the last stage are one rank's


def closed_form(name: str, p: int, m: int) -> float:
    """Return the time of a schedule of torch's, in c: that of a micro-batch on a rank."""
    bubble, v = TORCH[name]
    return (m * v + bubble * (p - 1)) / v


def formula(name: str) -> str:
    """Return the closed form of a schedule of torch's, as on paper."""
    bubble, v = TORCH[name]
    waits = {1: "p - 1", 1 / 3: "(p - 1) / 3", 2 / 3: "2 (p - 1) / 3"}[bubble]
    return f"(m + {waits}) c" if v == 1 else f"({v} m + {waits}) c / {v}"


def compare(report: Report, p: int = 4, m: int = 8) -> Shown | str:
    """Return a picture of the seven schedules and of the report's three: the time of a step, and their closed forms."""
    if not report.right:
        return "not measured: first have the check say that it is right"
    yours = {figure.name: figure.yours for figure in report.figures}
    rows: list[tuple[str, str, float]] = []  # the name of the bar, the schedule, and what was measured
    for name in TORCH:
        rows.append((f"torch, {name}", name, measure(name, p, m)))
        if own := _YOURS.get(name):
            rows.append((f"yours, {own}", name, yours[f"seconds, {own}"]))
    picture, axes = new_picture(
        xlabel="the time of a step in c, in which a rank computes one micro-batch",
        title=f"Pipelines of p = {p} ranks, m = {m} micro-batches",
        xlim=(0, 1.45 * (m + p)),
    )
    for whose, colour in (("torch", "#3b6ea5"), ("yours", "#5a9e6f")):
        places = [i for i, (bar, *_) in enumerate(rows) if bar.startswith(whose)]
        axes.barh(places, [rows[i][2] for i in places], color=colour, height=0.6, label=whose)
    right = [closed_form(name, p, m) for _, name, _ in rows]
    axes.plot(right, range(len(rows)), "|", color="#d9903d", markersize=12, markeredgewidth=3, label="the closed form")
    for i, ((_, name, measured), wanted) in enumerate(zip(rows, right, strict=True)):
        text = f"{measured:.2f} c; {formula(name)} = {wanted:.2f} c"
        axes.text(max(measured, wanted) + 0.2, i, text, va="center", fontsize=8)
    axes.axvline(m, color="#888888", linestyle=":", label="no bubble: m c")
    axes.set_yticks(range(len(rows)), [bar for bar, *_ in rows])
    axes.invert_yaxis()
    picture.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    lines = [f"{bar:28} {measured:6.3f} c; closed form {wanted:6.3f} c = {formula(name)}"
             for (bar, name, measured), wanted in zip(rows, right, strict=True)]  # fmt: skip
    return Shown("\n".join(lines), picture, "The time of a step by each schedule, yours below torch's.")


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
