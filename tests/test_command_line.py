"""The command line: frozen names, help for one strategy at a time, and one clear line for whatever is wrong."""

import dataclasses
import re
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from docs.pages import catalogue
from gradwire import command_line
from gradwire.baselines import fully_sharded_builtin
from gradwire.compression import CODECS, Codec
from gradwire.core.training.checks import prepare, resolve
from gradwire.help_texts import FIRST
from gradwire.options import Options, option_names
from gradwire.virtual_time import simulate
from strategies import STRATEGIES, Strategy
from tests.runs import BUILTIN, KINDS, said, said_by
from tests.strategies.kinds import needs, other_value

NAMES = """
strategy codec n_gpus batch_size global_batch_size epochs lr momentum weight_decay decay optimizer optimizer_options
codec_scope lr_schedule warmup clip_norm accumulate device dtype amp seed slow jitter timeout bandwidth latency network
restarts launcher scheduler dataset data_dir download task train_size context image_size augment loader loader_workers
model model_options results_dir run_name events hashes memory save tensorboard replay checkpoint_every checkpoint_dir
checkpoint_keep evaluator resume
""".split()


@pytest.fixture(autouse=True)
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """Check everything that is checked before the ranks start, and start none; the options of each run."""
    seen: list[Options] = []

    def only_prepare(options: Options) -> None:
        seen.append(options)
        launcher = options.find_launcher()
        prepare(resolve(options, launcher), launcher)

    monkeypatch.setattr(command_line, "run", only_prepare)
    return seen


def options_of(strategy: type[Strategy] | type[Codec]) -> list[str]:
    return [option.name for option in dataclasses.fields(strategy)]


def test_the_names_of_the_options_of_every_run_are_frozen() -> None:
    assert sorted(option_names()) == sorted(NAMES)


# --help and --list


def help_of(name: str, *more: str) -> str:
    """Return the help for a strategy; `more` may name a codec."""
    code, text = said("--strategy", name, *more, "--help", builtin=BUILTIN[name]() if name in BUILTIN else None)
    assert code == 0
    return text


@pytest.mark.parametrize("name", ["easgd", "dgs", "fully_sharded_builtin"])
def test_help_all_explains_every_option_of_a_run_and_those_of_the_strategy(name: str) -> None:
    code, text = said("--strategy", name, "--help", "all", builtin=BUILTIN[name]() if name in BUILTIN else None)
    assert code == 0
    _, *parts = re.split(r"^│ (?:-h, )?--(\w+)", text, flags=re.MULTILINE)
    explained = dict(zip(parts[::2], parts[1::2], strict=True))
    assert "show this help" in explained.pop("help")
    assert sorted(explained) == sorted([*options_of(KINDS[name]), *NAMES])
    for words in explained.values():
        assert re.search(r"[A-Za-z]{4}.*\.", words.replace("│", " ").split("(default")[0], re.DOTALL), words
    for option, default in KINDS[name].traits.defaults.items():
        assert f"--{option} {default}" in text, "which of its defaults are its own"
        (at,) = re.findall(r"\(default: (.*?)\)", explained[option], re.DOTALL)
        assert at == str(default)


