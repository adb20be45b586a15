"""Enter a strategy of your own into the scoreboard: a GPT on text, eight ranks, three clusters, virtual seconds.

gradwire scoreboard yourmodule:YourClass --trial    # two seeds, two fifths of each budget; nothing is kept

gradwire scoreboard yourmodule:YourClass            # ten seeds; docs/scoreboard.md has the rules

gradwire scoreboard --verify local_sgd              # make a kept entry again and compare its bits; without a name: all
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tqdm import tqdm
from tyro.conf import Positional, arg

from gradwire.command_line import parse, run_command
from gradwire.core.records.atomic import check_writable_by
from gradwire.core.records.errors import RunFailed, UsageError, unknown
from gradwire.scoreboard import board
from gradwire.scoreboard import table as scoreboard
from gradwire.scoreboard.entry import find


@dataclass(frozen=True, kw_only=True)
class ScoreboardOptions:
    """What is entered."""

    entry: Annotated[str | None, Positional, arg(metavar="ENTRY")] = None
    """yourmodule:YourClass; with --verify the name of a kept entry, or nothing: all."""
    verify: bool = False
    """Make what is kept again, and compare its bits."""
    trial: bool = False
    """Only see that it runs: two seeds, two fifths of each budget. Nothing is kept."""
    results_dir: str = "results/scoreboard"
    """Where entries are kept."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code: 1 if an entry is refused, or does not come out again."""
    given = sys.argv[1:] if arguments is None else list(arguments)

    def work() -> None:
        options = parse(given, ScoreboardOptions, __doc__ or "")
        (_verify if options.verify else _enter)(options)

    return run_command(work)


def _enter(options: ScoreboardOptions) -> None:
    if options.entry is None:
        raise UsageError("name the entry, such as yourmodule:YourClass, or give --verify")
    if ":" not in options.entry:
        raise UsageError(
            f"{options.entry}: must be yourmodule:YourClass; python -m benchmarks scoreboard has the others"
        )
    folder, entry = Path(options.results_dir), find(options.entry)
    kept = {name: facts for name, facts in scoreboard.load(folder).items() if facts["game"] == board.described()}
    if not options.trial:
        check_writable_by("results_dir", folder)
    with board.workers() as pool:
        facts, page = board.make(entry, pool, board.TRIAL if options.trial else board.RECORD)
    print(scoreboard.compared(facts, None if options.trial else kept))
    if not options.trial:
        print("kept      " + ", ".join(map(str, board.keep(facts, page, folder))))


def _verify(options: ScoreboardOptions) -> None:
    if options.trial:
        raise UsageError("--trial: --verify makes the runs that are kept; leave one out")
    kept = scoreboard.load(Path(options.results_dir))
    if not kept:
        raise UsageError(f"--results_dir {options.results_dir}: holds no entry; enter one, or give another folder")
    if options.entry is not None and options.entry not in kept:
        raise unknown("--verify", options.entry, kept)
    failed = []
    chosen = [options.entry] if options.entry else list(kept)
    with board.workers() as pool:
        for name in tqdm(chosen, unit="entry", leave=False, disable=len(chosen) == 1):
            try:
                tqdm.write(board.verify(find(name), kept[name], pool))
            except (RunFailed, UsageError) as error:
                tqdm.write(str(error))
                failed.append(name)
    if failed:
        raise RunFailed(f"{', '.join(failed)}: did not come out as it is kept")
