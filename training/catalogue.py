"""The table of all strategies, made from their classes: for `--list`, and for the README."""

import textwrap
from collections.abc import Iterable

from strategies import STRATEGIES, Strategy

HEADER = ("strategy", "what it does", "synchronous", "server", "messages a step", "bytes a step")
NOTE = (
    "N ranks; P: bytes of the parameters. What a rank sends, on average over the ranks of its role, while every worker "
    "takes one step. One by one: what of it cannot be at the same time; a step takes that long, and what is computed."
)


def rows(strategies: Iterable[type[Strategy]]) -> list[tuple[str, ...]]:
    """Return a row for each strategy, with the columns of HEADER."""
    table: list[tuple[str, ...]] = []
    for strategy in strategies:
        several = len(strategy.traffic) > 1
        messages, nbytes = (
            "; ".join(f"{role + ' ' if several else ''}{getattr(traffic, what)}"
                      for role, traffic in strategy.traffic.items())
            for what in ("messages", "bytes")
        )  # fmt: skip
        synchronous = "no" if strategy.asynchronous or not strategy.replicas_agree else "yes"
        table.append(
            (strategy.name, strategy.describe(), synchronous, "yes" if "server" in strategy.traffic else "no",
             messages, nbytes)
        )  # fmt: skip
    return table


def catalogue() -> str:
    """Return the table as text for a terminal, one strategy a block of lines."""
    lines = []
    for name, description, synchronous, server, messages, nbytes in rows(STRATEGIES.values()):
        kinds = (
            ("" if synchronous == "yes" else "not ") + "synchronous, " + ("a" if server == "yes" else "no") + " server"
        )
        lines += [f"{name}  ({kinds})", f"    {description}"]
        lines += [f"    messages a step  {messages}", f"    bytes a step     {nbytes}"]
        if path := STRATEGIES[name].critical_path:
            lines += [f"    one by one       {path.messages} messages, {path.bytes} bytes"]
    return "\n".join([*lines, "", *textwrap.wrap(NOTE, 100)])


def markdown() -> str:
    """Return the table as the README has it."""
    lines = ["| " + " | ".join(HEADER) + " |", "|---" * len(HEADER) + "|"]
    lines += ["| " + " | ".join([f"`{name}`", *cells]) + " |" for name, *cells in rows(STRATEGIES.values())]
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
