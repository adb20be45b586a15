"""The algorithms: the package `strategies` that stands beside this one, whatever is called so in the user's folder.

Where the user has a `strategies` of his own, which comes first on the path, the same files are modules of this name:
`gradwire.strategies.single`.
"""

import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

FOLDER = Path(__file__).resolve().parent.parent / "strategies"
_MODULES = {"collectives": "strategies.collectives", "predictions": "strategies.all_reduce.predictions"}
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


class _Alias(Loader):
    """Finds a module of `strategies` by the name `gradwire.strategies.MODULE` too, so that no class is there twice."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module of `strategies`."""
        self._module = import_module(spec.name.removeprefix("gradwire."))
        self._spec = self._module.__spec__
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Leave it as it is."""
        module.__spec__ = self._spec

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a module of `gradwire.strategies`."""
        return ModuleSpec(name, _Alias()) if name.startswith(f"{__name__}.") else None


if TYPE_CHECKING:
    from strategies import *  # noqa: F403
    from strategies import collectives as collectives
    from strategies.all_reduce import predictions as predictions
elif _is_ours(find_spec("strategies")):
    import strategies

    sys.meta_path.insert(0, _Alias)
    __path__: list[str] = []

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(_MODULES[name])
        return getattr(strategies, name)
else:
    sys.meta_path.insert(0, _Finder)
    __path__ = __spec__.submodule_search_locations = [str(FOLDER)]
    exec(_Renamed(__name__, str(FOLDER / "__init__.py")).get_code(__name__), globals())
    from gradwire.strategies import collectives as collectives
    from gradwire.strategies.all_reduce import predictions as predictions
