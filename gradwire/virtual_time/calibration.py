"""How long the phases of a step take, and a message: timed on this machine, or counted in floating-point operations."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils.flop_counter import FlopCounterMode

from gradwire.compression import Codec, Setting
from gradwire.core.launchers.devices import as_before, use_share_of_cores
from gradwire.core.records.atomic import write_atomically
from gradwire.core.records.errors import RunFailed, UsageError, one_line
from gradwire.core.records.machine import machine, usable_cores
from gradwire.core.records.recorder import Recorder
from gradwire.core.strategy.layout import Layout
from gradwire.core.strategy.tensors import layout_of, trained
from gradwire.core.strategy.updater import Updater
from gradwire.core.training.computing import Precision
from gradwire.core.transports.timing import now
from gradwire.core.workloads import models, tasks
from gradwire.core.workloads.data import Data
from gradwire.core.workloads.lookup import UserObject
from gradwire.options import Options
from gradwire.results import CALIBRATION
from gradwire.virtual_time.handling import Handling, handling_of, measure_handling

T = TypeVar("T")
_REPEATS = 15
_WARM_UP = 3
_OTHERS = 8_000_000  # numbers: more than caches hold
_LONGEST_S = 3.0  # of a calibration


def count_flops(options: Options, data: Data) -> dict[str, float]:
    """Return the floating-point operations of the forward and the backward pass of a step, as torch counts them."""
    x, y = data.fetch(part_of_a_step(options, data), dtype=options.torch_dtype)
    model = models.seeded(options.model, data, options.seed, options.torch_dtype, options.model_options)
    return flops_of(lambda: tasks.find(data.task)(model, x, y).loss)


def flops_of(compute: Callable[[], torch.Tensor]) -> dict[str, float]:
    """Return the floating-point operations of computing a loss, and of its backward pass, as torch counts them."""
    with FlopCounterMode(display=False) as forward:
        loss = compute()
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    return {"forward": forward.get_total_flops(), "backward": backward.get_total_flops()}


def calibrated(options: Options, data: Data) -> dict[str, float]:
    """Return the times of such a step on this machine, measured now or in an earlier run.

    A model, optimizer or task of the user's is timed now: it may have changed under the same name.
    """
    if any(isinstance(given, UserObject) for given in (options.model, options.optimizer, data.task)):
        return time_phases(options, data)
    samples = len(part_of_a_step(options, data))
    own = options.strategy.cost().code
    about = {
        "model": options.model, "input": list(data.input_shape), "classes": data.n_classes, "samples": samples,
        "dtype": options.dtype, "optimizer": options.optimizer, "options": list(options.optimizer_options),
        "momentum": options.momentum, "codec": options.codec.name, "codec_options": dataclasses.asdict(options.codec),
        "codec_scope": options.codec_scope, "own_codec": dataclasses.asdict(own) if own else None,
        "torch": torch.__version__, "cpu": machine()["cpu"],
        **({"model_options": options.model_options} if options.model_options else {}),
    }  # fmt: skip
    if data.task != tasks.CLASSIFICATION:  # whose calibrations may lack this entry
        about["task"] = data.task
    about |= {name: given for name in ("decay", "amp") if (given := getattr(options, name)) != getattr(Options(), name)}
    return _kept(options, about, lambda: time_phases(options, data))


def calibrated_handling(options: Options) -> Handling:
    """Return the cost of a message on this machine, measured now or in an earlier run. Raises RunFailed."""
    about = {"messages": "gloo", "torch": torch.__version__, "cpu": machine()["cpu"]}
    return handling_of(_kept(options, about, measure_handling))


def _kept(options: Options, about: dict[str, Any], measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Return the measurement kept in the run's folder under `about`; if there is none, measure and keep it."""
    path, key = Path(options.results_dir) / CALIBRATION, json.dumps(about)
    try:
        known: dict[str, dict[str, float]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if key not in known:
            known[key] = measure()
            path.parent.mkdir(parents=True, exist_ok=True)
            with write_atomically(path) as unfinished:
                unfinished.write_text(json.dumps(known, indent=1), encoding="utf-8")
    except OSError as error:
        raise RunFailed(f"cannot read or write {path}: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise UsageError(f"--results_dir: {path} holds no calibration ({one_line(error)}); delete it") from error
    found = known[key]
    if not isinstance(found, dict) or not all(type(value) is float and value >= 0 for value in found.values()):
        raise UsageError(f"--results_dir: {path} holds no calibration; delete it")
    return found


def time_phases(options: Options, data: Data) -> dict[str, float]:
    """Time each phase of a step on one core, alone; return the medians, in seconds.

    Before each of them but the backward pass, other memory takes the caches, as the messages between them do.
    """
    part, task = part_of_a_step(options, data), tasks.find(data.task)
    model = models.seeded(options.model, data, options.seed, options.torch_dtype, options.model_options)
    x = torch.nn.Parameter(torch.cat([p.detach().reshape(-1) for p in trained(model)]))
    zeros, layout, precision = torch.zeros_like(x), layout_of(model), Precision(options.amp, x.device)
    updater = Updater([x], options.make_optimizer(), 0.0, None, Recorder(), layout)
    taken: dict[str, list[float]] = {"data": [], "forward": [], "backward": [], "update": []}
    encoder, decoder = _codecs(options, layout, x)
    out, others = torch.empty_like(x), torch.zeros(_OTHERS)
    if encoder:
        taken |= {"encode": [], "decode": []}

    def timed(name: str, work: Callable[[], T]) -> T:
        if name != "backward":
            others.add_(1)
        t0 = now()
        result = work()
        taken[name].append(now() - t0)
        return result

    with as_before():
        use_share_of_cores(len(usable_cores()))
        begun = now()
        for _ in range(_WARM_UP + _REPEATS):
            inputs, labels = timed("data", lambda: data.fetch(part, "train", torch.device("cpu"), options.torch_dtype))
            with precision.autocast():
                loss = timed("forward", lambda: task(model, inputs, labels).loss)  # noqa: B023 - called here
            timed("backward", loss.backward)
            timed("update", lambda: updater.step(zeros, 1))
            if encoder and decoder:
                g = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in trained(model)])
                code = timed("encode", lambda: encoder.encode(g))  # noqa: B023 - called here
                timed("decode", lambda: decoder.decode(code.data, out))  # noqa: B023 - called here
            model.zero_grad()
            if now() - begun > _LONGEST_S and len(taken["data"]) > 1:
                break
    return {name: sorted(times)[len(times) // 2] for name, times in taken.items()}


def _codecs(options: Options, layout: Layout, like: torch.Tensor) -> tuple[Codec | None, Codec | None]:
    """Return the run's codec, or the strategy's own, as what encodes and what decodes."""
    cost, make = options.strategy.cost(), options.make_codec()
    if (own := cost.code) is not None:
        setting = Setting(cost.scope, momentum=options.momentum)
        ends = own, dataclasses.replace(own)
        for end, sends in zip(ends, (True, False), strict=True):
            end.start(layout, like, dataclasses.replace(setting, sends=sends))
        return ends
    return (make(layout, like, 0, True), make(layout, like, 0, False)) if make else (None, None)


def part_of_a_step(options: Options, data: Data) -> torch.Tensor:
    """Return the samples that a worker computes in one step: those of the first worker in the first."""
    return options.plan(data.n_train).part(1, 0, None if options.world_size == 1 else 0)
