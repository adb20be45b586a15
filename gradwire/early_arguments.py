"""The names of strategies and codecs, known without loading torch: typos are refused at once."""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from gradwire.arguments import check_name, value_of

CATALOGUE = Path(__file__).resolve().parents[1] / "strategies" / "catalogue.txt"
"""The text of `--list`, which `python -m docs.pages` makes."""
_TABLES = {"--strategy": ("gradwire.strategies", "STRATEGIES"), "--codec": ("gradwire.compression", "CODECS")}


def names(option: str) -> list[str]:
    """Return the names that --strategy or --codec may have; none without the wing that has their table."""
    module, table = _TABLES[option]
    return list(getattr(import_module(module), table)) if find_spec(module) else []


def check_names(arguments: Sequence[str]) -> None:
    """Check the names that --strategy and --codec give on a command line. Raises UsageError."""
    for option in _TABLES:
        if name := value_of(option, arguments):
            check_name(option, name, names(option), option == "--strategy")


def listed() -> str | None:
    """Return the text of `--list`; None if a name of the tables is not in it, so that it has to be made anew."""
    text = CATALOGUE.read_text(encoding="utf-8") if CATALOGUE.exists() else ""
    starts = [line.removeprefix("--codec ").split("  (")[0] for line in text.splitlines() if "  (" in line]
    return text.rstrip() if set(starts) >= {name for option in _TABLES for name in names(option)} else None
