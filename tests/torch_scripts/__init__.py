from pathlib import Path
from typing import Any

from gradwire.torch_scripts.collectives import plans
from gradwire.torch_scripts.script import Script
from gradwire.torch_scripts.virtual import Cluster, run_in_virtual_time
from gradwire.torch_scripts.virtual_rank import ScriptRecorder, Speed
from gradwire.virtual_time.network import Network, OneSwitch

SCRIPTS = Path(__file__).parent / "scripts"
BANDWIDTH, LATENCY = 125e6, 50e-6
A_MILLISECOND = Speed(0.001)


def run_script(
    path: str | Path, *arguments: Any, n: int = 2, speed: Speed = A_MILLISECOND, network: Network | None = None,
    all_reduce: str = "ring", on_cpu: bool = False,
) -> Cluster:  # fmt: skip
    """Run a script, which may be one of SCRIPTS by its name, on n ranks in virtual time."""
    script = Script(str(SCRIPTS / path), [str(argument) for argument in arguments], on_cpu=on_cpu)
    recorders = [ScriptRecorder(rank, script.folder) for rank in range(n)]
    network = network or OneSwitch(n, BANDWIDTH, LATENCY)
    return run_in_virtual_time(script, network, recorders, speed, plans(all_reduce))


def at(file: str, text: str) -> str:
    """The place of a line of a script, as messages name it."""
    lines = (SCRIPTS / file).read_text().splitlines()
    return f"{file}:{1 + next(i for i, line in enumerate(lines) if text in line)}"
