"""The public names: all can be imported, the two lists of them agree, and pages show a user no others."""

import ast
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

import gradwire
from gradwire.core.records.recorder import Recorder
from gradwire.core.strategy.updater import Updater
from tests.ranks import LIMIT
from tests.runs import ROOT

NOTEBOOKS = [*ROOT.glob("lessons/*.ipynb"), *ROOT.glob("experiments/*.ipynb")]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("lessons/*.md")]
STUB = Path(gradwire.__file__).with_suffix(".pyi")
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)


def shown(path: Path) -> Iterator[str]:
    """The pieces of Python that a page or notebook shows; names between the words of a page are quoted."""
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text())["cells"]
        yield from ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    else:
        yield from CODE.findall(path.read_text())


@pytest.mark.parametrize("name", gradwire.__all__)
def test_a_public_name_is_of_the_module_that_the_type_checker_reads(name: str) -> None:
    found = re.findall(rf"^from (\S+) import (\w+) as {name}$", STUB.read_text(), re.MULTILINE)
    assert [as_named for _, as_named in found] == [name]
    assert getattr(gradwire, name) is getattr(importlib.import_module(found[0][0]), name)


@pytest.mark.parametrize("path", [*NOTEBOOKS, *PAGES], ids=lambda path: path.name)
def test_a_user_is_shown_public_names_only(path: Path) -> None:
    for text in shown(path):
        for node in ast.walk(ast.parse(re.sub(r"^%.*$", "", text, flags=re.MULTILINE))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gradwire":
                assert node.module == "gradwire"
                assert {alias.name for alias in node.names} <= set(gradwire.__all__)
            elif isinstance(node, ast.Import):
                assert not [alias.name for alias in node.names if alias.name.startswith("gradwire.")]
    said = re.findall(r"\bgradwire\.([A-Za-z]\w*)\(", path.read_text())
    assert set(said) <= set(gradwire.__all__)
    assert not re.findall(r"`from gradwire\.", path.read_text())


def test_importing_the_package_loads_no_torch() -> None:
    code = "import sys, gradwire; dir(gradwire); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT, check=True, cwd=ROOT
    )
    assert done.stdout == "False\n"


def test_former_names_mean_the_same() -> None:
    assert gradwire.find_fault is gradwire.check_all_reduce
    strategy = gradwire.STRATEGIES["param_server"]()
    strategy.updater = Updater([torch.zeros(1)], partial(torch.optim.SGD, lr=0.1), 0.0, None, Recorder(enabled=False))
    assert strategy.descent is strategy.updater