@pytest.mark.parametrize(("name", "codec"), [*((name, "") for name in KINDS), *(("single", codec) for codec in CODECS)])
def test_help_is_one_screen_with_the_options_of_the_strategy_and_the_codec(
    monkeypatch: pytest.MonkeyPatch, name: str, codec: str
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    lines = help_of(name, *(["--codec", codec] if codec else [])).splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 100
    shown: list[type[Strategy] | type[Codec]] = [KINDS[name], *([CODECS[codec]] if codec else [])]
    for option in (option for kind in shown for option in options_of(kind)):
        assert re.search(rf"^  --{option}\b.* [A-Za-z]", "\n".join(lines), re.MULTILINE), "it is shown, and explained"
    assert lines[-1].endswith("--help all")


@pytest.mark.parametrize(
    ("command", "example", "shown"),
    [
        (command_line.main, "train --strategy param_server --n_gpus 4", {"strategy", "codec", *FIRST}),
        (simulate.main, "--n_gpus 16 --bandwidth 1gbit", {"strategy", "codec", "compute", "sweep", "bandwidth"}),
        (fully_sharded_builtin.main, "--n_gpus 4", {"codec", "block_modules", *FIRST}),
    ],
)
def test_help_begins_with_commands_and_shows_what_a_first_user_needs(
    monkeypatch: pytest.MonkeyPatch, command: Callable[..., int], example: str, shown: set[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "argv", ["gradwire train"])
    code, text = said_by(partial(command, ["--help"]))
    assert code == 0
    assert text.startswith("usage: gradwire train [OPTIONS]\n")
    assert shown <= set(re.findall(r"^  --(\w+)", text, re.MULTILINE))
    assert example in text
    assert "python train.py" not in text
    assert len(text.splitlines()) <= 45
    assert "--tensorboard" not in text
    code, rest = said_by(partial(command, ["--help", "all"]))
    assert (code, "--tensorboard" in rest) == (0, True)


def test_list_shows_the_table_and_starts_nothing(parsed: list[Options]) -> None:
    assert said("--list") == (0, f"{catalogue()}\n")
    assert parsed == []


# The options of the strategies

OPTIONS_OF_STRATEGIES = sorted({option for kind in STRATEGIES.values() for option in options_of(kind)})


@pytest.mark.parametrize(
    ("name", "option"), [("downpour", "aggregate"), ("single", "density"), ("ring_all_reduce_builtin", "n_push")]
)
def test_an_option_of_another_strategy_is_refused_and_its_owners_are_named(
    tmp_path: Path, name: str, option: str
) -> None:
    builtin = BUILTIN[name]() if name in BUILTIN else None
    results = str(tmp_path / "results")
    for value in ((f"--{option}", "1"), (f"--{option}=1",), (f"--{option.replace('_', '-')}", "1")):
        code, text = said("--strategy", name, "--results_dir", results, *value, builtin=builtin)
        owners = [other for other, kind in STRATEGIES.items() if option in options_of(kind)]
        owners += [f"--codec {other}" for other, kind in CODECS.items() if option in options_of(kind)]
        assert code == 2
        assert text == f"error: --{option}: not an option of --strategy {name}, but of {', '.join(owners)}\n"
    assert not (tmp_path / "results").exists()


OWN = {  # one of each type
    option.type: (name, option.name) for name, kind in STRATEGIES.items() for option in dataclasses.fields(kind)
}


@pytest.mark.parametrize(("name", "option"), OWN.values())
def test_an_option_of_the_strategy_reaches_it(tmp_path: Path, parsed: list[Options], name: str, option: str) -> None:
    value, others = other_value(STRATEGIES[name](), option), needs(STRATEGIES[name], option)
    given = [f"--{option}", str(value)] if not isinstance(value, bool) else [f"--{'' if value else 'no_'}{option}"]
    given += [text for other, needed in others.items() for text in (f"--{other}", needed)]
    code, text = said("--strategy", name, *given, "--results_dir", str(tmp_path), "--n_gpus",
                      "1" if KINDS[name].traits.ranks[1] == 1 else "4", "--device", "cpu")  # fmt: skip
    assert code == 0, text
    value = value if isinstance(value, str) else float(value)
    assert parsed[0].strategy == dataclasses.replace(STRATEGIES[name](), **{option: value} | others)
    assert parsed[0].recorded()[option] == value


# What is wrong


def foreign(named: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(2))])


