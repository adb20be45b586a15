"""A student's functions from a notebook."""

import linecache
from typing import Any

from lessons.source import Source

CELL = """def share():
    def inner():
        raise ValueError("no")

    inner()

def all_reduce(transport, vector):
    share()
"""


def test_the_line_of_a_cell_is_named_also_within_what_it_calls() -> None:
    linecache.cache["<cell>"] = (len(CELL), None, CELL.splitlines(keepends=True), "<cell>")
    found: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(CELL, "<cell>", "exec"), found)
    source = Source.of_cells({"all_reduce": found["all_reduce"]})
    try:
        source.load(["all_reduce"]).all_reduce(None, None)
    except ValueError as error:
        said = str(source.explain(error, "N = 2"))
    assert said == 'N = 2 raised ValueError: no, line 3 of the cell (raise ValueError("no"))'
