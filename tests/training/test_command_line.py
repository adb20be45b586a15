"""The command line: frozen names, and one clear line for whatever is wrong."""

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from param_server_builtin import BuiltinParamServer
from ring_all_reduce_builtin import BuiltinRingAllReduce
from training import Options, cli
from training.options import option_names
from training.run import prepare

NAMES = """
strategy n_gpus backup_workers max_staleness aggregate reads n_push n_pull restarts replay
batch_size global_batch_size workers_like epochs lr momentum
weight_decay optimizer optimizer_options lr_schedule warmup clip_norm accumulate dataset data_dir download
train_size model device dtype seed slow jitter timeout results_dir run_name events checkpoint_every checkpoint_dir
checkpoint_keep evaluator resume save
""".split()


@pytest.fixture(autouse=True)
def _only_prepare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check everything that is checked before the ranks start, and start none."""
    monkeypatch.setattr(cli, "run", lambda options: prepare(options.resolve()))


def said(*arguments: str, builtin: Any = None) -> tuple[int, str]:
    """Return the exit code and what was printed."""
    output = io.StringIO()
    with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
        code = cli.main("description", builtin, ["--device", "cpu", *arguments])
    return code, output.getvalue()


def test_the_names_of_the_options_are_frozen() -> None:
    assert option_names() == NAMES


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--n_gpus", "0"], "--n_gpus 0: must be at least 1"),
        (["--n_gpus", "-3"], "--n_gpus -3: must be at least 1"),
        (["--n_gpus", "four"], "--n_gpus"),
        (["--n_gpus", "1000"], "at most 100"),
        (["--strategy", "param_server", "--n_gpus", "1"], "param_server needs at least 2"),
        (["--strategy", "single", "--n_gpus", "2"], "--workers_like"),
        (["--strategy", "param_sever"], "did you mean param_server?"),
        (["--optimizer", "sdg"], "did you mean sgd?"),
        (["--dataset", "digit"], "did you mean digits?"),
        (["--model", "resnet81"], "did you mean resnet18?"),
        (["--batchsize", "3"], "did you mean --batch_size?"),
        (["--lr", "-0.1"], "--lr -0.1: must be a positive number"),
        (["--lr", "nan"], "--lr nan: must be a positive number"),
        (["--lr", "much"], "--lr"),
        (["--momentum", "1"], "--momentum 1.0"),
        (["--epochs", "1.5"], "--epochs"),
        (["--timeout", "inf"], "--timeout inf"),
        (["--optimizer", "lbfgs"], "--optimizer lbfgs: does not work on one vector"),
        (
            ["--optimizer_options", "nestrov=True"],
            "--optimizer_options nestrov=True: must be NAME=VALUE, each once, of sgd's: momentum,",
        ),
        (["--optimizer_options", "nesterov=yes"], "'yes' is no number"),
        (["--optimizer_options", "momentum=-1"], "Invalid momentum"),
        (["--lr_schedule", "cosin"], "did you mean cosine?"),
        (["--warmup", "11"], "--warmup 11.0: must be from 0 to the number of epochs, 10"),
        (["--slow", "fast"], "--slow fast: must be RANK:FACTOR"),
        (["--slow", "1:0.5"], "a factor from 1 to 1000"),
        (["--slow", "1:nan"], "a factor from 1 to 1000"),
        (["--slow", "7:2", "--n_gpus", "2"], "--slow 7: not a rank that computes; those are 0, 1"),
        (["--slow", "0:2", "--strategy", "param_server", "--n_gpus", "3"], "those are 1, 2"),
        (["--jitter", "-1"], "--jitter -1.0: must be from 0 to 5"),
        (["--seed", "-1"], "--seed -1"),
        (["--seed"], "--seed"),
        (["stray"], "stray"),
        (["--n_gpus", "90", "--train_size", "80"], "--train_size"),
        (["--global_batch_size", "1", "--n_gpus", "2"], "--global_batch_size"),
        (["--train_size", "100000"], "--train_size"),
        (["--dataset", "mnist", "--data_dir", "/nowhere"], "--download"),
        (["--dataset", "tests.workload:absent"], "absent"),
        (["--dataset", "tests.workload:linear"], "--dataset tests.workload:linear"),
        (["--model", "tests.workload:moons"], "--model tests.workload:moons"),
        (["--model", "absent_module:f"], "absent_module"),
        (["--dataset", "tests.workload:not_picklable"], "define transforms as functions of a module"),
        (["--model", "tests.workload:lazy", "--dataset", "tests.workload:moons"], "has lazy layers"),
        (
            [
                "--model",
                "tests.workload:batch_norm",
                "--dataset",
                "tests.workload:moons",
                "--n_gpus",
                "2",
                "--global_batch_size",
                "188",
            ],
            "leaves a worker one sample",
        ),
        (["--run_name", "a/b"], "--run_name"),
        (["--run_name", "x" * 300], "--run_name"),
        (["--results_dir", "/dev/null/results"], "--results_dir: cannot write in /dev/null/results"),
        (["--save", "/dev/null/model.pt"], "--save: cannot write"),
        (["--evaluator"], "--evaluator: needs checkpoints to score; give --checkpoint_every"),
        (["--save", "."], "--save"),
        (["--data_dir", "a\0b"], "--data_dir"),
    ],
)
def test_bad_input_is_one_line_that_names_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: str
) -> None:
    results = [] if "--results_dir" in arguments else ["--results_dir", str(tmp_path / "results")]
    code, text = said(*results, *arguments)
    assert code == 2, text
    assert text.startswith("error: ")
    assert text.count("\n") == 1, text
    assert expected in text
    assert not (tmp_path / "results").exists(), "nothing half-written"


def test_the_baselines_take_the_same_options_but_no_other_strategy(tmp_path: Path) -> None:
    for builtin in (BuiltinParamServer, BuiltinRingAllReduce):
        assert said("--n_gpus", "2", "--results_dir", str(tmp_path), builtin=builtin)[0] == 0
        code, text = said("--strategy", "param_server", "--results_dir", str(tmp_path), builtin=builtin)
        assert code == 2
        assert builtin.name in text


VALUES = st.one_of(
    st.text(st.characters(exclude_characters=":"), max_size=12),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(["", "nan", "inf", "-1", "0", "1e308", "None", "True", "..", "/", "single", "mlp", "adam", "cuda"]),
)
ELSEWHERE = ("download", "results_dir", "save", "data_dir")  # they would write, or look, where no test should
OPTIONS = st.sampled_from([f"--{name}" for name in NAMES if name not in ELSEWHERE])
LINES = st.lists(st.one_of(st.tuples(OPTIONS, VALUES), st.tuples(st.text(max_size=8))), max_size=4)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(line=LINES)
def test_no_line_of_options_ends_in_a_traceback(tmp_path: Path, line: list[tuple[str, ...]]) -> None:
    arguments = [part for pair in line for part in pair if part not in ("-h", "--help")]
    code, text = said("--results_dir", str(tmp_path), *arguments)
    assert code in (0, 2)
    assert code == 0 or text.startswith("error: ")
    assert "Traceback" not in text


def test_options_say_what_they_are() -> None:
    assert Options(strategy="single").resolve().roles == ["worker"]
    assert Options(strategy="param_server", n_gpus=3).resolve().roles == ["server", "worker", "worker"]
