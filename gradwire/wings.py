"""The wings that are there: the folders beside this file that have a module `wing`.

When it is imported, it adds itself to the tables of the core; what else it adds to a run is its `WING`.
"""

from importlib import import_module
from pathlib import Path

from gradwire.core.training.wing import Wing

_MODULES = [
    import_module(f"gradwire.{path.parent.name}.wing") for path in sorted(Path(__file__).parent.glob("*/wing.py"))
]
WINGS: tuple[Wing, ...] = tuple(module.WING for module in _MODULES if hasattr(module, "WING"))
