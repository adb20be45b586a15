"""Programs after PyTorch's tutorials run to their end as they are."""

from pathlib import Path

import pytest

from tests.torch_scripts import run_script

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ddp_tutorial", "Finished running DDP checkpoint example on rank 3."),
        ("tensor_parallel", "rank 3: 2d 3 "),
    ],
)
def test_a_program_runs_as_it_is(name: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = run_script(PROGRAMS / f"{name}.py", n=4)
    assert says in capsys.readouterr().out
    assert all((rank.recorder.frame()["op"] == "send").any() for rank in cluster.ranks)
