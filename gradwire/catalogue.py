"""The tables of strategies and codecs, made from their classes: the text of `--list`."""

import textwrap
from collections.abc import Callable

from gradwire.core.strategy.cost_model import describe
from gradwire.core.strategy.strategy import Strategy
from gradwire.options import Options
from gradwire.strategies import GROUPS

NOTE = (
    "N ranks; p: the largest power of two up to N; L: log2 p; P: bytes of the parameters, n of w bytes each; G: bytes "
    "of a gradient as it is sent (P, or those of its code, see below). What a rank sends, on average over the ranks "
    "of its role, while every worker takes one step. One by one: what of it cannot be at the same time; a step takes "
    "that long, and what is computed."
)
CODEC_HEADER = ("codec", "what it does", "kind", "bytes of values", "of indices", "of headers")
CODEC_NOTE = "n: elements of a tensor, w: bytes of one, rows and columns as a matrix, i: bytes of an index (4). "


def sent(strategy: type[Strategy], show: Callable[[str], str] = str) -> tuple[str, str]:
    """Return the formulas of the messages and of the bytes that each role sends in a step, as `show` shows them."""
    by_role = strategy().cost().by_role
    roles = {role: f"{role} " if len(by_role) > 1 else "" for role in by_role}
    messages = "; ".join(f"{roles[role]}{show(traffic.messages)}" for role, traffic in by_role.items())
    return messages, "; ".join(f"{roles[role]}{show(traffic.bytes)}" for role, traffic in by_role.items())


def codec_rows(show: Callable[[str], str] = str) -> list[tuple[str, ...]]:
    """Return a row for each codec, with the columns of CODEC_HEADER, formulas as `show` shows them."""
    choice = Options.choices().get("codec")
    return [
        (name, describe(codec), codec.kind, *(show(getattr(codec, what)) for what in ("values", "indices", "headers")))
        for name, codec in (choice.table.items() if choice else ())
    ]


def catalogue() -> str:
    """Return both tables as text for a terminal: the strategies of each group, and one codec a block of lines."""
    lines = []
    for group, strategies in GROUPS.items():
        lines += [f"{group}:", ""]
        for strategy in strategies:
            lines += _block(strategy)
        lines += [""]
    lines += [*textwrap.wrap(NOTE, 100), ""]
    for name, description, kind, values, indices, headers in codec_rows():
        sizes = {"values": values, "indices": indices, "headers": headers}
        text = "; ".join(f"{what} {formula}" for what, formula in sizes.items() if formula != "0")
        lines += [f"--codec {name}  ({kind})", f"    {description}", f"    bytes  {text}"]
    if "codec" in Options.choices():
        from gradwire.compression import KINDS

        note = CODEC_NOTE + "; ".join(f"{kind}: {meaning}" for kind, meaning in KINDS.items()) + "."
        lines += ["", *textwrap.wrap(note, 100)]
    return "\n".join(lines)


def _block(strategy: type[Strategy]) -> list[str]:
    """Return the lines for one strategy."""
    cost, (messages, nbytes) = strategy().cost(), sent(strategy)
    paces = "not synchronous" if strategy.traits.asynchronous else "synchronous"
    lines = [f"{strategy.name}  ({paces}, {'a' if cost.server else 'no'} server)", f"    {describe(strategy)}"]
    lines += [f"    messages a step  {messages}", f"    bytes a step     {nbytes}"]
    for path, how in ((cost.path, ""), (cost.in_order, ", where cards pass messages in order")):
        if path:
            when = ", while it computes" if path.while_computing else ""
            line = f"    one by one       {path.messages} messages, {path.bytes} bytes{when}{how}"
            lines += textwrap.wrap(line, 120, subsequent_indent=" " * 21)
    return lines
