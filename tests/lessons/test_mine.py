"""Training by a lab's functions is training by the strategy that they are taken from."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from gradwire import run
from strategies import BackupWorkers, FullySharded, RecursiveDoubling, Strategy, StreamingDiLoCo
from tests.ranks import virtual_time
from tests.runs import metadata, small

EVEN: dict[str, Any] = {"train_size": 168, "batch_size": 8}  # on all ranks as many samples in every step
WIDE = "tests.diagnosis.test_memory_of_runs:wide"
TRAINED: dict[str, tuple[Strategy, dict[str, str], dict[str, Any]]] = {  # by lab: its functions by their name in Mine
    "memory": (FullySharded(), {"gather_block": "gather", "free_block": "free", "reduce_block": "reduce_scatter"},
               {"n_gpus": 3, "memory": True, "model": WIDE, "train_size": 48}),
    "logarithms": (RecursiveDoubling(), {"add_up": "recursive_doubling"}, {"n_gpus": 3}),
    "seldom": (StreamingDiLoCo(), {"stream": "stream"}, {"n_gpus": 2}),
    "failures": (BackupWorkers(), {"collect_all": "collect"}, {"n_gpus": 4}),
}  # fmt: skip


def train(folder: Path, strategy: Strategy, n_gpus: int, **options: Any) -> tuple[dict[str, Any], list[float]]:
    """Return what is recorded of a training in virtual time, and the losses on the held-out samples."""
    given = small(folder, strategy, n_gpus=n_gpus, **EVEN | options)
    table = run(given, quiet=True, launcher=virtual_time(n_gpus).launcher())
    return metadata(folder), table["test_loss"].dropna().tolist()


@pytest.mark.parametrize("lab", TRAINED)
def test_training_by_the_functions_is_training_by_the_strategy(
    lab: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy, functions, options = TRAINED[lab]
    mine, solution = import_module(f"lessons.{lab}").Mine, import_module(f"lessons.solutions.{lab}")
    for name, function in functions.items():
        monkeypatch.setattr(mine, name, staticmethod(getattr(solution, function)))
    found, losses = train(tmp_path / "mine", mine(), **options)
    expected, its_losses = train(tmp_path / "its", strategy, **options)
    assert losses == pytest.approx(its_losses, rel=1e-4 if lab == "failures" else 1e-5)
    if lab != "seldom":
        assert found["replicas_identical"]
        assert expected["replicas_identical"]
    if lab == "failures":
        assert train(tmp_path / "none", mine(n_backup=0), **options)[1][-1] != pytest.approx(losses[-1], rel=1e-4)
    else:
        assert found["bytes_sent"] == expected["bytes_sent"]
    if lab == "memory":
        peaks = [{rank: recorded["at_peak"] for rank, recorded in of["memory"].items()} for of in (found, expected)]
        assert peaks[0] == peaks[1]
