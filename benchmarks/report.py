"""Write the Speed table into benchmarks/README.md, from the figures that `python -m benchmarks.run_all` has kept.

python -m benchmarks.report
"""

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.measured import KEPT
from experiments.tables import markdown
from records.atomic import write_atomically
from records.errors import UsageError, one_line
from training.command_line import guarded, parse

README = Path(__file__).resolve().parent / "README.md"
_PLACE = re.compile(r"(<!-- speed: [^>]*-->\n).*?(<!-- end of speed -->)", re.DOTALL)
Rows = list[dict[str, Any]]
Lines = list[tuple[str, str]]


@dataclass(frozen=True)
class Settings:
    """Whose figures."""

    results_dir: str = str(KEPT / "benchmarks")
    """The folder with the figures."""


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what each benchmark of TABLE has kept. Raises UsageError if there is nothing, or not of one machine."""
    kept: dict[str, dict[str, Any]] = {}
    for name in TABLE:
        path = folder / f"{name}.json"
        if path.exists():
            try:
                kept[name] = json.loads(path.read_text(encoding="utf-8"))
                kept[name]["rows"][0], kept[name]["machine"]["cpu"], kept[name]["git_commit"]
            except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
                raise UsageError(f"{path}: not the figures of a benchmark ({one_line(error)}); run it again") from error
    if not kept:
        raise UsageError(f"no figures in {folder}: make them with python -m benchmarks.run_all")
    # But for the kernel, which is updated now and then: "platform" says its version.
    if len({str(one["machine"] | {"platform": None}) for one in kept.values()}) > 1:
        raise UsageError(f"{folder}: not all figures are of one machine; make them with python -m benchmarks.run_all")
    return kept


def _times(rows: Rows, name: str = "ratio") -> str:
    """Return the ratios of rows, with the first and third quartile of the repeats."""
    return ", ".join("{:.3g} ({:.3g}-{:.3g})".format(row[name], *row[f"{name}_quartiles"]) for row in rows)


def _each(rows: Rows, name: str, form: str = "{}") -> str:
    return ", ".join(form.format(row[name]) for row in rows)


def _grouped(rows: Rows, *names: str) -> list[Rows]:
    """Return the rows that have the same values under `names` together."""
    groups: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return list(groups.values())


def _against(peer: str, whose: str, transport: str, rows: Rows) -> Lines:
    sizes = _each(rows, "numel", "{:,}")
    return [
        (f"ring against {whose} all-reduce, {rows[0]['world_size']} ranks, {sizes} elements",
         _times(rows, f"{peer}_ratio")),
        (f"ring on `{transport}`", _times(rows, f"over_{peer}_ratio")),
    ]  # fmt: skip


def _all_reduce(rows: Rows) -> Lines:
    us = [(name, f"{_each(rows, key, '{:.0f}')} µs") for name, key in (("the ring", "ring_us"),
          ("naive all-reduce", "naive_us"))]  # fmt: skip
    return [*_against("gloo", "gloo's", "process_group", rows), *us]


def _all_reduce_mpi(rows: Rows) -> Lines:
    return _against("mpi", "Open MPI's", "mpi", rows)


def _training(rows: Rows) -> Lines:
    return [
        (f"training the {row['model'].upper()}, {row['n_gpus']} processes: `{row['strategy']}` against `{row['peer']}`",
         _times([row]))
        for row in rows
    ]  # fmt: skip


def _parameter_server(rows: Rows) -> Lines:
    return [
        (f"{mine[0]['mode']} server against `{mine[0]['server']}`, {_each(mine, 'workers')} workers, 5.8M-parameter "
         "MLP", _times(mine))
        for mine in _grouped(rows, "mode", "server") if not mine[0]["server"].endswith("param_server")
    ]  # fmt: skip


def _startup(rows: Rows) -> Lines:
    lines, base = [], ""
    for row in rows:
        is_base = row["ratio_quartiles"] == [1, 1]  # it is compared to itself
        base = row["what"] if is_base else base
        text = "" if is_base else f"; {_times([row])} times that of `{base}`"
        lines.append((f"start: `{row['what']}`", f"{row['seconds']:.2f} s{text}"))
    return lines


def _memory(rows: Rows) -> Lines:
    first, last = rows[0], rows[-1]
    what = f"most memory of a rank after {last['steps']:,} steps, against {first['steps']:,}"
    return [(what, _each([last, first], "rank_mb", "{:.0f} MB"))]


def _virtual_time(rows: Rows) -> Lines:
    what = "virtual time: a ring all-reduce of {ranks} ranks, {messages:,} messages".format(**rows[-1])
    message = f"virtual time: a message of a ring of {_each(rows, 'ranks')} ranks"
    return [(message, f"{_each(rows, 'us_a_message', '{:.0f}')} µs"), (what, f"{rows[-1]['seconds']:.1f} s")]


def _link(rows: Rows) -> Lines:
    lines = []
    for mine in _grouped(rows, "transport", "gbit"):
        longest = max(row["expected_ms"] for row in mine)
        what = f"held back by {mine[0]['gbit']:g} Gbit/s, `{mine[0]['transport']}`, 10 to {longest:.0f} ms"
        ratios = [row["ratio"] for row in mine]
        lines.append((what, f"{min(ratios):.3f}-{max(ratios):.3f} times what the link takes"))
    return lines


def _prediction(rows: Rows) -> Lines:
    walls = [row for row in rows if row["wall"] == "yes"]
    ranks, mbit = (", ".join(map(str, sorted({row[name] for row in rows}))) for name in ("ranks", "mbit"))
    lines = []
    for side, name in (("virtual time", "error"), ("the closed form", "predicted_error")):
        errors = sorted(float(row[name].removesuffix(" %")) for row in walls)
        what = f"{ranks} ranks, {mbit} Mbit/s, {len(walls)} cases limited by the link"
        lines.append((f"a step by {side} against processes, {what}", f"{errors[0]:+.1f} to {errors[-1]:+.1f} %"))
    return lines


def _compression(rows: Rows) -> Lines:
    lengths = sorted({row["elements"] for row in rows})
    sizes, middle = ", ".join(f"{n / 1e6:.1f}" for n in lengths), lengths[len(lengths) // 2]
    lines = []
    for name, against in (
        ("selection.top", "the largest 1 %, exactly, against torch.topk"),
        ("selection.above", "about as many, by a threshold from a sample"),
        ("powersgd", "a step of powersgd, rank 2, against torch's hook"),
    ):
        if mine := [row for row in rows if row["what"].split(",")[0] == name and row["torch_ms"] != ""]:
            errors = ", ".join(f"{100 * row['error']:+.1f} %" for row in mine if row["error"] != "")
            more = f"; {errors} elements" if name == "selection.above" else ""
            lines.append((f"{against}, {sizes} million elements, one core", f"{_times(mine)}{more}"))
    codes = [
        (f"`{row['what']}`", "{encode_ms:.1f} ms, {decode_ms:.1f} ms, {percent:.3g} %, {error:.3g}".format(**row))
        for row in rows if row["elements"] == middle and row["encode_ms"] != ""
    ]  # fmt: skip
    return [*lines, (f"codecs, {middle / 1e6:.1f} million elements, one core", "encode, decode, size, error"), *codes]


def _loading(rows: Rows) -> Lines:
    what = "JPEG files of 500 pixels, cut to 224, one rank by itself"
    lines = [(what, f"{rows[0]['images_per_s']:.0f} images/s")]
    for mine in _grouped(rows[1:], "loader"):
        name = {"torch": "worker processes", "dali": "threads of DALI"}[mine[0]["loader"]]
        rates = _each(mine, "images_per_s", "{:.0f}")
        lines.append((f"the same with {_each(mine, 'workers')} {name}", f"{rates} images/s; {_times(mine)}"))
    return lines


def _overlap(rows: Rows) -> Lines:
    lines = []
    for mine in _grouped(rows, "model"):
        model, n_gpus = mine[0]["model"], mine[0]["n_gpus"]
        network = f"the {model.upper()}" if model != "deep" else "twelve equal layers"
        links = [one if isinstance(one := row["gbit"], str) else f"{one:g} Gbit/s" for row in mine]
        # Where the ring takes hardly longer than no communication, nothing can be said of what is hidden.
        hidden = (f"{100 * row['hidden']:.0f} % at {link}" for row, link in zip(mine, links, strict=True)
                  if link != "shared memory" and row["ring_ms"] > 1.1 * row["none_ms"])  # fmt: skip
        what = f"`overlapped_ring` against the ring, {network}, {n_gpus} ranks, {', '.join(links)}"
        lines.append((what, f"{_times(mine)}; communication hidden: {', '.join(hidden) or 'too little to tell'}"))
        lines += [
            (f"both against DDP, {network}", f"{_times([row], 'ddp_ring')}, {_times([row], 'ddp_overlapped')}")
            for row in mine if row["ddp_ring"] != ""
        ]  # fmt: skip
    return lines


def _hogwild(rows: Rows) -> Lines:
    return [
        (f"`hogwild` against torch's own, {mine[0]['model'].replace('_', ' ')}, {_each(mine, 'processes')} processes",
         _times(mine))
        for mine in _grouped(rows, "model")
    ]  # fmt: skip


TABLE: dict[str, Callable[[Rows], Lines]] = {
    "all_reduce_2": _all_reduce,
    "all_reduce_4": _all_reduce,
    "all_reduce_mpi_2": _all_reduce_mpi,
    "all_reduce_mpi_4": _all_reduce_mpi,
    "training": _training,
    "parameter_server": _parameter_server,
    "startup": _startup,
    "memory": _memory,
    "virtual_time": _virtual_time,
    "link": _link,
    "prediction": _prediction,
    "compression": _compression,
    "loading": _loading,
    "overlap": _overlap,
    "hogwild": _hogwild,
}
"""The lines of the table that are made of each kept file."""


def table(kept: dict[str, dict[str, Any]]) -> str:
    """Return the Speed table in Markdown, and below it on what and by which code it was measured."""
    lines: Sequence[tuple[str, str]] = [line for name in kept for line in TABLE[name](kept[name]["rows"])]
    machine = next(iter(kept.values()))["machine"]
    commits = ", ".join(sorted({str(one["git_commit"])[:10] for one in kept.values()}))
    about = f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}, Python {machine['python']}"
    below = "Medians of the repeats, with quartiles."
    return f"{markdown([('compared', 'times as fast, or as said'), *lines])}\n\n{below} {about}; code at {commits}."


def with_table(text: str, kept: dict[str, dict[str, Any]]) -> str:
    """Return a Markdown text with the Speed table between its two marks."""
    text, n = _PLACE.subn(lambda found: f"{found[1]}\n{table(kept)}\n\n{found[2]}", text)
    assert n == 1, "there is one place for the table"
    return text


def main(settings: Settings) -> None:
    """Write the table. Raises UsageError if there are no figures."""
    text = with_table(README.read_text(encoding="utf-8"), load(Path(settings.results_dir)))
    with write_atomically(README) as temporary:
        temporary.write_text(text, encoding="utf-8")
    print(f"table in {README}")


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(parse(sys.argv[1:], Settings, __doc__)), "nothing was written"))
