"""What is checked before any process is started, so that a run that cannot end well does not begin."""

import dataclasses
import os

import torch
from torch import nn

from gradwire.core.launchers import Launcher, find_launcher
from gradwire.core.records.atomic import check_writable_by
from gradwire.core.records.errors import UsageError, as_usage_error, one_line
from gradwire.core.records.recorder import Recorder
from gradwire.core.records.unfinished import check_name
from gradwire.core.strategy.descent import Descent
from gradwire.core.strategy.factories import is_flat
from gradwire.core.strategy.replica import layout_of
from gradwire.core.strategy.run_size import RunSize, check_strategy
from gradwire.core.training.options import TRAINED, CoreOptions
from gradwire.core.transports.memory import remove_segments
from gradwire.core.workloads import datasets, models, tasks
from gradwire.core.workloads.batches import BatchPlan
from gradwire.core.workloads.data import Data
from gradwire.core.workloads.loading import LOADERS


def prepare(options: CoreOptions, launcher: Launcher | None = None) -> Data:
    """Find whatever is wrong before any process is started; return the data. Raises UsageError."""
    launcher = launcher or find_launcher(options.launcher, options.scheduler)
    if launcher.is_first:
        assert options.run_name is not None, "only of resolved options"
        check_name(options.results_dir, options.run_name)
    if options.dtype not in TRAINED:
        raise UsageError(f"--dtype {options.dtype}: of steps that are only timed; to train in it, give --amp bf16")
    data = datasets.load(options, options.seed)
    with torch.random.fork_rng(devices=[]):
        model = models.seeded(options.model, data, options.seed, options.torch_dtype, options.model_options)
        task = tasks.find(data.task)
        if data.task == tasks.CLASSIFICATION:
            models.check(options.model, model, data.input_shape, data.n_classes)
        else:
            models.check_layers(options.model, model)
            data = dataclasses.replace(
                data, n_per_sample=tasks.check(task, model, options.model, data, options.torch_dtype)
            )
        _check_smallest_batch(options, task, model, data)
        _check_optimizer(options, model)
    plan, roles = options.plan(data.n_train), options.roles
    size = RunSize(
        len(roles), roles.count("worker"), plan.n_steps, launcher.shared_memory, replayed=options.is_replay,
        held_back=options.link is not None, optimizer=options.make_optimizer(),
    )  # fmt: skip
    check_strategy(options.strategy, size)
    if options.accumulate > 1 and not options.strategy.traits.has_x:
        _check_pieces(options, plan)
    for wing in options.wings:
        wing.check(options, launcher, data, model)
    LOADERS[options.loader].check(data)
    if launcher.shared_memory:
        _share(data)
    if launcher.is_first:
        check_writable_by("results_dir", options.results_dir)
    return data


def _check_smallest_batch(options: CoreOptions, task: tasks.Task, model: nn.Module, data: Data) -> None:
    """Check that the model can train on the smallest piece of a batch: BatchNorm may need two samples."""
    plan = options.plan(data.n_train)
    start, stop = plan.bounds(plan.n_steps - 1, None if options.world_size == 1 else plan.workers - 1)
    smallest = (stop - start) // min(options.accumulate, stop - start)
    if smallest == 1:
        with as_usage_error(
            f"--batch_size: the last batch leaves a worker one sample, on which --model {options.model} cannot train",
            "; change --batch_size, --train_size or --accumulate",
        ):
            task(model.train(), *data.fetch(torch.zeros(1, dtype=torch.int64), dtype=options.torch_dtype))


def _check_pieces(options: CoreOptions, plan: BatchPlan) -> None:
    """Check that all ranks make as many passes, in which they gather x together."""
    parts = [plan.bounds(plan.n_steps - 1, worker) for worker in range(plan.workers)]
    if len({min(options.accumulate, stop - start) for start, stop in parts}) > 1:
        raise UsageError(
            f"--accumulate {options.accumulate}: the last batch leaves a worker fewer samples than that, and with "
            f"{options.strategy.name} all need as many pieces; change --batch_size, --train_size or --accumulate"
        )


def _check_optimizer(options: CoreOptions, model: nn.Module) -> None:
    """Check that an optimizer that sees the tensors of the model takes a step with them."""
    make, layout = options.make_optimizer(), layout_of(model)
    if is_flat(make):
        return
    x = torch.zeros(layout.n, dtype=options.torch_dtype)
    try:
        Descent([x], make, 0.0, None, Recorder(), layout).step(torch.zeros_like(x), 1)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"--optimizer {options.optimizer}: takes no step with the parameters of --model {options.model} "
            f"({one_line(error)}); change its options, or take another"
        ) from error


def _share(data: Data) -> None:
    """Put the data where all ranks can read it."""
    cure = "; make locks and open files in __getitem__"
    with as_usage_error(f"--dataset {data.name}: cannot be given to other processes", cure):
        try:
            data.train.share_memory_()
            data.test.share_memory_()
            return
        except RuntimeError:
            remove_segments(os.getpid())
    raise UsageError(
        f"--dataset {data.name}: no shared memory left for it (see df /dev/shm; in Docker, --shm-size 2g); "
        "take a smaller --train_size"
    )
