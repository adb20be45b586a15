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
Show = Callable[[Rows], Lines]


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


@dataclass(frozen=True)
class Column:
    """What several rows have under a name; as text, one after the other."""

    rows: Rows
    name: str

    def __format__(self, form: str) -> str:
        """As usual; but "times" is a ratio with its quartiles."""
        values = [row[self.name] for row in self.rows]
        if form == "times":
            quartiles = [row[f"{self.name}_quartiles"] for row in self.rows]
            return ", ".join(f"{v:.3g} ({q[0]:.3g}-{q[1]:.3g})" for v, q in zip(values, quartiles, strict=True))
        return ", ".join(format(value, form) for value in values)


def lines_of(rows: Rows, *lines: tuple[str, str], by: Sequence[str] = ()) -> Lines:
    """Return lines for each group of rows that have the same under all of `by`, in the given formats of its columns."""
    groups: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    found = []
    for mine in groups.values():
        values = {name: mine[0][name] if name in by else Column(mine, name) for name in mine[0]}
        found += [(what.format_map(values), text.format_map(values)) for what, text in lines]
    return found


def shown(*lines: tuple[str, str], by: Sequence[str] = (), of: Callable[[Rows], Rows] = list) -> Show:
    """Return what makes lines of a benchmark's rows, as `lines_of` does of those that `of` returns."""
    return lambda rows: lines_of(of(rows), *lines, by=by)


def _startup(rows: Rows) -> Lines:
    found, base = [], ""
    for row in rows:
        is_base = row["ratio_quartiles"] == [1, 1]  # it is compared to itself
        base = row["what"] if is_base else base
        more = "" if is_base else f"; {{ratio:times}} times that of `{base}`"
        found += lines_of([row], ("start: `{what}`", f"{{seconds:.2f}} s{more}"))
    return found


def _prediction(rows: Rows) -> Lines:
    walls = [row for row in rows if row["wall"] == "yes"]
    ranks, mbit = (", ".join(map(str, sorted({row[name] for row in rows}))) for name in ("ranks", "mbit"))
    what = f"{ranks} ranks, {mbit} Mbit/s, {len(walls)} cases limited by the link"
    found = []
    for side, name in (("virtual time", "error"), ("the closed form", "predicted_error")):
        errors = sorted(float(row[name].removesuffix(" %")) for row in walls)
        found.append((f"a step by {side} against processes, {what}", f"{errors[0]:+.1f} to {errors[-1]:+.1f} %"))
    return found


def _compression(rows: Rows) -> Lines:
    lengths = sorted({row["elements"] for row in rows})
    middle, found = lengths[len(lengths) // 2], []
    compared = [row | {"millions": row["elements"] / 1e6} for row in rows if row["torch_ms"] != ""]
    for name, against, more in _COMPARED:
        mine = [row for row in compared if row["what"].split(",")[0] == name]
        mine = [row | {"off": "" if row["error"] == "" else f"{100 * row['error']:+.1f} %"} for row in mine]
        line = f"{against}, {{millions:.1f}} million elements, one core", f"{{ratio:times}}{more}"
        found += lines_of(mine, line)
    found.append((f"codecs, {middle / 1e6:.1f} million elements, one core", "encode, decode, size, error"))
    codes = [row for row in rows if row["elements"] == middle and row["encode_ms"] != ""]
    line = "`{what}`", "{encode_ms:.1f} ms, {decode_ms:.1f} ms, {percent:.3g} %, {error:.3g}"
    return [*found, *lines_of(codes, line, by=("what",))]


def _against(whose: str, peer: str, transport: str) -> list[tuple[str, str]]:
    return [
        (f"ring against {whose} all-reduce, {{world_size}} ranks, {{numel:,}} elements", f"{{{peer}_ratio:times}}"),
        (f"ring on `{transport}`", f"{{over_{peer}_ratio:times}}"),
    ]


_COMPARED = (
    ("selection.top", "the largest 1 %, exactly, against torch.topk", ""),
    ("selection.above", "about as many, by a threshold from a sample", "; {off} elements"),
    ("powersgd", "a step of powersgd, rank 2, against torch's hook", ""),
)
_GLOO = shown(
    *_against("gloo's", "gloo", "process_group"), ("the ring", "{ring_us:.0f} µs"),
    ("naive all-reduce", "{naive_us:.0f} µs"), by=("world_size",),
)  # fmt: skip
_MPI = shown(*_against("Open MPI's", "mpi", "mpi"), by=("world_size",))
TABLE: dict[str, tuple[str, Show]] = {
    "all_reduce_2": ("all_reduce --world_size 2", _GLOO),
    "all_reduce_4": ("all_reduce --world_size 4", _GLOO),
    "all_reduce_mpi_2": ("all_reduce --world_size 2 --peers mpi", _MPI),
    "all_reduce_mpi_4": ("all_reduce --world_size 4 --peers mpi", _MPI),
    "training": ("training", shown(
        ("training the {model}, {n_gpus} processes: `{strategy}` against `{peer}`", "{ratio:times}"),
        by=("model", "n_gpus", "strategy", "peer"),
        of=lambda rows: [row | {"model": row["model"].upper()} for row in rows],
    )),
    "parameter_server": ("parameter_server --repeats 7", shown(
        ("{mode} server against `{server}`, {workers} workers, 5.8M-parameter MLP", "{ratio:times}"),
        by=("mode", "server"), of=lambda rows: [row for row in rows if not row["server"].endswith("param_server")],
    )),
    "startup": ("startup", _startup),
    "prediction": ("prediction", _prediction),
    "compression": ("compression", _compression),
}  # fmt: skip
"""By the name of the kept file: the benchmark with its options, and the lines of the table that are made of it."""


def table(kept: dict[str, dict[str, Any]]) -> str:
    """Return the Speed table in Markdown, and below it on what and by which code it was measured."""
    lines = [line for name, one in kept.items() for line in TABLE[name][1](one["rows"])]
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
