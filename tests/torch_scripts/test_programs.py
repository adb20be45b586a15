"""Programs after PyTorch's tutorials run to their end as they are."""

from pathlib import Path

import pytest

from gradwire.torch_scripts.virtual_rank import Speed
from tests.torch_scripts import run_script

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.parametrize(
    ("name", "n", "arguments", "says"),
    [
        ("ddp_tutorial", 4, [], "Finished running DDP checkpoint example on rank 3."),
        ("tensor_parallel", 4, [], "rank 3: 2d 3 "),
        ("multigpu_torchrun", 2, ["FOLDER"], "[GPU1] Epoch 2 | Batchsize: 32 | Steps: 4"),
    ],
)
def test_a_program_runs_as_it_is(
    name: str, n: int, arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [argument.replace("FOLDER", str(tmp_path)) for argument in arguments]
    cluster = run_script(PROGRAMS / f"{name}.py", *given, n=n, speed=Speed(0.01), on_cpu=name == "multigpu_torchrun")
    assert says in capsys.readouterr().out
    assert all((rank.recorder.frame()["op"] == "send").any() for rank in cluster.ranks)
