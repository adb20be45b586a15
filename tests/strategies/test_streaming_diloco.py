"""Streaming DiLoCo: at its ends it is DiLoCo, and layers hide messages."""

from typing import Any

import pytest
import torch
from torch import nn

from gradwire.core.records.errors import RunFailed
from strategies import StreamingDiLoCo
from tests.strategies.kinds import on_ranks
from tests.strategies.loops import N_STEPS, Rank, Task
from tests.virtual_time.test_dry_run import GBIT, steps_of

EPOCHS = 3


def seen_by(rank: Rank, announced: bool = True) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The model and this rank's x after every step, and the ends of epochs."""
    seen = []
    for i in range(EPOCHS * N_STEPS):
        if announced:
            rank.strategy.begin_step(len(rank.task.batch(i, rank.worker)))
        rank.take(i)
        if (i + 1) % N_STEPS == 0:
            rank.strategy.finish()
        seen.append((rank.strategy.model().clone(), rank.x()))
    return seen


def without_notice(rank: Rank) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return seen_by(rank, announced=False)


def assert_equal(some: Any, other: Any) -> None:
    for ours, theirs in zip(some, other, strict=True):
        for pair in zip(ours, theirs, strict=True):
            assert all(map(torch.equal, *pair))


DILOCO: dict[str, Any] = {"fragments": 1, "delay": 0, "blend": 0.0}


STRATEGIES = [
    StreamingDiLoCo(fragments=2, local_steps=3, delay=2, blend=0.25),
    StreamingDiLoCo(fragments=2, local_steps=3, eager=True),
    StreamingDiLoCo(fragments=2, local_steps=3, delay=1, blend=0.5, strided=True),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_whether_steps_are_announced_decides_when_things_are_done_and_not_on_bits(strategy: StreamingDiLoCo) -> None:
    """The model is the mean of the ranks."""
    task = Task(strategy, 3, "plain")
    found = on_ranks(task, seen_by)
    assert_equal(found, on_ranks(task, without_notice))
    for of_ranks in zip(*found, strict=True):
        mean = torch.stack([x for _, x in of_ranks]).mean(0)
        torch.testing.assert_close(of_ranks[0][0], mean, rtol=1e-9, atol=1e-11)


# In the passes


class Layers(nn.Module):
    """Linear layers of which one may be left out; it tells what was sent when gradients of a layer are complete."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4)).double()

    def forward(self, x: torch.Tensor, skipped: int = -1) -> torch.Tensor:
        for i, layer in enumerate(self.layers):
            x = x if i == skipped else layer(x).tanh()
        return x


def in_turn(rank: Rank, steps: int, skipped: int = -1) -> list[list[int]]:
    """How many messages this rank had sent in each step before its backward pass, after it, and after the step."""
    seen, model, sent = [], rank.replica.model, rank.transport.messages_sent
    for _ in range(steps):
        rank.strategy.begin_step(1)
        loss = model(torch.ones(1, 4, dtype=torch.float64), skipped).sum()
        counts = [sent.total()]
        rank.replica.backward(loss)
        counts.append(sent.total())
        rank.strategy.step(1)
        seen.append([*counts, sent.total()])
    return [[count - seen[0][0] for count in counts] for counts in seen]


FOUR = StreamingDiLoCo(fragments=4, local_steps=4, delay=2)


def test_a_fragment_leaves_in_the_backward_pass_and_arrives_when_it_is_used() -> None:
    for steps in on_ranks(Task(FOUR, 2, "plain"), lambda rank: in_turn(rank, 4), Layers):
        assert all(after > before for before, after, _ in steps)
    for steps in on_ranks(Task(FOUR, 2, "plain", 0.5), lambda rank: in_turn(rank, 1), Layers):
        assert steps == [[0, 0, 1]], "with clip_norm after it"


def test_a_fragment_without_gradients_leaves_after_the_pass() -> None:
    for steps in on_ranks(Task(FOUR, 2, "plain"), lambda rank: in_turn(rank, 1, skipped=1), Layers):
        assert steps == [[0, 0, 1]]


def test_a_second_backward_pass_is_refused_when_the_first_was_used() -> None:
    def twice(rank: Rank) -> None:
        rank.strategy.begin_step(1)
        for _ in range(2):
            rank.replica.backward(rank.replica.model(torch.ones(1, 4, dtype=torch.float64)).sum())

    with pytest.raises(RunFailed, match=r"a gradient of layers\.1\.\w+ came after it was used; make one backward pass"):
        on_ranks(Task(FOUR, 2, "plain"), twice, Layers)


@pytest.mark.parametrize(("share", "delay"), [(0.3, 0), (2.0, 1)])
def test_a_fragment_is_hidden_from_its_gradients_to_its_next_forward_pass(share: float, delay: int) -> None:
    """`share`: of a step, how long a fragment of the model is under way."""
    L, P, H, step = 60, 6, 12, 0.3
    n = round(share * step * GBIT * P / 4)
    run = steps_of(StreamingDiLoCo(fragments=P, local_steps=H, delay=delay), 2, n, layers=L, latency="0s")
    exposed = sum(max(0.0, share - p / P - delay) for p in range(P))  # before its first layer, in both passes
    assert run.seconds == pytest.approx(step * (1 + exposed / H), rel=0.01)


def test_strided_all_blocks_are_hidden_by_the_backward_pass_of_those_before() -> None:
    """`share`: of a step, how long the model is under way; the last of it leaves when the pass ends, and is needed."""
    share, L, H, step = 2.0, 60, 12, 0.3
    n = round(share * step * GBIT / 4)
    run = steps_of(StreamingDiLoCo(strided=True, local_steps=H, **DILOCO), 2, n, layers=L, latency="0s")
    exposed = max(share / L, share - 2 / 3 * (L - 1) / L)
    assert run.seconds == pytest.approx(step * (1 + exposed / H), rel=0.002)
