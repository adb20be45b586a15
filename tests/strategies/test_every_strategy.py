"""Every strategy, by being in the table: its class is complete, and its steps are those of one process."""

import ast
import dataclasses
import inspect
import itertools
import pickle
import textwrap
import typing
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from records.errors import UsageError
from strategies import RunSize, Strategy
from strategies.common import forms
from tests.ranks import LIMIT, launch
from tests.runs import ROOT
from tests.strategies.loops import (
    BATCH,
    N_SAMPLES,
    N_STEPS,
    OPTIMIZERS,
    Rank,
    Task,
    X,
    Y,
    describe,
    exact,
    fit,
    is_virtual,
    make_model,
    sizes,
    start,
    trajectories,
    with_workers,
)
from training.evaluation import REPORTER
from training.names import check_class, strategy_class
from training.options import Options, names_with_strategy_defaults, option_names
from training.run import expendable
from transports.base import Transport
from workloads.batches import BatchPlan

Kind = type[Strategy]

# The class


def test_the_class_is_found_by_its_name(kind: Kind) -> None:
    assert strategy_class(kind.name) is kind
    assert check_class(kind) is kind


def test_its_first_line_describes_it(kind: Kind) -> None:
    assert "__doc__" in vars(kind)
    assert not forms.describe(kind).startswith(f"{kind.__name__}("), "a docstring of its own, not that of dataclasses"
    lines, first = inspect.getsourcelines(kind)
    at = first + next(i for i, line in enumerate(lines) if '"""' in line)
    where = f"{inspect.getsourcefile(kind)}:{at}: the docstring of {kind.__name__}"
    length = len(forms.describe(kind))
    assert 20 < length <= 120, f"{where}: its first paragraph has {length} characters, and must have 21 to 120"
    assert forms.describe(kind).endswith("."), f"{where}: its first paragraph must end with a full stop"


def _lineage(kind: Kind) -> list[type]:
    return [one for one in kind.__mro__ if issubclass(one, Strategy) and one is not Strategy]


def _helps(kind: Kind) -> dict[str, str]:
    """The docstring below each field, as tyro finds it."""
    found: dict[str, str] = {}
    for one in _lineage(kind):
        body = typing.cast(ast.ClassDef, ast.parse(textwrap.dedent(inspect.getsource(one))).body[0]).body
        for field, below in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                text = ast.literal_eval(below.value)
                found.setdefault(ast.unparse(field.target), text)
    return found


def test_every_option_has_a_default_and_a_help(kind: Kind) -> None:
    helps = _helps(kind)
    for field in dataclasses.fields(kind):
        assert len(helps.get(field.name, "")) > 10, f"{field.name} has no docstring below it"
    assert pickle.loads(pickle.dumps(kind())) == kind()


def test_every_annotation_is_an_option_or_a_classvar(kind: Kind) -> None:
    options = {field.name for field in dataclasses.fields(kind)}
    for one in _lineage(kind):
        for name, hint in inspect.get_annotations(one).items():
            said = hint if isinstance(hint, str) else str(hint)
            assert name in options or "ClassVar" in said or typing.get_origin(hint) is ClassVar, name


def test_its_options_are_not_those_of_every_run(kind: Kind) -> None:
    assert not {field.name for field in dataclasses.fields(kind)} & set(option_names())


def test_it_has_defaults_only_where_a_strategy_may(kind: Kind) -> None:
    assert set(kind.traits.defaults) <= set(names_with_strategy_defaults())


def test_the_functions_that_dataclass_makes_are_no_source(kind: Kind) -> None:
    made = typing.cast(Kind, dataclasses.make_dataclass(kind.__name__, [], bases=(kind,)))
    assert forms.sources(made) == forms.sources(kind)
    assert all(ROOT in Path(file).parents for file in forms.sources(kind)) or ":" in kind.name


