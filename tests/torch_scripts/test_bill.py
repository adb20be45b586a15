"""What the passes of a script take in virtual time: by the operations that they compute, by their closed forms."""

import runpy
import sys
from collections.abc import Callable

import pytest
from torch.utils.flop_counter import FlopCounterMode

from gradwire.torch_scripts.virtual import Cluster
from gradwire.torch_scripts.virtual_rank import Speed
from gradwire.virtual_time import simulate
from gradwire.virtual_time.network import OneSwitch
from tests.runs import said_by
from tests.torch_scripts import SCRIPTS, run_script

C = 0.03  # seconds of a forward and backward pass
V = 2  # stages of a rank, where it has several


def run(name: str, *arguments: str, n: int = 1, speed: Speed) -> Cluster:
    return run_script(name, *arguments, n=n, speed=speed, network=OneSwitch(n, 1e30, 0.0))


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("ScheduleGPipe", lambda m, n: m + n - 1),
        ("Schedule1F1B", lambda m, n: m + n - 1),
        ("ScheduleInterleaved1F1B", lambda m, n: V * m + n - 1),
        ("ScheduleLoopedBFS", lambda m, n: V * m + n - 1),
        ("ScheduleInterleavedZeroBubble", lambda m, n: V * m + (n - 1) / 3),
        ("ScheduleZBVZeroBubble", lambda m, n: V * m + (n - 1) / 3),
        ("ScheduleDualPipeV", lambda m, n: V * m + (n - 1) * 2 / 3),
    ],
)
def test_a_pipeline_takes_its_closed_form(
    name: str, passes: Callable[[int, int], float], n: int, capsys: pytest.CaptureFixture[str]
) -> None:
    m = 2 * n
    run("schedules.py", name, str(m), n=n, speed=Speed(compute=C))
    assert float(capsys.readouterr().out.removeprefix("rank 0: ")) == pytest.approx(passes(m, n) * C, rel=1e-9)


CONVOLUTION, FIRST, LAST = 2 * 4 * 4 * 14 * 14 * 9, 2 * 4 * 784 * 64, 2 * 4 * 64 * 64  # operations, passes.py's model
FORWARD = CONVOLUTION + FIRST + LAST


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("backward", 1),
        ("autograd.grad", 1),
        ("two losses", 1),
        ("models in turn", 1),
        ("no modules", 1),
        ("halves", 1),
        ("one of the halves", 2 / 3),
        ("checkpoint", 1 + (CONVOLUTION + FIRST) / FORWARD / 3),  # what the last layer returns is not needed again
        ("reentrant checkpoint", 4 / 3),
    ],
)
def test_a_backward_pass_takes_what_it_computes(name: str, passes: float) -> None:
    assert run("passes.py", name, speed=Speed(compute=C)).ranks[0].clock == pytest.approx(3 * passes * C, rel=1e-9)


@pytest.mark.parametrize("name", ["backward", "autograd.grad", "reentrant checkpoint", "attention"])
def test_an_operation_takes_its_time_as_torch_counts_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["passes.py", name])
    with FlopCounterMode(display=False) as counted:
        runpy.run_path(str(SCRIPTS / "passes.py"))
    assert counted.get_total_flops() > 0
    clock = run("passes.py", name, speed=Speed(flops=1e9)).ranks[0].clock
    assert clock == pytest.approx(counted.get_total_flops() / 1e9, rel=1e-9)


def test_compute_is_cut_by_operations(capsys: pytest.CaptureFixture[str]) -> None:
    run("passes.py", "parts", speed=Speed(compute=C))
    ends = [float(text) for text in capsys.readouterr().out.split()[2:]]
    done = [CONVOLUTION, CONVOLUTION, CONVOLUTION + FIRST, FORWARD]
    assert ends == pytest.approx([C / 3 * part / FORWARD for part in done], rel=1e-6)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--compute=1ms", "--flops=1e9"], "--compute and --flops: each says how long a step takes; give one of them"),
        (["--flops=0"], "--flops 0.0: must be from 1 to 1e30, such as 15e12"),
    ],
)
def test_one_option_says_how_fast_ranks_compute(given: list[str], says: str) -> None:
    code, text = said_by(lambda: simulate.main(["--script", __file__, *given]))
    assert (code, says in text) == (2, True), text


B, T, H = 2, 12, 24  # as in parallel.py
MLP, ATTENTION = 2 * 8 * B * T * H * H, 2 * 4 * B * T * H * H + 4 * B * T * T * H  # operations of a forward pass


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize(
    ("name", "halves", "forward"),
    [
        ("mlp", 2 + 2, MLP),  # two all-reduces: of the outputs, and of the gradients of the inputs
        ("attention", 2 + 3 * 2, ATTENTION),  # of which q, k and v have their own
        ("sequence", 2 + 2, MLP),  # an all-gather and a reduce-scatter, and back
        ("experts", 2 + 2, MLP),  # two all-to-alls, and back
    ],
)
def test_layers_in_parallel_send_and_compute_what_their_formulas_say(
    name: str, halves: int, forward: int, n: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = run("parallel.py", name, n=n, speed=Speed(flops=1e9)).ranks[-1].recorder.frame()
    assert rows[rows["op"] == "send"]["bytes"].sum() == 2 * halves * (n - 1) * B * T * H * 4 // n
    seconds = 3 * forward / (1 if name == "experts" else n) / 1e9
    assert float(capsys.readouterr().out.split()[-1]) == pytest.approx(seconds, rel=1e-6)
