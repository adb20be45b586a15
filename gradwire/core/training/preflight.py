"""What is checked before any process is started, so that a run that cannot end well does not begin."""

import dataclasses
import os
from pathlib import Path

import torch
from torch import nn

from gradwire.checkpoints import files as checkpoint_files
from gradwire.checkpoints import replay
from gradwire.checkpoints.folder import SCORES, latest, listed
from gradwire.checkpoints.model_files import check_format
from gradwire.core.launchers import Launcher, find_launcher
from gradwire.core.records.atomic import check_writable_by
from gradwire.core.records.errors import UsageError, as_usage_error, one_line
from gradwire.core.records.options import MAY_CHANGE
from gradwire.core.records.recorder import Recorder
from gradwire.core.records.unfinished import check_name
from gradwire.core.strategy.descent import Descent
from gradwire.core.strategy.factories import is_flat
from gradwire.core.strategy.replica import layout_of, trained
from gradwire.core.strategy.run_size import RunSize
from gradwire.core.training.names import check_recorded, naming
from gradwire.core.training.options import TRAINED, Options
from gradwire.core.transports.memory import remove_segments
from gradwire.core.workloads import datasets, models, tasks
from gradwire.core.workloads.batches import BatchPlan
from gradwire.core.workloads.data import Data
from gradwire.core.workloads.loading import LOADERS
from gradwire.pictures.scalars import check_tensorboard


def prepare(options: Options, launcher: Launcher | None = None) -> Data:
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
    held_back, replayed = options.link is not None, options.replay is not None
    workers, optimizer = roles.count("worker"), options.make_optimizer()
    size = RunSize(len(roles), workers, plan.n_steps, launcher.shared_memory, replayed, held_back, optimizer)
    options.strategy.check(size)
    if options.link and launcher.processes:
        _check_link(options, sum(p.nbytes for p in trained(model)))
    if options.hashes and not options.strategy.traits.has_x:
        raise UsageError(f"--hashes: no rank of {options.strategy.name} has all of x while it trains; leave it out")
    if options.accumulate > 1 and not options.strategy.traits.has_x:
        _check_pieces(options, plan)
    if options.resume:
        _check_resume(options, options.resume, sum(p.numel() for p in trained(model)))
    if options.replay:
        _check_replay(options, options.replay)
    LOADERS[options.loader].check(data)
    if launcher.shared_memory:
        _share(data)
    if launcher.is_first:
        _check_places(options)
    return data


def _check_link(options: Options, nbytes: int) -> None:
    """Check that a model of so many bytes passes the link before a rank's wait for it times out."""
    link, others = options.link, options.world_size - 1
    assert link is not None
    seconds = others * link.seconds(nbytes) + link.latency
    if others and seconds > options.timeout:
        raise UsageError(
            f"--timeout {options.timeout:g}: on this link the initial parameters reach the last rank after "
            f"{seconds:.0f} s, longer than a rank waits; give a larger one, or more --bandwidth"
        )


def _check_smallest_batch(options: Options, task: tasks.Task, model: nn.Module, data: Data) -> None:
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


def _check_pieces(options: Options, plan: BatchPlan) -> None:
    """Check that all ranks make as many passes, in which they gather x together."""
    parts = [plan.bounds(plan.n_steps - 1, worker) for worker in range(plan.workers)]
    if len({min(options.accumulate, stop - start) for start, stop in parts}) > 1:
        raise UsageError(
            f"--accumulate {options.accumulate}: the last batch leaves a worker fewer samples than that, and with "
            f"{options.strategy.name} all need as many pieces; change --batch_size, --train_size or --accumulate"
        )


def _check_optimizer(options: Options, model: nn.Module) -> None:
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


def _check_resume(options: Options, path: str, n_parameters: int) -> None:
    """Check that the run, of a model so large, can continue from its checkpoint with these options."""
    checkpoint = latest(path)
    with naming("--resume"):
        run = checkpoint_files.load_run(checkpoint)
        made_with = check_recorded(run["options"], checkpoint / "run.json", type(options.strategy), type(options.codec))
    if options.strategy.traits.reshards and made_with.get("global_batch_size") is not None:
        made_with["n_gpus"] = options.n_gpus  # the batches are the same
    for option, name, value in options.all_fields():
        if MAY_CHANGE not in option.metadata and made_with.get(name, option.default) != value:
            raise UsageError(
                f"--{name} {value}: {checkpoint} was made with {made_with.get(name)}, which a run that continues from "
                "it cannot change"
            )
    if run["epoch"] > options.epochs:
        raise UsageError(f"--epochs {options.epochs}: {checkpoint} is of epoch {run['epoch']}; give at least as many")
    with naming("--resume"):
        for rank in run["ranks"]:
            state = checkpoint_files.load_rank(checkpoint, rank)
            if state["strategy"]["x"].shape != (n_parameters,):
                raise UsageError(
                    f"{checkpoint}: rank-{rank}.pt does not hold the {n_parameters} parameters of the model"
                )


def _check_places(options: Options) -> None:
    """Check that everything can be written where it is to be."""
    if options.checkpoint_every:
        _check_folder(options.checkpoint_folder, options.resume)
    if options.save is not None:
        if Path(options.save).is_dir():
            raise UsageError(f"--save {options.save}: is a folder; give the name of a file")
        check_format(f"--save {options.save}")
        check_writable_by("save", Path(options.save).parent)
    if options.tensorboard is not None:
        check_tensorboard(options.tensorboard)
        check_writable_by("tensorboard", options.tensorboard)
    check_writable_by("results_dir", options.results_dir)
    if options.checkpoint_every:
        check_writable_by("checkpoint_dir", options.checkpoint_folder)


def _check_folder(folder: Path, resume: str | None) -> None:
    """Check that what is in the folder of the run's checkpoints is of this run, and older."""
    found = listed(folder)
    if resume:
        checkpoint = latest(resume)
        if found and checkpoint.resolve().parent == folder.resolve():
            if checkpoint_files.load_run(found[-1])["step"] > checkpoint_files.load_run(checkpoint)["step"]:
                raise UsageError(
                    f"--resume {checkpoint}: there are later ones, up to {found[-1].name}, that the run would write "
                    "again; delete them, or give another --checkpoint_dir"
                )
            return
    if found or (folder / SCORES).exists():
        name = found[-1].name if found else SCORES
        cure = f", or continue that run by --resume {folder}" if found else ", or delete it"
        raise UsageError(f"--checkpoint_dir {folder}: holds {name} of another run; give another folder{cure}")


def _check_replay(options: Options, path: str) -> None:
    """Check that these options can repeat the run."""
    run = replay.load(path)
    with naming("--replay"):
        recorded = check_recorded(run.options, path, type(options.strategy), type(options.codec))
    choice = f" and {run.repeat}" if run.repeat else ""
    refused = {
        f"was synchronous ({options.strategy.name}): run it again with its options{choice}, nothing else decides its "
        "result":
            not any(run.arrivals),
        "continued from a checkpoint": recorded.get("resume") is not None,
        "has lost workers, and when they died cannot be repeated": bool(run.deaths),
        "was made on a GPU, whose kernels need not give the same bits twice": recorded.get("device") != "cpu",
    }  # fmt: skip
    for why, holds in refused.items():
        if holds:
            raise UsageError(f"--replay {path}: that run {why}")
    for option, name, value in options.all_fields():
        was = recorded.get(name, value)
        if option.metadata.get(MAY_CHANGE) != "always" and value != was:
            raise UsageError(f"--{name} {value}: that run had {was}, and a replay has the same; leave it out")
