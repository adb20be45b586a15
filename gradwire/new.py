"""Write a strategy or a codec of your own, and its test: they work, and say where to change them.

python -m gradwire new strategy my_ring --family all_reduce

python -m gradwire new codec my_rounding

The families are the folders of strategies/. The files are written into this clone of the repository.
"""

import keyword
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from gradwire.arguments import read_options
from gradwire.core.records.atomic import write_together
from gradwire.core.records.errors import UsageError, one_of
from gradwire.ending import run_command
from gradwire.strategies import FAMILIES, HOMES, STRATEGIES

_PROJECT = Path(__file__).resolve().parents[1]
_TEMPLATES = Path(__file__).parent / "templates"
_LONGEST = 30  # so that no line becomes too long


@dataclass(frozen=True)
class Settings:
    """What is written, and its name."""

    what: Positional[Literal["strategy", "codec"]]
    """A strategy or a codec."""
    name: Annotated[str, Positional, arg(metavar="NAME")]
    """Its name on the command line and that of its file, such as my_ring; its class is MyRing."""
    family: str | None = None
    """Of a strategy: the folder that it belongs to."""

    @property
    def class_name(self) -> str:
        """The name in CamelCase."""
        return "".join(word.capitalize() for word in self.name.split("_"))


def write(settings: Settings) -> None:
    """Write the files and print the commands that come next. Raises UsageError."""
    check(settings)
    texts = {_PROJECT / path: text for path, text in files(settings).items()}
    for path in texts:
        if path.exists():
            raise UsageError(f"{settings.what} {settings.name}: {path.relative_to(_PROJECT)} exists; take another name")
    try:
        with write_together(list(texts)) as temporaries:
            for temporary, text in zip(temporaries, texts.values(), strict=True):
                temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{error.filename}: cannot be written: {error.strerror}") from error
    for path in texts:
        print(f"wrote {path.relative_to(_PROJECT)}")
    print(f"next:\n    python -m docs.pages\n    pytest --{settings.what} {settings.name}")


def check(settings: Settings) -> None:
    """Check the name and the family, and that this is a clone. Raises UsageError."""
    what, name = settings.what, settings.name
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise UsageError(f"{what} {name}: is no name of a module; take lower-case letters, digits and underscores")
    if len(name) > _LONGEST:
        raise UsageError(f"{what} {name}: has {len(name)} characters; take at most {_LONGEST}")
    families = [family for family in FAMILIES if family]
    if what == "strategy" and settings.family is None:
        raise UsageError(f"{what} {name}: give its --family too, one of {', '.join(families)}")
    if what == "strategy":
        one_of(settings, "family", families)
    elif settings.family is not None:
        raise UsageError(f"--family {settings.family}: codecs have none; leave it out")
    names, classes = _taken(what)
    if name in names:
        raise UsageError(f"{what} {name}: exists; take another name")
    if settings.class_name in classes:
        raise UsageError(f"{what} {name}: there is a class {settings.class_name}; take another name")
    if not (_PROJECT / "tests").is_dir():
        raise UsageError(f"{what} {name}: {_PROJECT} is no clone of the repository; run this in one")


def _taken(what: str) -> tuple[Collection[str], Collection[str]]:
    """Return the names on the command line, and those that the package exports."""
    if what == "strategy":
        return STRATEGIES, HOMES
    from gradwire import compression

    return compression.CODECS, compression.HOMES


def files(settings: Settings) -> dict[str, str]:
    """Return the text of each file, by its path."""
    name, family = settings.name, settings.family or "codec"
    package, tests = "gradwire/compression", "tests/compression"
    if settings.what == "strategy":
        package, tests = f"strategies/{family}", "tests/strategies"
    templates = {f"{package}/{name}.py": f"{settings.what}/{family}", f"{tests}/test_{name}.py": f"test/{family}"}
    if (_TEMPLATES / f"plain/{family}.txt").exists():  # those that step by the mean gradient share a plain program
        templates[f"{tests}/plain/{name}.py"] = f"plain/{family}"
    values = {"name": name, "Class": settings.class_name}
    texts = {path: (_TEMPLATES / f"{template}.txt").read_text(encoding="utf-8") for path, template in templates.items()}
    return {path: Template(text).substitute(values) for path, text in texts.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write what the command line asks for; return the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    return run_command(lambda: write(read_options(given, Settings, str(__doc__))))