def test_it_says_what_each_role_sends(kind: Kind) -> None:
    seen: set[str] = set()
    for n_gpus in sizes(kind):
        roles = kind().roles(n_gpus)
        assert len(roles) == n_gpus
        assert set(roles) <= {"server", "worker"}
        assert "worker" in roles
        seen |= set(roles)
        for traffic in kind().cost().by_role.values():
            messages, nbytes = forms.closed_form(kind(), traffic, n_gpus, 1000)
            assert messages >= 0
            assert nbytes >= 0
    assert set(kind().cost().by_role) == seen


def test_whoever_reports_cannot_die(survivor: Kind) -> None:
    assert REPORTER not in expendable(Options(strategy=survivor(), n_gpus=fit(survivor, 4)))


# Its steps are those of one process

CASES = [("sgd", 0.0), ("sgd", 0.05), ("adam", 0.0)]


def one_process(workers: int, optimizer: str, clip_norm: float, epochs: int) -> list[torch.Tensor]:
    """Plain torch, nothing of this project but the batches: the parameters after every step."""
    model, trajectory = make_model(), []
    plan = BatchPlan(N_SAMPLES, workers, BATCH, seed=3)
    optim = OPTIMIZERS[optimizer](list(model.parameters()))
    for i in range(epochs * N_STEPS):
        batch = plan.batch(1 + i // N_STEPS, i % N_STEPS)
        optim.zero_grad()
        F.cross_entropy(model(X[batch]), Y[batch]).backward()
        if clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optim.step()
        trajectory.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    return trajectory


@pytest.mark.with_baselines
def test_it_takes_the_same_steps_as_one_process(synchronous: Kind, n_gpus: int) -> None:
    tasks = [Task(exact(synchronous), n_gpus, optimizer, clip_norm) for optimizer, clip_norm in CASES]
    roles = tasks[0].roles
    ranks = start(synchronous, trajectories, len(roles), tasks)
    if is_virtual(synchronous) and n_gpus == with_workers(synchronous, 3):
        assert launch(trajectories, len(roles), tasks, timeout=LIMIT) == ranks, "processes give the same bits"
    for case, task in enumerate(tasks):
        where = f"{task.optimizer}, clip_norm {task.clip_norm}"
        expected = torch.stack(one_process(task.plan.workers, task.optimizer, task.clip_norm, task.epochs))
        found = [rank[case] for rank in ranks]
        of_workers = [seen for seen, role in zip(found, roles, strict=True) if role == "worker"]
        for seen in of_workers:
            x = torch.tensor(seen, dtype=torch.float64)
            torch.testing.assert_close(x, expected, rtol=1e-10, atol=1e-12, msg=f"{where}: not those of one process")
            assert seen == of_workers[0], f"{where}: replicas must be bit-identical after every step"
        for seen, role in zip(found, roles, strict=True):
            if role == "server":
                assert seen == of_workers[0][N_STEPS - 1 :: N_STEPS], f"{where}: the server's x is not the workers'"


# Samples weigh the gradients, whatever the dtype

PARTS = [[299, 1], [300, 45], [1, 300, 45], [7, 299, 1, 300]]
DTYPES = ["float64", "float32", "bfloat16", "float16"]


def weighted(transport: Transport, task: Task, dtypes: list[str], parts: list[int]) -> list[list[float]]:
    """One step of x = 0 with learning rate 1 and constant gradients 1, 2, ...: x is the mean gradient, negated."""
    found = []
    for dtype in dtypes:
        model = nn.Linear(3, 3).to(getattr(torch, dtype))
        rank = Rank(transport, task, model)
        rank.replica.x.zero_()
        if rank.is_server:
            rank.strategy.serve()
        else:
            rank.constant_step(1.0 + rank.worker, parts[rank.worker])
        rank.strategy.finish()
        found.append((-rank.replica.x).tolist())
        rank.close()
    return found


@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_the_mean_is_that_of_the_samples_in_every_dtype(synchronous: Kind, parts: list[int]) -> None:
    fitting = [n_gpus for n_gpus in sizes(synchronous) if synchronous().roles(n_gpus).count("worker") == len(parts)]
    if not fitting:
        pytest.skip(f"cannot be {len(parts)} workers")
    task = Task(exact(synchronous), fitting[0], "unit")
    expected = sum(n * (1.0 + worker) for worker, n in enumerate(parts)) / sum(parts)
    for rank, found in enumerate(start(synchronous, weighted, len(task.roles), task, DTYPES, parts)):
        for dtype, x in zip(DTYPES, found, strict=True):
            precision = 4 * torch.finfo(getattr(torch, dtype)).eps
            assert x == pytest.approx([expected] * len(x), rel=precision), f"rank {rank}, {dtype}"


# The end of an epoch


def after_finish(transport: Transport, task: Task, buffers: bool) -> dict[str, Any]:
    """Two epochs of the loop in `Strategy`'s docstring; each worker has BatchNorm statistics of its own."""
    rank = Rank(transport, task, nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)) if buffers else nn.Linear(2, 2))
    for _ in range(2):
        if rank.is_server:
            rank.strategy.serve()
        else:
            rank.replica.b.fill_(float(transport.rank))
            for _ in range(3):
                rank.constant_step(1.0 + rank.worker, 1)
        rank.strategy.finish()
    found = {"b": rank.replica.b.tolist(), "x": rank.x().tolist(), "model": rank.strategy.model().tolist()}
    rank.close()
    return found


