"""Every codec on every strategy that carries its kind, by being in the tables: what is sent, and what comes of it."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from gradwire import Options
from gradwire.command_line import parse_run
from gradwire.compression import CODECS, DENSE, DGC, LINEAR, Codec, PowerSGD, RandomK, TopK
from gradwire.core.records.errors import UsageError
from gradwire.core.records.tables import ledger
from gradwire.core.strategy.cost_model import evaluate_cost
from gradwire.core.training.options import names_with_strategy_defaults
from gradwire.virtual_time.launcher import Death
from strategies import (
    STRATEGIES,
    AsyncParamServer,
    Cost,
    LocalSGD,
    NaiveAllReduce,
    ParamServer,
    RingAllReduce,
    Strategy,
    Traffic,
    Traits,
)
from strategies.all_reduce.all_reduce_sgd import AllReduceSGD
from tests.ranks import ENGINES, LIMIT, launch, virtual_time
from tests.ranks import run as run_on
from tests.runs import TRUSTED, said
from tests.strategies.kinds import assert_same, exact, start
from tests.strategies.loops import Task, trajectories
from tests.strategies.runs import BATCH_NORM, made
from tests.strategies.test_every_strategy_messages import counted, counted_steps

Kind = type[Strategy]
CODING = {name: kind for name, kind in CODECS.items() if name != "none"}
PAIRS = [
    (strategy, codec)
    for strategy in STRATEGIES.values()
    for codec in CODING.values()
    if codec.kind in strategy.traits.carries
]
SYNCHRONOUS = [pair for pair in PAIRS if not pair[0].traits.asynchronous]
EACH = (CODECS["fp16"], RandomK, TopK)  # a codec of each kind
N = 4
TRAVEL = dict.fromkeys(  # in every run, in the one process that keeps ranks
    (("ring_all_reduce", "process_group"), ("param_server", "shared_memory")), pytest.mark.xdist_group("torchrun")
)


@dataclasses.dataclass(kw_only=True)
class ByRankZero(NaiveAllReduce):
    """A strategy with an all-reduce of its own, by which codes that can be added go too: rank 0 sums all of them."""

    traits = Traits(carries=frozenset({DENSE, LINEAR}))

    def cost(self, kind: str | None = None) -> Cost:
        """A linear codec makes two all-reduces."""
        messages = "4 (N - 1) / N" if kind == LINEAR else "2 (N - 1) / N"
        return Cost(worker=Traffic(messages, "2 (N - 1) G / N"))


OWN: list[tuple[Kind, type[Codec]]] = [(ByRankZero, CODECS[name]) for name in ("fp16", "random_k", "powersgd")]


def named(kind: type[Any]) -> str:
    return str(kind.name)


def once_each(pairs: list[tuple[Kind, type[Codec]]], default: Callable[[Kind, type[Codec]], bool]) -> list[Any]:
    """The pairs, of which all but those that are `default` are exhaustive."""
    return [
        pytest.param(*pair, marks=[] if default(*pair) else [pytest.mark.exhaustive], id="-".join(map(named, pair)))
        for pair in pairs
    ]


def small_codec(kind: type[Codec]) -> Codec:
    """The codec with options that suit 66 parameters."""
    wanted = {"density": 0.25, "warmup_epochs": 0, "bucket": 8}
    return kind(**{field.name: wanted[field.name] for field in dataclasses.fields(kind) if field.name in wanted})


# The ledger


@pytest.mark.parametrize(
    ("strategy", "codec"),
    once_each(
        PAIRS + OWN, lambda strategy, codec: strategy in (ParamServer, RingAllReduce, ByRankZero) or codec in EACH
    ),
)
def test_the_ledger_is_the_closed_form(strategy: Kind, codec: type[Codec]) -> None:
    task = Task(exact(strategy), N, "plain", codec=small_codec(codec))
    ranks = [rank[0] for rank in start(strategy, counted, N, [task], record=True)]
    events, (_, layout, x, _) = pd.concat([rank[0] for rank in ranks]), ranks[0][:4]
    if strategy.traits.agree and not strategy.traits.asynchronous:
        assert all(torch.equal(rank[2], x) for rank in ranks), "replicas agree"
    assert task.make_codec is not None
    made = task.make_codec(layout, x, 0, True)
    values, indices, headers = made.count()
    coded = task.coded(layout, x)
    pairs, steps = ledger(events), counted_steps(task.strategy)
    for role, traffic in task.strategy.cost(codec.kind).by_role.items():
        own = [rank for rank, of_rank in enumerate(task.roles) if of_rank == role]
        sent = pairs[pairs["src"].isin(own)]
        messages, nbytes = sent[["messages", "bytes"]].sum() / len(own) / steps
        expected = evaluate_cost(task.strategy, traffic, N, x.nbytes, coded)
        assert messages == pytest.approx(expected[0])
        if made.exact_size:
            uneven = issubclass(strategy, AllReduceSGD | LocalSGD)  # a ring's chunks may differ by one element
            assert nbytes == pytest.approx(expected[1], rel=0.02 if uneven else 1e-12)
        else:
            assert nbytes <= expected[1]
    marks = events[events["phase"].str.endswith("_bytes")].groupby("phase")["value"].sum()
    of_codes = marks[["value_bytes", "index_bytes", "header_bytes"]].sum()
    by_workers = [rank for rank, role in enumerate(task.roles) if role == "worker"]
    assert of_codes == pytest.approx(pairs[pairs["src"].isin(by_workers)]["bytes"].sum(), abs=8)
    if made.exact_size:
        each = of_codes / (values + indices + headers)
        assert marks["index_bytes"] == pytest.approx(each * indices, rel=0.02)
        assert marks["header_bytes"] == pytest.approx(each * headers, rel=0.02)
    workers = task.roles.count("worker")
    _, dense = evaluate_cost(task.strategy, task.strategy.cost().worker, N, x.nbytes)
    assert marks["dense_bytes"] == pytest.approx(steps * workers * dense, rel=1e-3)


# What comes of it


def coded_task(strategy: Kind, codec: type[Codec]) -> Task:
    return Task(exact(strategy), N, codec=small_codec(codec))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("strategy", "codec"), SYNCHRONOUS + OWN, ids=named)
def test_processes_give_the_bits_of_virtual_time(strategy: Kind, codec: type[Codec]) -> None:
    task = coded_task(strategy, codec)
    virtual = virtual_time(N).launch(trajectories, N, [task])
    assert launch(trajectories, N, [task], timeout=LIMIT) == virtual


@pytest.mark.parametrize(
    ("strategy", "on"),
    [
        pytest.param(kind, on, marks=TRAVEL.get((kind.name, on), pytest.mark.exhaustive), id=f"{kind.name}-{on}")
        for kind in (RingAllReduce(), ParamServer())
        for on in ENGINES
        if on != "simulated"
    ],
)
def test_codes_of_any_length_travel_on_every_transport(strategy: Strategy, on: str) -> None:
    tasks = [Task(strategy, 3, codec=small_codec(CODECS[name])) for name in ("fp16", "blosc", "topk", "powersgd")]
    assert run_on(on, trajectories, 3, tasks) == virtual_time(3).launch(trajectories, 3, tasks)


def test_a_codec_may_have_defaults_of_its_own_for_options_of_the_run(tmp_path: Path) -> None:
    """Unless the option is given, or the strategy has a default too."""
    assert Options(codec=RandomK()).momentum == RandomK.defaults["momentum"] != Options().momentum == 0.9
    assert Options(codec=RandomK(), momentum=0.9).momentum == 0.9
    assert Options(codec=RandomK(), strategy=AsyncParamServer()).momentum == 0
    assert Options(codec=RandomK(), optimizer="adamw").momentum == 0.9, "a momentum of sgd is no beta"
    assert parse_run(["--codec", "random_k", "--optimizer", "adamw"], None, "").momentum == 0.9
    assert parse_run(["--optimizer=adam", "--strategy", "async_param_server"], None, "").momentum == 0.9
    assert parse_run(["--codec", "random_k"], None, "").momentum == RandomK.defaults["momentum"]
    assert parse_run(["--codec", "random_k", "--momentum", "0.9"], None, "").momentum == 0.9
    made(tmp_path, "run", RingAllReduce(), n_gpus=2, momentum=0.9, checkpoint_every=5)
    resumed = ["--resume", str(tmp_path / "run.checkpoints"), *TRUSTED]
    assert parse_run([*resumed, "--codec", "random_k"], None, "").momentum == 0.9, "that of the record"
    assert all(set(codec.defaults) <= set(names_with_strategy_defaults()) for codec in CODECS.values())


@pytest.mark.parametrize("codec", [TopK(density=1.0), RandomK(density=1.0), DGC(density=1.0, warmup_epochs=0)])
@pytest.mark.parametrize(("strategy", "scope"), [(ParamServer(), "tensor"), (RingAllReduce(), "vector")])
def test_with_all_elements_it_is_the_dense_strategy(strategy: Strategy, codec: Codec, scope: str) -> None:
    dense, coded = (Task(strategy, N, "plain", epochs=1, codec=chosen, scope=scope) for chosen in (None, codec))
    assert_same(coded, dense, 1e-10 if isinstance(strategy, RingAllReduce) else 0.0)  # whose sums have another order


# Death, return, and a resumed run


@pytest.mark.parametrize(
    ("strategy", "codec"),
    once_each([(AsyncParamServer, codec) for codec in CODING.values()], lambda _, codec: codec is TopK),
)
def test_a_worker_dies_and_returns_and_its_link_begins_anew(tmp_path: Path, strategy: Kind, codec: type[Codec]) -> None:
    deaths = [Death(3, 0.02, 0.03)]
    found = made(tmp_path, "run", strategy(), codec=small_codec(codec), epochs=4, deaths=deaths)
    assert [death["returned"] for death in found["deaths"]] == [True]
    assert found["test_accuracy"] > 0.8


SPARSE_LO_CO, DILOCO = LocalSGD(local_steps=2), LocalSGD(local_steps=2, outer_optimizer="nesterov")
RESUMED: list[tuple[Strategy, Codec]] = [
    (ParamServer(), TopK(density=0.25)), (RingAllReduce(), PowerSGD(rank=1)), (DILOCO, PowerSGD(rank=1)),
    (SPARSE_LO_CO, TopK(density=0.2, error_decay=0.9)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "codec"),
    [
        *RESUMED,
        *(pytest.param(strategy(), small_codec(codec), marks=pytest.mark.exhaustive)
          for strategy in (ParamServer, RingAllReduce) for codec in CODING.values()),
    ],
    ids=named,
)  # fmt: skip
def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, strategy: Strategy, codec: Codec) -> None:
    """Also from amid a round of local steps: the residual of the rounds before goes on."""
    given = BATCH_NORM | {"codec": codec, "n_gpus": 3, "checkpoint_every": 3, "epochs": 1}  # a matrix that is cut
    whole = made(tmp_path, "whole", strategy, checkpoint_keep=100, **given)
    path = str(tmp_path / "whole.checkpoints" / "step-00000003")
    again = made(tmp_path, "again", strategy, resume=path, **given | {"checkpoint_every": 0})
    assert again["parameter_hash"] == whole["parameter_hash"]


# What is refused


def test_a_gradient_that_is_not_finite_names_its_tensor(tmp_path: Path) -> None:
    """The model's loss is finite, and the gradient of one tensor is not."""
    code, text = said(
        "--dataset", "tests.workload:moons", "--model", "tests.workload:infinite_gradient", "--codec", "topk",
        "--n_gpus", "2", "--device", "cpu", "--epochs", "1", "--results_dir", str(tmp_path),
    )  # fmt: skip
    assert code == 1
    assert "the gradient of wrong.scale has the value" in text


def test_codec_of_a_run_is_recorded_and_cannot_change(tmp_path: Path) -> None:
    found = made(tmp_path, "kept", RingAllReduce(), codec=TopK(density=0.5), n_gpus=2, checkpoint_every=5)
    assert (found["options"]["codec"], found["options"]["density"]) == ("topk", 0.5)
    with pytest.raises(UsageError, match=r"was made with --codec topk, not fp16, which cannot change"):
        made(tmp_path, "other", RingAllReduce(), codec=CODECS["fp16"](), n_gpus=2,
             resume=str(tmp_path / "kept.checkpoints"))  # fmt: skip
