"""AD-PSGD: exchanges in pairs that keep the mean, whoever is slow or dies; who is passive answers as it computes."""

import pandas as pd
import pytest
import torch.nn.functional as F

from gradwire.core.strategy.cost_model import evaluate_cost
from gradwire.core.transports.base import Transport
from gradwire.virtual_time.launcher import VirtualTime
from gradwire.virtual_time.network import OneSwitch
from strategies.living import PROGRESS
from strategies.local_models.ad_psgd import ADPSGD, ANSWER, REQUEST
from strategies.local_models.gossip import Gossip
from tests.strategies.kinds import on_ranks
from tests.strategies.loops import Rank, Task, X, Y
from tests.virtual_time.test_dry_run import steps_of

# While it computes


def with_layers(transport: Transport, task: Task, steps: int) -> pd.DataFrame:
    """Take steps whose passes take time, layer by layer; return the events."""
    rank, recorder = Rank(transport, task), transport.recorder
    recorder.shares = (0.25,) * 4
    for _ in range(steps):
        rank.strategy.begin_step(len(X))
        with recorder.phase("forward"):
            loss = F.cross_entropy(rank.module(X), Y)
        with recorder.phase("backward"):
            rank.replica.backward(loss)
        rank.strategy.step(len(X))
    rank.strategy.finish()
    return recorder.frame()


def test_a_passive_rank_answers_while_it_computes() -> None:
    def seconds(rank: int, phase: str, part: float) -> float:
        return {("backward", 1): 100.0, ("backward", 0): 1.0}.get((phase, rank), 0.0) * part

    time = VirtualTime(OneSwitch(2, 1e9, 1e-3), seconds)
    active, passive = time.launch(with_layers, 2, Task(ADPSGD(), 2), 6, record=True)
    answers = passive[(passive["op"] == "send") & (passive["tag"] == ANSWER)]["t0"].to_numpy()
    passes, of_active = (events[events["phase"] == "backward"][["t0", "t1"]].to_numpy() for events in (passive, active))
    assert len(passes) == len(answers) == 6
    within = sum(t0 < answer < t1 for answer in answers for t0, t1 in passes)
    assert within >= 4, "after each of the layers"
    assert of_active[3][1] < passes[0][1] + 5, "four exchanges in the time of one pass"


# What is sent

STEPS = 7


def counted(rank: Rank) -> pd.DataFrame:
    assert isinstance(rank.strategy, ADPSGD)
    k, n = rank.transport.rank, rank.transport.world_size
    of_other_parity = {j for j in ((k - 1) % n, (k + 1) % n) if j % 2 != k % 2}
    assert set(rank.strategy.partners) == of_other_parity, "with odd n not the last and the first"
    for _ in range(STEPS):
        rank.constant_step(1.0, 3)
    assert k == 0 or rank.strategy.updater.samples == 3 * n * STEPS, "it takes all for as fast as itself"
    rank.strategy.finish()
    events = rank.transport.recorder.frame()
    return events[(events["op"] == "send") & events["tag"].isin([REQUEST, ANSWER, PROGRESS])]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_what_it_sends_is_what_it_says(n: int) -> None:
    strategy = ADPSGD()
    sent = pd.concat(on_ranks(Task(strategy, n), counted, record=True))
    expected = evaluate_cost(strategy, strategy.cost().worker, n, 66 * 8)  # loops' model
    assert (len(sent) / n / STEPS, sent["bytes"].sum() / n / STEPS) == pytest.approx(expected)


def test_nobody_waits_for_the_slowest() -> None:
    slow = {"slow": ("3:10",), "latency": "0s"}
    together, apart = (steps_of(strategy, 6, 1e3, **slow).seconds for strategy in (Gossip(), ADPSGD()))
    assert together == pytest.approx(3.0, rel=0.05)
    assert apart < 0.75