@cache
def ended(kind: Kind, buffers: bool) -> list[dict[str, Any]]:
    task = Task(kind(), fit(kind, 4))
    return start(kind, after_finish, len(task.roles), task, buffers)


@pytest.mark.parametrize("buffers", [False, True], ids=["no buffers", "buffers"])
def test_after_an_epoch_all_ranks_show_the_same_model(kind: Kind, buffers: bool) -> None:
    """Replicas that agree are that model, and their buffers the mean of the workers'."""
    ranks = ended(kind, buffers)
    assert len({str(rank["model"]) for rank in ranks}) == 1
    if not kind.traits.agree:
        return
    workers = [rank for rank, role in enumerate(kind().roles(len(ranks))) if role == "worker"]
    for rank in ranks:
        assert rank["x"] == rank["model"]
        assert rank["b"] == pytest.approx([sum(workers) / len(workers)] * 4 if buffers else [])
        assert rank["b"] == ranks[0]["b"]


# A state continues


def resumed_in_the_middle(transport: Transport, task: Task) -> bool:
    """Train, keep a state_dict, train on; load it and train on again: the same parameters?"""
    rank = Rank(transport, task)
    rank.epoch(1)
    transport.barrier()
    state = rank.strategy.state_dict()
    rank.epoch(2)
    transport.barrier()
    expected = rank.x()
    rank.strategy.load_state_dict(state)
    rank.epoch(2)
    rank.close()
    return torch.equal(rank.x(), expected)


def test_a_state_dict_continues_bit_for_bit(determined: Kind) -> None:
    task = Task(exact(determined), fit(determined, 3), "adam")
    assert all(start(determined, resumed_in_the_middle, len(task.roles), task)), describe(task.strategy)


# What is refused

