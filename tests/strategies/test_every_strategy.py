"""Every strategy, by being in the table: its class is complete, and its steps are those of one process."""

import ast
import dataclasses
import inspect
import itertools
import pickle
import re
import textwrap
import typing
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradwire.core.strategy import cost_model
from gradwire.core.training.checks import check_class
from gradwire.core.training.options import names_with_strategy_defaults
from gradwire.core.training.progress import REPORTER
from gradwire.core.training.report import remarks
from gradwire.core.training.run import expendable
from gradwire.core.transports.base import Transport
from gradwire.core.workloads.batches import BatchPlan
from gradwire.names import strategy_class
from gradwire.options import Options, option_names
from gradwire.virtual_time.launcher import VirtualTime
from gradwire.virtual_time.network import OneSwitch
from strategies import Hogwild, Strategy
from tests.runs import ROOT
from tests.strategies.kinds import exact, fit, sizes, start
from tests.strategies.loops import BATCH, N_SAMPLES, N_STEPS, OPTIMIZERS, Rank, Task, X, Y, make_model, trajectories

Kind = type[Strategy]

# The class


def test_the_class_is_found_by_its_name_and_its_files_are_its_source(kind: Kind) -> None:
    assert strategy_class(kind.name) is check_class(kind, Options) is kind
    made: Kind = dataclasses.dataclass(type(kind.__name__, (kind,), {"__module__": kind.__module__}))
    assert cost_model.sources(made) == cost_model.sources(kind), "the functions that dataclass makes are no source"
    assert all(ROOT in Path(file).parents for file in cost_model.sources(kind)) or ":" in kind.name


def test_its_first_line_describes_it(kind: Kind) -> None:
    assert "__doc__" in vars(kind)
    assert not cost_model.describe(kind).startswith(f"{kind.__name__}("), (
        "a docstring of its own, not that of dataclasses"
    )
    assert re.fullmatch(r".{20,119}\.", cost_model.describe(kind)), "21 to 120 characters and a full stop at the end"


def test_a_run_says_whose_the_scores_are_where_replicas_differ(kind: Kind) -> None:
    options, launcher = Options(strategy=kind()), VirtualTime(OneSwitch(4, 1e9, 0.0), lambda *_: 0.0).launcher()
    found = [remark for remark in remarks(options, launcher) if "may differ" in remark]
    assert bool(found) != kind.traits.agree
    assert all(re.search(r"; the scores are of (?!See |.*, and measure)", text) for text in found)


def _lineage(kind: Kind) -> list[type]:
    return [base for base in kind.__mro__ if issubclass(base, Strategy) and base is not Strategy]


def _helps(kind: Kind) -> dict[str, str]:
    """The docstring below each field, as tyro finds it."""
    found: dict[str, str] = {}
    for base in _lineage(kind):
        body = typing.cast(ast.ClassDef, ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]).body
        for field, below in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                found.setdefault(ast.unparse(field.target), ast.literal_eval(below.value))
    return found


def test_its_options(kind: Kind) -> None:
    """Each has a default, a help and a name of its own; every annotation is an option or a ClassVar."""
    helps, options = _helps(kind), {field.name for field in dataclasses.fields(kind)}
    for name in options:
        assert len(helps.get(name, "")) > 10, f"{name} has no docstring below it"
    assert pickle.loads(pickle.dumps(kind())) == kind()
    for base in _lineage(kind):
        for name, hint in inspect.get_annotations(base).items():
            assert name in options or "ClassVar" in str(hint), name
    assert not options & set(option_names()), "an option of every run"
    assert set(kind.traits.defaults) <= set(names_with_strategy_defaults())


def test_it_says_what_each_role_sends(kind: Kind) -> None:
    seen: set[str] = set()
    for n_gpus in sizes(kind):
        roles = kind().roles(n_gpus)
        assert len(roles) == n_gpus
        assert set(roles) <= {"server", "worker"}
        assert "worker" in roles
        seen |= set(roles)
        for traffic in kind().cost().by_role.values():
            messages, nbytes = cost_model.evaluate_cost(kind(), traffic, n_gpus, 1000)
            assert messages >= 0
            assert nbytes >= 0
    assert set(kind().cost().by_role) == seen


def test_whoever_reports_cannot_die(survivor: Kind) -> None:
    assert REPORTER not in expendable(Options(strategy=survivor(), n_gpus=fit(survivor, 4)))


# Its steps are those of one process

CASES = [("sgd", 0.05), ("adam", 0.0), ("groups", 0.05), ("muon", 0.0), ("adafactor", 0.0)]


