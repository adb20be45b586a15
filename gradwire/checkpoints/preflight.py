"""The checks of checkpoints, saved models and replays before any process is started."""

from pathlib import Path

from gradwire.checkpoints import files, replay
from gradwire.checkpoints.folder import SCORES, latest, listed
from gradwire.checkpoints.model_files import check_format
from gradwire.checkpoints.wing import CheckpointOptions
from gradwire.core.records.atomic import check_writable_by
from gradwire.core.records.errors import UsageError
from gradwire.core.records.options import MAY_CHANGE
from gradwire.recorded import check_recorded, naming


def check_resume(options: CheckpointOptions, path: str, n_parameters: int) -> None:
    """Check that the run, of a model so large, can continue from its checkpoint with these options."""
    checkpoint = latest(path)
    with naming("--resume"):
        run = files.load_run(checkpoint)
        made_with = check_recorded(run["options"], checkpoint / "run.json", options.chosen)
    if getattr(options.strategy, "reshards", False) and made_with.get("global_batch_size") is not None:
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
            state = files.load_rank(checkpoint, rank)
            if state["strategy"]["x"].shape != (n_parameters,):
                raise UsageError(
                    f"{checkpoint}: rank-{rank}.pt does not hold the {n_parameters} parameters of the model"
                )


def check_places(options: CheckpointOptions) -> None:
    """Check that everything can be written where it is to be."""
    if options.checkpoint_every:
        _check_folder(options.checkpoint_folder, options.resume)
    if options.save is not None:
        if Path(options.save).is_dir():
            raise UsageError(f"--save {options.save}: is a folder; give the name of a file")
        check_format(f"--save {options.save}")
        check_writable_by("save", Path(options.save).parent)
    if options.checkpoint_every:
        check_writable_by("checkpoint_dir", options.checkpoint_folder)


def _check_folder(folder: Path, resume: str | None) -> None:
    """Check that the files in the folder of checkpoints belong to this run, and are older."""
    found = listed(folder)
    if resume:
        checkpoint = latest(resume)
        if found and checkpoint.resolve().parent == folder.resolve():
            if files.load_run(found[-1])["step"] > files.load_run(checkpoint)["step"]:
                raise UsageError(
                    f"--resume {checkpoint}: there are later ones, up to {found[-1].name}, that the run would write "
                    "again; delete them, or give another --checkpoint_dir"
                )
            return
    if found or (folder / SCORES).exists():
        name = found[-1].name if found else SCORES
        cure = f", or continue that run by --resume {folder}" if found else ", or delete it"
        raise UsageError(f"--checkpoint_dir {folder}: holds {name} of another run; give another folder{cure}")


def check_replay(options: CheckpointOptions, path: str) -> None:
    """Check that these options can repeat the run."""
    run = replay.load(path)
    with naming("--replay"):
        recorded = check_recorded(run.options, path, options.chosen)
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
