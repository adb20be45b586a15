"""The tables of all strategies and codecs, made from their classes: for `--list` and for the pages."""

import textwrap
from collections.abc import Iterable

from compression import CODECS, KINDS
from strategies import GROUPS, Strategy
from strategies.common.forms import describe

HEADER = ("strategy", "what it does", "synchronous", "server", "messages a step", "bytes a step")
NOTE = (
    "N ranks; P: bytes of the parameters, n of w bytes each; G: bytes of a gradient as it is sent (P, or those of its "
    "code, see below). What a rank sends, on average over the ranks "
    "of its role, while every worker takes one step. One by one: what of it cannot be at the same time; a step takes "
    "that long, and what is computed."
)
CODEC_HEADER = ("codec", "what it does", "kind", "bytes of values", "of indices", "of headers")
CODEC_NOTE = (
    "n: elements of a tensor, w: bytes of one, rows and columns as a matrix, i: bytes of an index (4). "
    + "; ".join(f"{kind}: {meaning}" for kind, meaning in KINDS.items())
    + "."
)


def rows(strategies: Iterable[type[Strategy]]) -> list[tuple[str, ...]]:
    """Return a row for each strategy, with the columns of HEADER."""
    table: list[tuple[str, ...]] = []
    for strategy in strategies:
        cost = strategy().cost()
        several = len(cost.by_role) > 1
        messages, nbytes = (
            "; ".join(f"{role + ' ' if several else ''}{getattr(traffic, what)}"
                      for role, traffic in cost.by_role.items())
            for what in ("messages", "bytes")
        )  # fmt: skip
        synchronous = "no" if strategy.traits.asynchronous else "yes"
        table.append(
            (strategy.name, describe(strategy), synchronous, "yes" if cost.server else "no",
             messages, nbytes)
        )  # fmt: skip
    return table


def codec_rows() -> list[tuple[str, ...]]:
    """Return a row for each codec, with the columns of CODEC_HEADER."""
    return [
        (name, codec.describe(), codec.kind, *(getattr(codec, what) for what in ("values", "indices", "headers")))
        for name, codec in CODECS.items()
    ]


def catalogue() -> str:
    """Return both tables as text for a terminal: the strategies of each group, and one codec a block of lines."""
    lines = []
    for group, strategies in GROUPS.items():
        lines += [f"{group}:", ""]
        for strategy, row in zip(strategies, rows(strategies), strict=True):
            lines += _block(strategy, row)
        lines += [""]
    lines += [*textwrap.wrap(NOTE, 100), ""]
    for name, description, kind, values, indices, headers in codec_rows():
        sizes = {"values": values, "indices": indices, "headers": headers}
        text = "; ".join(f"{what} {formula}" for what, formula in sizes.items() if formula != "0")
        lines += [f"--codec {name}  ({kind})", f"    {description}", f"    bytes  {text}"]
    return "\n".join([*lines, "", *textwrap.wrap(CODEC_NOTE, 100)])


def _block(strategy: type[Strategy], row: tuple[str, ...]) -> list[str]:
    """Return the lines for one strategy."""
    name, description, synchronous, server, messages, nbytes = row
    kinds = ("" if synchronous == "yes" else "not ") + "synchronous, " + ("a" if server == "yes" else "no") + " server"
    lines = [f"{name}  ({kinds})", f"    {description}"]
    lines += [f"    messages a step  {messages}", f"    bytes a step     {nbytes}"]
    cost = strategy().cost()
    for path, how in ((cost.path, ""), (cost.in_order, ", where cards pass messages in order")):
        if path:
            when = ", while it computes" if path.while_computing else ""
            lines += [f"    one by one       {path.messages} messages, {path.bytes} bytes{when}{how}"]
    return lines
