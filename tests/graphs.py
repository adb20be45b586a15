"""Networks of links: a ring, a torus, two racks; `python -m tests.graphs` writes them into gradwire/networks/."""

import json
from collections.abc import Iterable
from pathlib import Path

from tests.runs import ROOT

FOLDER = ROOT / "gradwire" / "networks"


def text(ranks: int, links: Iterable[tuple[int, int, str, str]]) -> str:
    """The file of links (from, to, bandwidth, latency)."""
    keys = ("from", "to", "bandwidth", "latency")
    lines = ",\n".join("  " + json.dumps(dict(zip(keys, link, strict=True))) for link in links)
    return f'{{"ranks": {ranks}, "links": [\n{lines}\n]}}\n'


def ring(ranks: int) -> str:
    """Each rank is linked to the next one only, which is its right neighbour."""
    return text(ranks, ((rank, (rank + 1) % ranks, "10gbit", "2us") for rank in range(ranks)))


def torus(rows: int, columns: int) -> str:
    """Each rank is linked to the four beside it."""
    beside = [
        (r * columns + c, (r + down) % rows * columns + (c + right) % columns)
        for r in range(rows) for c in range(columns) for down, right in ((0, 1), (0, -1), (1, 0), (-1, 0))
    ]  # fmt: skip
    return text(rows * columns, ((src, dst, "10gbit", "2us") for src, dst in beside))


def two_racks(k: int) -> str:
    """All k ranks of a rack are linked, and the first of one rack to the first of the other, slowly."""
    links = [
        (src, dst, "10gbit", "2us") if src // k == dst // k else (src, dst, "2gbit", "5us")
        for src in range(2 * k) for dst in range(2 * k)
        if src != dst and (src // k == dst // k or src % k == dst % k == 0)
    ]  # fmt: skip
    return text(2 * k, links)


FILES = {"ring-8.json": ring(8), "torus-4x4.json": torus(4, 4), "two-racks-of-4.json": two_racks(4)}


def write(folder: Path) -> None:
    """Write them all."""
    folder.mkdir(exist_ok=True)
    for name, written in FILES.items():
        (folder / name).write_text(written)


if __name__ == "__main__":
    write(FOLDER)
