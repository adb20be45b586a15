"""The smallest case of a strategy runs every line of its file that a step, an epoch or a death of a worker may run."""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from gradwire.every_order import runs
from gradwire.every_order.explore import explore
from strategies import Strategy

# Functions that no run in every order calls: what is known before it, and checkpoints
BEFORE = {"check", "cost", "memory", "stalest", "period", "fewest_workers", "weight", "count_workers",
          "gathers", "state_dict", "load_state_dict"}  # fmt: skip

# What only an option switches on, by options that do
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "async_param_server": [{"max_staleness": 0}, {"aggregate": 2}],
    "decoupled_diloco": [{"wait": True}],
    "dgs": [{"downlink": False}],
    "downpour": [{"outer_momentum": 0.5}],
    "gossip": [{"topology": "exponential"}],
    "hogwild": [{"count_lost": True}],
    "hogwild_pp": [{"count_lost": True}],
    "local_sgd": [{"outer_optimizer": "nesterov"}],
    "streaming_diloco": [{"eager": True}],
}

MORE = {"ad_psgd": 150}  # orders, until a request comes when an epoch ends

# What options of the run, other models and other loops switch on: the functions, or lines, that are left
LEFT: dict[str, set[str]] = {
    "sharded_param_server": {"norm", 'broadcast(counts, self.transport, "counts", ranks=self.of_servers)',
                             "self.replica.counts = counts"},
    "sharded_ring": {"norm"},
    "demo": {"g.mul_(torch.clamp(self.clip_norm / (torch.linalg.vector_norm(g) + 1e-6), max=1.0))"},
    "local_sgd": {"x.copy_(self.outer.by_codes(x, n_k, self.coding, self.all_reduce, mean))"},
    "sparta": {'return torch.empty(k, dtype=torch.int64, device="meta")'},
    "gossip": {"return [], []"},
    "hierarchical_ring": {"work.wait()"},
    "overlapped_ring": {"return", "self.begin_step(n_samples)"},
    "all_reduce": {"N, x = self.transport.world_size, self.replica.x",
                   "self.coding.dense = closed_form(self, self.cost().worker, N, x.nbytes, itemsize=x.itemsize)[1]"},
    "hogwild": {"share", 'self.living.maximize(counts, "counts")', "self.replica.counts = counts"},
    "hogwild_pp": {"self.mean.copy_(self.average_x())"},
    "sharded_gradients": {"take_gradient", "self.reduce(block, n)"},
    "fully_sharded": {"finish", "gather", "enter", "end_forward", "stop_saving", "enter_backward",
                      "end_backward"},
}  # fmt: skip


def lines_of(code: CodeType, inside: str = "") -> Iterator[tuple[str, int]]:
    """Yield the lines of functions, each with the name of the outermost function that it is in."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            is_function = bool(inner.co_flags & inspect.CO_NEWLOCALS)
            name = inside or (inner.co_name if is_function else "")
            if inner.co_name == "__annotate__":  # which Python 3.14 makes of annotations, and calls when it is asked
                continue
            if is_function:
                yield from ((name, line) for *_, line in inner.co_lines() if line and line > inner.co_firstlineno)
            yield from lines_of(inner, name)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[tuple[str, int]]]:
    """Yield the lines of strategies that the ranks of every order have run, as they grow."""
    seen, attempt, before = set[tuple[str, int]](), runs._attempt, sys.gettrace()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if "strategies" not in frame.f_code.co_filename:
            return None
        if event == "line":
            seen.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    def traced(*arguments: Any) -> None:
        sys.settrace(trace)  # of this coroutine
        attempt(*arguments)

    monkeypatch.setattr(runs, "_attempt", traced)
    yield seen
    sys.settrace(before)


def test_the_smallest_case_runs_each_line(kind: type[Strategy], ran: set[tuple[str, int]]) -> None:
    file = inspect.getsourcefile(kind)
    assert file
    for options in [{}, *OPTIONS.get(kind.name, [])]:
        at_most = MORE.get(kind.name, 30)
        report = explore(kind(**options), at_most=at_most, random=0, deaths=int(kind.traits.workers_may_die))
        assert report.counterexample is None, report.text()
    text = Path(file).read_text()
    lines, left = [line.strip() for line in text.splitlines()], LEFT.get(kind.name, set())
    missed = {
        (function, lines[number - 1])
        for function, number in lines_of(compile(text, file, "exec"))
        if (file, number) not in ran and function not in BEFORE
    }
    assert {line for function, line in missed if not {function, line} & left} == set()
    assert left <= {name for both in missed for name in both}, "what is run is not left"
