"""Strategies by name, and classes of a user's own: they work end to end, or are refused in one line."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runs import SMALL, TRUSTED, arguments, metadata, said

HEAD = """
from dataclasses import dataclass
from strategies import Cost, Strategy, Traffic, Traits
from strategies.all_reduce.ring_all_reduce import RingAllReduce
"""
OWN = (
    HEAD
    + '''
@dataclass(kw_only=True)
class Every(Strategy):
    """Only every k-th step counts."""

    k: int = 2
    """Steps between two that count."""

    traits = Traits(agree=False, defaults={"lr": 0.02, "optimizer": "adam"})
    calls = 0

    def cost(self, kind=None):
        return Cost(worker=Traffic("0", "0"))

    def step(self, n_samples):
        self.calls += 1
        g = self.replica.collect()
        if self.calls % self.k == 0:
            self.descent.step(g, n_samples)
        self.replica.zero_grad()
'''
)


def test_a_class_of_ones_own_runs_with_its_option_and_is_resumed(
    tmp_path: Path, own_module: Callable[[str], str]
) -> None:
    mine = f"{own_module(OWN)}:Every"
    line = arguments(SMALL | {"epochs": 1, "checkpoint_every": 4, "n_gpus": 2})

    def train(*given: str) -> tuple[dict[str, Any], str]:
        code, text = said(*given)
        assert code == 0, text
        return metadata(tmp_path / "results", given[-1]), text

    made, text = train("--strategy", mine, "--k", "3", *line, "--run_name", "run")
    assert made["strategy"] == mine
    assert made["options"] | {"k": 3, "lr": 0.02, "optimizer": "adam"} == made["options"]
    assert f"--lr 0.02 (the default of {mine})" in text
    assert f"--optimizer adam (the default of {mine})" in text
    assert len(re.findall(r": +0%.* 0/", text)) == 1, "one progress bar, not one per rank"
    resumed, _ = train("--resume", "results/run.checkpoints", "--epochs", "2", "--checkpoint_dir", "more",
                       *TRUSTED, "--run_name", "on")  # fmt: skip
    assert {name: resumed["options"][name] for name in ("k", "lr")} == {"k": 3, "lr": 0.02}


WITHOUT = HEAD + '@dataclass(kw_only=True)\nclass Mine(Strategy):\n    """Mine."""\n'
RING = HEAD + '@dataclass(kw_only=True)\nclass Mine(RingAllReduce):\n    """Mine."""\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "has no Mine; define it there"),
        ("1 / 0", "raised ZeroDivisionError: division by zero; correct it"),
        ("class Mine: pass", "is no class derived from strategies.Strategy; derive it"),
        (WITHOUT, "has no cost, step; define it"),
        (HEAD + "class Mine(RingAllReduce):\n    pass\n", "decorate the class with @dataclass(kw_only=True)"),
        (RING + "    lr: float = 0.5\n", "its option lr is one of every run; rename it"),
        (RING + "    k: int\n", "its option k has no default; give it one"),
        (RING + '    traits = Traits(defaults={"epochs": 5})\n', "may set defaults of batch_size,"),
    ],
)
def test_a_class_that_cannot_be_a_strategy_is_one_line(
    tmp_path: Path, own_module: Callable[[str], str], text: str, expected: str
) -> None:
    module = own_module(text)
    code, printed = said("--strategy", f"{module}:Mine", "--results_dir", "results", "--device", "cpu")
    assert (code, printed.count("\n")) == (2, 1)
    assert printed.startswith(f"error: --strategy {module}:Mine: ")
    assert expected in printed
    assert not (tmp_path / "results").exists()
