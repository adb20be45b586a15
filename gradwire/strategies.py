"""The algorithms: the package `strategies` that stands beside this one, whatever is called so in the user's folder.

Where the user has a `strategies` of his own, which comes first on the path, the same files are modules of this name:
`gradwire.strategies.single`.
"""

import re
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

FOLDER = Path(__file__).resolve().parent.parent / "strategies"
_IMPORT = re.compile(r"^(\s*)(from|import) strategies\b", re.MULTILINE)


class _Renamed(SourceFileLoader):
    """Loads a file of `strategies` as one of `gradwire.strategies`, its imports too."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the module."""
        text = _IMPORT.sub(r"\1\2 gradwire.strategies", Path(self.path).read_text(encoding="utf-8"))
        return compile(text, self.path, "exec", dont_inherit=True)


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a module of `gradwire.strategies`."""
        found = PathFinder.find_spec(name, path) if name.startswith(f"{__name__}.") else None
        if found is not None and found.origin is not None:
            found.loader = _Renamed(name, found.origin)
        return found


def _is_ours(spec: ModuleSpec | None) -> bool:
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == FOLDER / "__init__.py"


if TYPE_CHECKING or _is_ours(find_spec("strategies")):
    from strategies import *  # noqa: F403
    from strategies import collectives as collectives
    from strategies.all_reduce import expected as expected

    # The same modules by this name, so that no class is there twice.
    sys.modules |= {f"gradwire.{name}": sys.modules[name] for name in sys.modules if name.startswith("strategies.")}
else:
    sys.meta_path.insert(0, _Finder)
    __path__ = __spec__.submodule_search_locations = [str(FOLDER)]
    exec(_Renamed(__name__, str(FOLDER / "__init__.py")).get_code(__name__), globals())
    from gradwire.strategies import collectives as collectives
    from gradwire.strategies.all_reduce import expected as expected
