"""The command `gradwire`: its subcommands and their modules. Loads nothing large."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - older ones get one line
    sys.exit("error: Python %d.%d is too old; this needs Python 3.11 or later" % sys.version_info[:2])  # noqa: UP031

import os
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

_ROOT = Path(__file__).resolve().parent.parent
_NOTHING = "nothing was written"

COMMANDS = {
    "Run": {
        "train": ("gradwire.command_line", "train one network on several processes of this machine"),
        "simulate": ("gradwire.virtual_time.simulate", "the same on a virtual cluster; with --script your own script"),
        "explore": ("gradwire.every_order.explore", "a small case in every order of its messages"),
        "check": ("gradwire.checking.command", "name what is silently wrong in your own torch.distributed script"),
        "evaluate": ("gradwire.checkpoints.evaluate", "score the checkpoints of a run as they appear"),
        "scoreboard": ("gradwire.scoreboard.command", "enter a strategy of yours into the scoreboard"),
    },
    "Look at runs": {
        "page": ("gradwire.pictures.page", "write a page that steps through a run"),
        "compare": ("gradwire.pictures.compare", "print runs side by side"),
        "plot": ("gradwire.pictures.plot", "draw accuracy and loss of runs"),
        "timeline": ("gradwire.pictures.timeline", "draw who did what when"),
        "staleness": ("gradwire.pictures.staleness", "show how old the gradients were"),
        "why": ("gradwire.diagnosis.why", "tell where and why two runs differ"),
    },
    "Write your own": {
        "new": ("gradwire.new", "write the file of a strategy or codec, and its test"),
    },
    "Models and data": {
        "generate": ("gradwire.language.generate", "let a saved language model continue a text"),
        "sample_images": ("gradwire.images.sample_images", "write a small folder of images to train on"),
    },
    "PyTorch's own, with the same options": {
        "param_server_builtin": ("gradwire.baselines.param_server_builtin", "torch.nn.DataParallel"),
        "ring_all_reduce_builtin": ("gradwire.baselines.ring_all_reduce_builtin", "DistributedDataParallel"),
        "fully_sharded_builtin": ("gradwire.baselines.fully_sharded_builtin", "fully_shard (FSDP2)"),
    },
    "The course": {
        "check_lab": ("lessons.check", "check what a student wrote for a lab"),
        "grade": ("lessons.grade", "grade a folder of submissions"),
    },
}  # fmt: skip
"""The module of each command, which has a function `main(arguments)`, and its description."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `gradwire COMMAND ...`; return the exit code: 2 after bad usage, 128 + signal after an interrupt."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if not given or given[0] in ("-h", "--help", "help"):
        return _print(help_text()) if given else _refuse("name a command, such as gradwire train; see gradwire --help")
    if given[0] == "--version":
        from gradwire import __version__

        return _print(f"gradwire {__version__}")
    name, rest = given[0], given[1:]
    modules = {command: module for group in COMMANDS.values() for command, (module, _) in group.items()}
    if name not in modules:
        from gradwire.core.records.errors import nearest

        return _refuse(f"gradwire {name}: there is no such command; {nearest(name, list(modules))}see gradwire --help")
    sys.path[:] = path_from(os.getcwd())
    if modules[name].startswith("lessons.") and find_spec("lessons") is None:
        return _refuse(f"gradwire {name}: the course is not installed; run this in a clone of the repository")
    if arguments is None:  # in the usage line of its --help
        sys.argv[0] = f"{'python -m ' if Path(sys.argv[0]).stem == '__main__' else ''}gradwire {name}"
    return run(name, modules[name], rest)


def run(name: str, module: str, arguments: Sequence[str]) -> int:
    """Import the module of a command and call its `main`. An interrupt while it loads ends the process in one line."""
    from gradwire.ending import end_while_loading

    end_while_loading("the scores so far are written" if name == "evaluate" else _NOTHING)
    if name == "train":
        code = _before_training(arguments)
        if code is not None:
            return code
    result: int = import_module(module).main(arguments)
    return result


def path_from(folder: str) -> list[str]:
    """Return sys.path with this folder of the user's first and, if this package is in a clone, the clone's folder last.

    The clone has scripts and folders with names that users take too. It stays before another copy of this package,
    which new processes would load otherwise.
    """
    last = [str(_ROOT)] if (_ROOT / "pyproject.toml").exists() else []
    moved = [Path(path).resolve() for path in (folder, *last)]
    others = [path for path in sys.path if path and Path(path).resolve() not in moved]
    copies = [at for at, path in enumerate(others) if (Path(path) / "gradwire" / "command.py").exists()]
    at = min(copies, default=len(others))
    return [folder, *others[:at], *last, *others[at:]]


def help_text() -> str:
    """Return what `gradwire --help` prints."""
    lines = ["usage: gradwire COMMAND ...   (or python -m gradwire COMMAND ...)", ""]
    for group, commands in COMMANDS.items():
        lines += [f"{group}:", *(f"  {name:<25}{text}" for name, (_, text) in commands.items()), ""]
    lines += [
        "gradwire train --strategy param_server --n_gpus 4     a first run",
        "gradwire COMMAND --help                               the options of a command",
    ]
    return "\n".join(lines)


def _print(text: str) -> int:
    from gradwire.ending import exit_code_of, unread_output_is_no_error

    with unread_output_is_no_error() as output:
        print(text)
    return exit_code_of(output, 0)


def _refuse(text: str) -> int:
    print(f"error: {text}", file=sys.stderr)
    return 2


def refuse_former(former: str, new: str) -> NoReturn:
    """End a command that has another name now."""
    sys.exit(_refuse(f"{former} is now {new}"))


def _before_training(arguments: Sequence[str]) -> int | None:
    """Refuse typos and print `--list` without loading torch; then have the fork server load it meanwhile."""
    from gradwire.core.launchers import preload, warm_up
    from gradwire.core.launchers.sockets import remove_folder
    from gradwire.core.records.errors import RunFailed, UsageError
    from gradwire.core.records.interrupts import interrupts_wait
    from gradwire.early_arguments import check_names, listed
    from gradwire.ending import end_while_loading, run_command

    end_while_loading(_NOTHING, remove_folder)
    try:
        check_names(arguments)
        if list(arguments) == ["--list"] and listed():
            return run_command(lambda: print(listed()))
        if {"-h", "--help"} & set(arguments):
            return None  # no rank is started
        preload("gradwire.preload")
        with interrupts_wait():
            warm_up()  # first: the fork server loads torch while this process does
    except (UsageError, RunFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else error.exit_code
    return None
