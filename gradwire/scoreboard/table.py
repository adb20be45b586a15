"""The files of the scoreboard: a JSON of each entry, from which records and the table of the page are made."""

import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from gradwire.core.records.errors import as_usage_error

P = 0.01
"""A record must beat every other entry with a smaller p than this."""
Facts = Mapping[str, Any]
_OF_SEEDS = {"scores": (int, float), "hashes": (str,), "seconds": (int, float), "bytes": (int,)}


def load(folder: Path) -> dict[str, Facts]:
    """Return the record of each entry, by its name. Raises UsageError."""
    found: dict[str, Facts] = {}
    seeds = set()
    for path in sorted(folder.glob("*.json")):
        kinds = (OSError, ValueError, RecursionError)
        with as_usage_error(f"{path}: is no entry of the scoreboard", "; remove it, or restore it from git", kinds):
            facts = json.loads(path.read_text(encoding="utf-8"))
            wrong = _wrong(facts)
            seeds |= set() if wrong else {len(of["scores"]) for of in facts["clusters"].values()}
            if wrong or len(seeds) > 1:
                raise ValueError(wrong or "other entries have another number of seeds")
            found[facts["entry"]] = facts
    return found


def _wrong(facts: Any) -> str:
    """Return the fault in the content of an entry's file; "": it has none."""
    types = {"entry": str, "file": str, "lines": int, "game": dict, "machine": dict, "clusters": dict}
    if type(facts) is not dict or any(type(facts.get(name)) is not kind for name, kind in types.items()):
        return f"must have {', '.join(types)}"
    places = facts["game"].get("clusters")
    if type(facts["machine"].get("cpu")) is not str or type(places) is not dict or not places:
        return "must have the cpu of a machine, and the clusters of a game"
    if facts["clusters"].keys() != places.keys():
        return f"must have the clusters {', '.join(places)}"
    for place, of in facts["clusters"].items():
        if type(of) is not dict or type(of.get("options")) is not str or type(of.get("steps")) is not int:
            return f"{place} must have options and steps"
        sizes = {len(column) if isinstance(column := of.get(name), list) else 0 for name in _OF_SEEDS}
        if len(sizes) > 1 or sizes <= {0, 1}:
            return f"{place} must have {', '.join(_OF_SEEDS)} of two seeds or more"
        for name, kinds in _OF_SEEDS.items():
            if not all(type(value) in kinds and (kinds == (str,) or math.isfinite(value)) for value in of[name]):
                return f"{place} has a value in {name} that is none"
    return ""


def p_value(new: Sequence[float], old: Sequence[float]) -> float:
    """Return the p of "the new scores are no lower", of an exact permutation test paired by seed."""
    differences = [b - a for a, b in zip(new, old, strict=True)]
    flips = itertools.product((1, -1), repeat=len(differences))
    least = sum(differences) - 1e-12
    as_large = [sum(sign * d for sign, d in zip(signs, differences, strict=True)) >= least for signs in flips]
    return fmean(as_large)


def rival(facts: Facts, entries: Mapping[str, Facts], place: str) -> tuple[float, str] | None:
    """Return the p against the entry that is hardest to beat on a cluster, and its name; None if there is no other."""
    found = [
        (p_value(scores(facts, place), scores(other, place)), -fmean(scores(other, place)), name)
        for name, other in entries.items()
        if name != facts["entry"]
    ]
    return (hardest[0], hardest[2]) if (hardest := max(found, default=None)) else None


def scores(facts: Facts, place: str) -> list[float]:
    """Return the scores of an entry on a cluster, by seed."""
    found: list[float] = facts["clusters"][place]["scores"]
    return found


def shown(values: Sequence[float]) -> str:
    """Return mean and standard deviation."""
    return f"{fmean(values):.3f}±{stdev(values):.3f}"


def compared(facts: Facts, entries: Mapping[str, Facts] | None) -> str:
    """Return the result of an entry, cluster by cluster, beside the others; None: it is a trial."""
    lines = ["cluster   steps   bits per character   MB      record"]
    for place, of in facts["clusters"].items():
        if entries is None:
            says = "a trial is not compared"
        elif found := rival(facts, entries, place):
            p, name = found
            verdict = "a new record" if p < P else f"no new record, which needs p < {P}"
            says = f"{shown(scores(entries[name], place))} ({name}): p = {p:.4f}, {verdict}"
        else:
            says = "none before: a new record"
        megabytes = fmean(of["bytes"]) / 1e6
        lines.append(f"{place:9} {of['steps']:5}   {shown(of['scores']):18}   {megabytes:<6.3g}  {says}")
    return "\n".join(lines)


def table(folder: Path, docs: Path) -> str:
    """Return the table of all entries for a page in `docs`, by their scores on the first cluster, records in bold."""
    entries = load(folder)
    if not entries:
        return "There is no entry yet."
    places = list(next(iter(entries.values()))["clusters"])
    bests = {place: min(entries.values(), key=lambda facts: fmean(scores(facts, place))) for place in places}
    columns = ["entry", "lines", *places, *(f"MB, {place}" for place in places)]
    rows = [columns, ["---"] * len(columns)]
    for name, facts in sorted(entries.items(), key=lambda pair: fmean(scores(pair[1], places[0]))):
        paths = docs.parent / facts["file"], folder / file_name(name, "html")
        file, page = (os.path.relpath(path, docs) for path in paths)
        cells = [shown(scores(facts, place)) for place in places]
        for i, place in enumerate(places):
            if p_value(scores(bests[place], place), scores(facts, place)) >= P:
                cells[i] = f"**{cells[i]}**"
        megabytes = [f"{fmean(facts['clusters'][place]['bytes']) / 1e6:.3g}" for place in places]
        rows.append([f"[`{name}`]({page})", f"[{facts['lines']}]({file})", *cells, *megabytes])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def file_name(entry: str, kind: str) -> str:
    """Return the name of the file that is kept of an entry."""
    return f"{entry.replace(':', '.')}.{kind}"