Refused = tuple[dict[str, Any], dict[str, Any], str]  # options, what is special of the run, the message
INF, NAN = float("inf"), float("nan")
IN_MEMORY: list[Refused] = [
    ({}, {"shared_memory": False}, "--strategy NAME: needs shared memory; run it without torchrun, in real time"),
    ({}, {"held_back": True}, "--bandwidth, --latency: the workers of NAME read x in shared memory"),
    ({}, {"replayed": True}, "--replay: that run has inconsistent reads"),
]
AGGREGATE: list[Refused] = [
    ({"aggregate": 0}, {}, "--aggregate 0: must be at least 1"),
    ({"aggregate": 13}, {}, "--aggregate 13: must be at most 12, the gradients of an epoch"),
]
NESTEROV = {"outer_optimizer": "nesterov"}
REFUSED: dict[str, list[Refused]] = {
    "ad_psgd": [({}, {"replayed": True}, "--replay: with NAME every rank takes messages in an order of its own")],
    "async_param_server": [*AGGREGATE, ({"max_staleness": -1}, {}, "--max_staleness -1: must be at least 0")],
    "backup_workers": [
        ({"n_backup": 3}, {}, "--n_backup 3: must be fewer than the 3 workers"),
        ({"n_backup": -1}, {}, "--n_backup -1: must be at least 0"),
    ],
    "downpour": [
        ({"n_push": 0}, {}, "--n_push 0: must be at least 1"),
        ({"n_push": 5}, {}, "--n_push 5: must be at most 4, the steps of an epoch"),
        ({"n_fetch": 0}, {}, "--n_fetch 0: must be at least 1"),
        ({"n_fetch": 5}, {}, "--n_fetch 5: must be at most 4, the steps of an epoch"),
    ],
    "easgd": [
        ({"tau": 0}, {}, "--tau 0: must be at least 1"),
        ({"tau": 5}, {}, "--tau 5: must be at most 4, the steps of an epoch"),
        *[({"alpha": alpha}, {}, f"--alpha {alpha}: must be above 0 and below 1") for alpha in (0.0, 1.0, INF, NAN)],
    ],
    "gossip": [({"topology": "star"}, {}, "--topology star: unknown; there are ring, exponential")],
    "hogwild": IN_MEMORY,
    "hogwild_pp": [
        *IN_MEMORY,
        ({"cluster_size": 0}, {}, "--cluster_size 0: must be at least 1"),
        ({"sync_delay": 0}, {}, "--sync_delay 0: must be at least 1"),
        ({"tolerance": -1.0}, {}, "--tolerance -1.0: must be at least 0"),
    ],
    "inconsistent_reads": [*IN_MEMORY, *AGGREGATE],
    "local_sgd": [
        ({"local_steps": 0}, {}, "--local_steps 0: must be at least 1"),
        ({"outer_optimizer": "nestrov"}, {}, "--outer_optimizer nestrov: unknown; did you mean nesterov? "),
        ({"outer_lr": 0.5}, {}, "--outer_lr 0.5: averaging has none"),
        ({"outer_momentum": 0.5}, {}, "--outer_momentum 0.5: averaging has none"),
        (NESTEROV | {"outer_momentum": 1.0}, {}, "--outer_momentum 1.0: must be"),
        (NESTEROV | {"outer_lr": -1.0}, {}, "--outer_lr -1.0: must be"),
        (NESTEROV | {"outer_lr": NAN}, {}, "--outer_lr nan: must be"),
    ],
    "overlapped_ring": [
        ({"bucket_mb": size}, {}, f"--bucket_mb {size}: must be above 0 and at most 1e9, such as 25")
        for size in (0.0, -1.0, NAN, INF)
    ],
    "sharded_param_server": [
        ({"servers": 1}, {}, "--servers 1: must be at least 2"),
        ({"servers": 4}, {}, "--servers 4: must be at most 3, all processes but one"),
    ],
    "sparta": [
        ({"fraction": part}, {}, f"--fraction {part}: must be above 0 and at most 1") for part in (0.0, -0.1, 1.1, NAN)
    ],
}


def test_options_out_of_range_are_refused_in_one_line(kind: Kind) -> None:
    """In a run of 4 ranks and 4 steps an epoch; its defaults are not refused."""
    size = RunSize(4, kind().roles(fit(kind, 4)).count("worker"), 4)
    if fit(kind, 4) == 4:
        kind().check(size)
    for options, run, message in REFUSED.get(kind.name, []):
        with pytest.raises(UsageError) as caught:
            kind(**options).check(dataclasses.replace(size, **run))
        assert str(caught.value).startswith(message.replace("NAME", kind.name))
        assert "\n" not in str(caught.value)
