"""What the scoreboard keeps: a JSON of each entry, from which records and the table of the page are made."""

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from records.errors import UsageError

P = 0.01
"""A record must beat the one before with a smaller p than this."""
Facts = Mapping[str, Any]


def load(folder: Path) -> dict[str, Facts]:
    """Return what is kept of each entry, by its name. Raises UsageError."""
    found: dict[str, Facts] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            found[facts["entry"]] = facts
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path}: is no entry of the scoreboard; remove it, or restore it from git") from error
    return found


def p_value(new: Sequence[float], old: Sequence[float]) -> float:
    """Return the p of "the new scores are no lower", paired by seed: of the exact test of all signs of differences."""
    differences = [b - a for a, b in zip(new, old, strict=True)]
    flips = itertools.product((1, -1), repeat=len(differences))
    least = sum(differences) - 1e-12
    as_large = [sum(sign * d for sign, d in zip(signs, differences, strict=True)) >= least for signs in flips]
    return fmean(as_large)


def best(entries: Mapping[str, Facts], place: str, but: str = "") -> Facts | None:
    """Return the entry with the lowest mean on a cluster, `but` one; None if there is no other."""
    others = [facts for name, facts in entries.items() if name != but and place in facts["clusters"]]
    return min(others, key=lambda facts: fmean(scores(facts, place)), default=None)


def scores(facts: Facts, place: str) -> list[float]:
    """Return the scores of an entry on a cluster, by seed."""
    found: list[float] = facts["clusters"][place]["scores"]
    return found


def shown(values: Sequence[float]) -> str:
    """Return mean and standard deviation."""
    return f"{fmean(values):.3f}±{stdev(values):.3f}"


def compared(facts: Facts, entries: Mapping[str, Facts]) -> str:
    """Return the result of an entry, cluster by cluster, beside the record of the others."""
    lines = ["cluster   steps   bits per character   MB      record"]
    for place, of in facts["clusters"].items():
        record, says = best(entries, place, facts["entry"]), "none before: a new record"
        if record:
            old = scores(record, place)
            if len(old) == len(of["scores"]):
                p = p_value(of["scores"], old)
                verdict = "a new record" if p < P else f"no new record, which needs p < {P}"
                says = f"{shown(old)} ({record['entry']}): p = {p:.4f}, {verdict}"
            else:
                says = f"{shown(old)} ({record['entry']}): a trial is not compared"
        megabytes = fmean(of["bytes"]) / 1e6
        lines.append(f"{place:9} {of['steps']:5}   {shown(of['scores']):18}   {megabytes:<6.3g}  {says}")
    return "\n".join(lines)


def table(folder: Path, docs: Path) -> str:
    """Return the table of all entries for a page in `docs`, by their scores on the first cluster, the best in bold."""
    entries = load(folder)
    if not entries:
        return "There is no entry yet."
    places = list(next(iter(entries.values()))["clusters"])
    bests = [min(fmean(scores(facts, place)) for facts in entries.values()) for place in places]
    rows = ["| entry, lines | " + " | ".join(places) + " | MB |", "|---" * (len(places) + 2) + "|"]
    for name, facts in sorted(entries.items(), key=lambda pair: fmean(scores(pair[1], places[0]))):
        found = [scores(facts, place) for place in places]
        cells = [
            f"**{shown(one)}**" if fmean(one) == best else shown(one) for one, best in zip(found, bests, strict=True)
        ]
        megabytes = "/".join(f"{fmean(facts['clusters'][place]['bytes']) / 1e6:.3g}" for place in places)
        file, page = docs.parent / facts["file"], folder / file_name(name, "html")
        links = [os.path.relpath(path, docs) for path in (file, page)]
        rows.append(f"| [`{name}`]({links[0]}),{facts['lines']} | {' | '.join(cells)} | [{megabytes}]({links[1]}) |")
    return "\n".join(rows)


def file_name(entry: str, kind: str) -> str:
    """Return the name of the file that is kept of an entry."""
    return f"{entry.replace(':', '.')}.{kind}"