def needs_a_closure(named: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.LBFGS([p for _, p in named])


LONG = "x" * 300
GPT = "--dataset text --model gpt --model_options"
SERVED = "--strategy param_server --n_gpus 3"
WRONG: list[Any] = [  # the arguments, and a part of the message
    ("--strategy param_server --n_gpus 1", "param_server needs at least 2"),
    ("--strategy single --n_gpus 2", "--workers_like"),
    ("--strategy ring", "--strategy ring: unknown; did you mean ring_all_reduce?"),
    ("--strategy backup_workers --restarts 1", "--restarts 1: --strategy backup_workers lets no worker"),
    ("--strategy downpour --n_fetch 1000", "--n_fetch 1000: must be at most 23, the steps of an epoch"),
    ("--optimizer_options lr=3", "--optimizer_options lr=3: must be NAME=VALUE, each once, of sgd's: momentum,"),
    ("--replay /nowhere/run", "error: --replay /nowhere/run: /nowhere/run.json is not the record of a run"),
    ("--resume /nowhere", "--resume /nowhere: no checkpoint there"),
    ("--batchsize 3", "did you mean --batch_size?"),
    ("--lr -0.1", "--lr -0.1: must be more than 0"),
    ("--optimizer_options nesterov=yes", "'yes' is no number"),
    ("--warmup 11", "--warmup 11.0: must be from 0 to the number of epochs, 10"),
    ("--global_batch_size 1 --n_gpus 2", "--global_batch_size"),
    ("--dataset tests.workload:not_picklable", "make locks and open files in __getitem__"),
    ("--model tests.workload:lazy --dataset tests.workload:moons", "has lazy layers"),
    (
        "--model tests.workload:batch_norm --dataset tests.workload:moons --n_gpus 2 --global_batch_size 188",
        "leaves a worker one sample",
    ),
    ("--results_dir /dev/null/results", "--results_dir: cannot write in /dev/null/results"),
    ("--save /dev/null/model.pt", "--save: cannot write"),
    ("--evaluator", "--evaluator: needs checkpoints to score; give --checkpoint_every"),
    (f"--checkpoint_dir {LONG} --checkpoint_every 5", "has a name of more than 255 bytes"),
    ("--codec topj", "--codec topj: unknown; did you mean topk? there are none,"),
    ("--codec topk --strategy downpour", "--codec topk: --strategy downpour cannot carry it (gathered: codes"),
    ("--codec fp16 --strategy sharded_ring", "--codec fp16: --strategy sharded_ring cannot carry it (dense: codes"),
    ("--codec topk --rank 2", "--rank: not an option of --strategy ring_all_reduce --codec topk, but of"),
    ("--codec_scope vector", "--codec_scope vector: there is no codec; give --codec too"),
    ("--codec topk --codec_scope layer", "--codec_scope layer: unknown; there are tensor, vector"),
    ("--codec powersgd --codec_scope vector", "--codec_scope vector: powersgd codes tensor by tensor; leave"),
    ("--codec dgc --optimizer adam", "--optimizer adam: dgc carries the momentum of sgd; take sgd or another"),
    ("--strategy dgs --density 0", "--density 0.0: must be above 0 and at most 1"),
    ("--strategy dgs --momentum 0", "--momentum 0.0: dgs divides by it; give one such as 0.7"),
    ("--strategy dgs --optimizer adam", "--optimizer adam: dgs is SGD with momentum; take sgd"),
    ("--strategy dgs --codec topk", "--codec topk: dgs is a codec itself, with --density; leave --codec out"),
    ("--codec blosc --shuffle bits", "--shuffle bits: must be one of bit, byte, none"),
    ("--strategy not_there:Mine", "there is no module not_there; put not_there.py in the current dir"),
    (f"{SERVED} --slow 0:5", "--slow 0: not a rank that computes; those are 1, 2"),
    (f"{SERVED} --slow x:y", "--slow x:y: must be RANK:FACTOR, such as 2:5"),
    (f"{SERVED} --jitter nan", "--jitter nan: must be at least 0"),
    ("--strategy param_server_builtin --n_gpus 2 --slow 1:5", "--slow: param_server_builtin is one process"),
    ("--n_gpus 3 --bandwidth fast", "--bandwidth fast: write a bandwidth such as 1gbit"),
    ("--n_gpus 3 --timeout 60 --bandwidth 0.1B/s", "--timeout 60: on this link the initial parameters"),
    ("--strategy inconsistent_reads --n_gpus 3 --latency 1ms", "--bandwidth, --latency: the workers of incons"),
    ("--amp half", "--amp half: unknown; there are none, bf16, fp16"),
    ("--amp fp16", "--amp fp16: needs a GPU; take --amp bf16"),
    ("--dtype bfloat16", "--dtype bfloat16: of steps that are only timed; to train in it, give --amp bf16"),
    ("--amp bf16 --dtype float64", "--amp bf16: autocast is for float32, not --dtype float64; leave one out"),
    ("--decay matrices", "--decay matrices: there is no decay; give --weight_decay too"),
    ("--strategy dgs --weight_decay 0.1 --decay matrices", "--decay: dgs has one decay for all of x;"),
    ("--optimizer sdg", "--optimizer sdg: unknown; did you mean sgd? there are"),
    ("--optimizer builtins:list", "--optimizer builtins:list: returned a list; return a torch.optim.Optimizer"),
    (f"--optimizer {__name__}:no", f"--optimizer {__name__}:no: {__file__} has no no; define it"),
    (f"--optimizer {__name__}:foreign --lr 0.3", f"--lr 0.3: {__name__}:foreign decides that itself; leave it"),
    (f"--optimizer {__name__}:foreign", ":foreign: has parameters that it was not given; make it of those"),
    (f"--optimizer {__name__}:needs_a_closure", ":needs_a_closure: takes no step with the parameters of --mo"),
    ("--optimizer muon --optimizer_options ns_steps=1000", "--optimizer muon: takes no step with the"),
    ("--dataset text", "--model mlp: takes no text; take --model gpt"),
    ("--dataset text --model gpt --task classification", "--task classification: --dataset text has no classes;"),
    ("--dataset text --model gpt --context 0", "--context 0: must be at least 1"),
    ("--context 32", "--context 32: it is only for --dataset text, textfile; leave it out"),
    ("--model gpt", "--model gpt: needs a row of tokens, but a sample is (1, 8, 8); take --dataset text"),
    (f"{GPT} layer=4", "--model_options layer=4: --model gpt takes layers: int = 2, width: int = 96, "),
    (f"{GPT} layers=4.0", "--model_options layers=4.0: --model gpt takes layers: int = 2"),
    (f"{GPT} width=30", "--model_options width=30: must be a multiple of heads=4"),
    (f"{GPT} dropout=1", "--model_options dropout=1: must be at least 0 and less than 1"),
    (f"{GPT} context=63", "--model_options context=63: a sample has 64 tokens; take as many, or a smaller --context"),
    *(
        (f"{GPT} {wrong}", f"--model_options {wrong}: must be NAME=VALUE,NAME=VALUE, each once")
        for wrong in ("layers", "layers=4,layers=5", "layers=four", "layers=1)+(1")
    ),
    ("--model_options width=3", "--model_options width=3: --model mlp has none; leave it out"),
    pytest.param(
        "--tensorboard /dev/null/tb",
        "--tensorboard: cannot write in /dev/null/tb",
        marks=pytest.mark.skipif(find_spec("tensorboard") is None, reason="needs pip install -e '.[tensorboard]'"),
    ),
]


@pytest.mark.parametrize(("line", "expected"), WRONG)
def test_bad_input_is_one_line_that_names_the_option(tmp_path: Path, line: str, expected: str) -> None:
    results = [] if "--results_dir" in line else ["--results_dir", str(tmp_path / "results")]
    builtin = next((kind() for name, kind in BUILTIN.items() if name in line), None)
    code, text = said("--device", "cpu", *results, *line.split(" "), builtin=builtin)  # which may end in an empty one
    assert code == 2, text
    assert text.startswith("error: ")
    assert text.count("\n") == 1, text
    assert expected in text
    assert not (tmp_path / "results").exists(), "nothing half-written"


VALUES = st.one_of(
    st.text(st.characters(exclude_characters=":"), max_size=12),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(
        ["", "nan", "inf", "-1", "0", "1e308", "None", "True", "..", "/", *STRATEGIES, "mlp", "adam", "cuda"]
    ),
)
ELSEWHERE = ("download", "results_dir", "save", "data_dir")  # they would write, or look, where no test should
ALL = [*NAMES, *OPTIONS_OF_STRATEGIES]
OPTIONS = st.sampled_from([f"--{name}" for name in ALL if name not in ELSEWHERE])
LINES = st.lists(st.one_of(st.tuples(OPTIONS, VALUES), st.tuples(st.text(max_size=8))), max_size=4)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(line=LINES)
def test_no_line_of_options_ends_in_a_traceback(tmp_path: Path, line: list[tuple[str, ...]]) -> None:
    arguments = [part for pair in line for part in pair if part not in ("-h", "--help")]
    code, text = said("--device", "cpu", "--results_dir", str(tmp_path), *arguments)
    assert code in (0, 2)
    assert code == 0 or text.startswith("error: ")
    assert "Traceback" not in text
