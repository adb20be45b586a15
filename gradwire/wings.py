"""Importing this lets the wings that are there add themselves to the tables of the core, each by its `wing.py`."""

from importlib import import_module
from pathlib import Path

for _file in sorted(Path(__file__).parent.glob("*/wing.py")):
    import_module(f"gradwire.{_file.parent.name}.wing")