@cache
def one_process(workers: int, optimizer: str, clip_norm: float, epochs: int) -> list[torch.Tensor]:
    """Plain torch, nothing of this project but the batches: the parameters after every step."""
    model, trajectory = make_model(), []
    plan = BatchPlan(N_SAMPLES, workers, BATCH, seed=3)
    optim = OPTIMIZERS[optimizer](list(model.parameters()))
    for i in range(epochs * N_STEPS):
        batch = plan.part(1 + i // N_STEPS, i % N_STEPS)
        optim.zero_grad()
        F.cross_entropy(model(X[batch]), Y[batch]).backward()
        if clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optim.step()
        trajectory.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    return trajectory


@pytest.mark.with_baselines
def test_it_takes_the_same_steps_as_one_process(synchronous: Kind, n_gpus: int) -> None:
    assert_steps_of_one_process(exact(synchronous), n_gpus, epochs=2)


def assert_steps_of_one_process(strategy: Strategy, n_gpus: int, epochs: int) -> None:
    refused = ("muon", "adafactor") if strategy.name == "fully_sharded_builtin" else ()
    tasks = [Task(strategy, n_gpus, *case, epochs=epochs) for case in CASES if case[0] not in refused]
    roles = tasks[0].roles
    ranks = start(type(strategy), trajectories, len(roles), tasks)
    for case, task in enumerate(tasks):
        where = f"{task.optimizer}, clip_norm {task.clip_norm}"
        expected = torch.stack(one_process(task.plan.workers, task.optimizer, task.clip_norm, task.epochs))
        first = ranks[roles.index("worker")][case]
        x = torch.tensor(first, dtype=torch.float64)
        torch.testing.assert_close(x, expected, rtol=1e-10, atol=1e-12, msg=f"{where}: not those of one process")
        for rank, role in zip(ranks, roles, strict=True):
            own = first if role == "worker" else first[N_STEPS - 1 :: N_STEPS]
            assert rank[case] == own, f"{where}: replicas must be bit-identical after every step, and a server's x"


# Samples weigh the gradients, whatever the dtype

PARTS = [[299, 1], [7, 299, 1, 300]]
DTYPES = ["float64", "float32", "bfloat16", "float16"]


def weighted(transport: Transport, task: Task, dtypes: list[str], parts: list[int]) -> list[list[float]]:
    """One step of x = 0 with learning rate 1 and constant gradients 1, 2, ...: x is the mean gradient, negated."""
    found = []
    for dtype in dtypes:
        model = nn.Linear(3, 3).to(getattr(torch, dtype))
        rank = Rank(transport, task, model)
        rank.replica.x.zero_()
        rank.constant_epoch(1.0 + rank.worker, parts[max(rank.worker, 0)])
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


def after_finish(transport: Transport, task: Task) -> list[dict[str, Any]]:
    return [_after_finish(transport, task, buffers) for buffers in (False, True)]


def _after_finish(transport: Transport, task: Task, buffers: bool) -> dict[str, Any]:
    """Two epochs of the loop in `Strategy`'s docstring; each worker has BatchNorm statistics of its own."""
    rank = Rank(transport, task, nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)) if buffers else nn.Linear(2, 2))
    for _ in range(2):
        if not rank.is_server:
            rank.replica.b.fill_(float(transport.rank))
        rank.constant_epoch(1.0 + rank.worker, 1, steps=3)
    found = {"b": rank.replica.b.tolist(), "x": rank.x().tolist(), "model": rank.strategy.model().tolist()}
    rank.close()
    return found


def test_after_an_epoch_all_ranks_show_the_same_model(kind: Kind) -> None:
    """Replicas that agree are that model, and their buffers, if there are any, the mean of the workers'."""
    task = Task(kind(), fit(kind, 4))
    workers = [rank for rank, role in enumerate(task.roles) if role == "worker"]
    for b, ranks in zip(([], [sum(workers) / len(workers)] * 4),
                        zip(*start(kind, after_finish, len(task.roles), task), strict=True), strict=True):  # fmt: skip
        assert len({str(rank["model"]) for rank in ranks}) == 1
        assert kind.name != "none" or ranks[0]["x"] == ranks[0]["model"], "rank 0's"
        for rank in ranks if kind.traits.agree else ():
            assert rank["x"] == rank["model"]
            assert rank["b"] == pytest.approx(b)
            assert rank["b"] == ranks[0]["b"]


# A state continues


def begun_with_the_state_of_rank_0(transport: Transport, task: Task) -> list[tuple[Any, ...]]:
    """The x, epoch and samples of a rank after an epoch, and those it begins with when rank 0 alone has its state."""
    rank = Rank(transport, task)
    rank.epoch(3)
    found = [(rank.x().tolist(), transport.recorder.epoch, rank.strategy.updater.samples)]
    transport.barrier()
    state = rank.strategy.state_dict() if transport.rank == 0 else None
    transport.recorder.epoch = 3 if state else 0
    again = Rank(transport, task, state=state)
    found.append((again.x().tolist(), transport.recorder.epoch, again.strategy.updater.samples))
    again.stop()
    rank.close()
    return found


def test_whoever_has_no_state_begins_with_that_of_rank_0(served: Kind) -> None:
    if issubclass(served, Hogwild):  # whose clusters have an x each, and whose counts are shared: test_hogwild_pp.py
        return
    task = Task(served(), fit(served, 4), "plain")
    (saved, begun), *others = start(served, begun_with_the_state_of_rank_0, len(task.roles), task)
    assert begun == saved
    assert all(other == saved for _, other in others)


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
    assert all(start(determined, resumed_in_the_middle, len(task.roles), task)), task.strategy
