"""Errors of options, as a caller in Python reads them."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from gradwire.core.records.errors import UsageError


@contextmanager
def in_python(names: Mapping[str, str]) -> Iterator[None]:
    """Make a UsageError of the block name arguments as Python does: codec=topk, not --codec topk.

    `names`: of the options whose arguments have another name.
    """

    def named(found: re.Match[str]) -> str:
        option, value = found.groups()
        return names.get(option, option) + (f"{': ' if '=' in value else '='}{value}" if value else "")

    try:
        yield
    except UsageError as error:
        raise UsageError(re.sub(r"--(\w+)(?: (\S+)(?=:))?", named, str(error))) from error
