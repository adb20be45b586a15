"""AD-PSGD without those who die: the others exchange with others, or with nobody, and end every epoch."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.local_models.ad_psgd import ADPSGD
from tests.ranks import virtual_time
from tests.strategies.loops import Rank, Task
from tests.strategies.test_ad_psgd import Pace, ad_psgd_of
from transports.base import Transport
from virtual_time.launcher import Death, VirtualTime
from virtual_time.network import OneSwitch


def timed(transport: Transport, task: Task, scales: list[float]) -> tuple[list[float], list[Any]]:
    rank, pace = Rank(transport, task), Pace(transport, scales[transport.rank], 0)
    for number in range(1, task.epochs + 1):
        rank.epoch(number, pace.spend)
    return rank.strategy.model().tolist(), transport.recorder.deaths


MOMENTS = st.floats(0.0, 0.3, allow_nan=False)


@settings(deadline=None, max_examples=4)
@given(st.integers(2, 6), st.lists(st.tuples(st.integers(1, 5), MOMENTS), min_size=1, max_size=5), st.data())
def test_whoever_dies_whenever_the_others_carry_on(n: int, dead: list[tuple[int, float]], data: st.DataObject) -> None:
    deaths = [Death(rank, moment) for rank, moment in dict(dead).items() if rank < n]
    scales = data.draw(st.lists(st.sampled_from([0.0, 1e-3, 2e-2]), min_size=n, max_size=n))
    found = []
    for _ in range(2):
        time = VirtualTime(OneSwitch(n, 1e6, 1e-3), lambda rank, phase, part: 0.0, deaths)
        found.append(time.launch(timed, n, Task(ADPSGD(), n), scales, expendable=range(1, n)))
    assert found[0] == found[1], "the same bits"
    alive = [result for result in found[0] if result is not None]
    assert len({str(model) for model, _ in alive}) == 1
    gone = {rank for rank, result in enumerate(found[0]) if result is None}
    said = [death["rank"] for death in found[0][0][1]]
    assert len(said) == len(set(said))
    assert set(said) <= gone <= {death.rank for death in deaths}


def lose_a_partner(transport: Transport, task: Task) -> tuple[list[float], list[int]]:
    """Ranks 0, 1 and 3 take steps without gradients from x = rank; rank 1 dies in the middle of one of its own."""
    rank = Rank(transport, task)
    exchanges = ad_psgd_of(rank)
    rank.replica.x.fill_(float(transport.rank))
    if not exchanges.is_active:
        exchanges.apart.fill_(float(transport.rank))
    for _ in range(40):
        transport.sleep(0.01)
        rank.constant_step(0.0, 1)
    partners = [j for j in exchanges.partners if j in exchanges.living.alive]
    rank.strategy.finish()
    return rank.x().tolist(), partners


def test_an_active_rank_whose_partner_died_goes_on_with_another() -> None:
    task = Task(ADPSGD(), 4, "unit")
    found = virtual_time(4, [Death(1, 0.1)]).launch(lose_a_partner, 4, task, expendable=[1, 2, 3])
    assert found[1] is None
    assert [found[rank][1] for rank in (0, 2)] == [[3], [3]]
    x = torch.tensor([found[rank][0] for rank in (0, 2, 3)])
    assert (x - x.mean(0)).abs().max() < 1e-3, "they have come to one x, through rank 3"
