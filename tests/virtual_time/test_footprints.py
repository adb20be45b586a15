"""The memory of a rank in closed form is what was counted, and the smallest n_gpus that fits is that of the count."""

import math
import re
from typing import Any

import pytest

from gradwire.core.records.errors import UsageError
from gradwire.diagnosis.memory_use import KINDS
from gradwire.options import Options
from gradwire.virtual_time.cluster import ClusterOptions
from gradwire.virtual_time.dry_run import DryRun, dry_run
from gradwire.virtual_time.footprints import NEVER, footprint, smallest_n
from gradwire.virtual_time.meta_models import sizes_of
from strategies import (
    STRATEGIES,
    AsyncParamServer,
    Downpour,
    FullySharded,
    LocalSGD,
    ParamServer,
    ShardedParamServer,
    Strategy,
)
from tests.runs import IN_MEMORY, n_gpus_of

PARAMETERS, LAYERS = 60_480, 10  # whole parts for 2 to 7 ranks
IN_MESSAGES = {name: kind for name, kind in STRATEGIES.items() if name not in IN_MEMORY}
OUTER = LocalSGD(local_steps=1, outer_optimizer="nesterov"), Downpour(outer_momentum=0.5)


def options_of(strategy: Strategy, n_gpus: int | None = None, **changes: Any) -> Options:
    usual: dict[str, Any] = {"bandwidth": "1gbit", "latency": "1ms", "device": "cpu", "memory": True}
    return Options(strategy=strategy, n_gpus=n_gpus, **(usual | changes))


def counted(options: Options, parameters: int = PARAMETERS, layers: int = LAYERS) -> DryRun:
    return dry_run(options, ClusterOptions(compute="0.3s"), parameters, quiet=True, layers=layers)


@pytest.mark.parametrize("strategy", [*(kind() for kind in IN_MESSAGES.values()), *OUTER], ids=lambda kind: kind.name)
def test_what_a_rank_holds_is_its_closed_form(strategy: Strategy) -> None:
    if strategy.memory("worker").other is None:
        assert footprint(options_of(strategy), sizes_of(Options(), PARAMETERS), "worker", 3) is None
        return
    for workers, optimizer in ((2, "sgd"), (3, "adam")):
        if optimizer != Options(strategy=strategy).optimizer and strategy.name in ("des_loc", "demo"):
            continue  # they take no other
        run = counted(options_of(strategy, n_gpus_of(strategy.name, workers), optimizer=optimizer))
        for role in set(run.options.roles):
            expected = footprint(run.options, run.sizes, role, run.options.world_size)
            assert expected is not None
            uses = [use for use, of in zip(run.counted, run.options.roles, strict=True) if of == role]
            found = {kind: max(use.most.get(kind, 0) for use in uses) for kind in KINDS if kind in expected}
            assert found == pytest.approx(expected, abs=100), "but for some numbers, such as Adam's count of steps"


@pytest.mark.parametrize("kind", [FullySharded, ParamServer])
def test_all_that_is_held_is_held_at_once(kind: type[Strategy]) -> None:
    run = counted(options_of(kind(), 4))
    expected = footprint(run.options, run.sizes, run.options.roles[-1], 4)
    assert expected is not None
    assert run.memory[-1] == pytest.approx(sum(expected.values()), abs=100), "sgd has no temporaries"


def test_the_counted_and_the_closed_form_are_shown_beside_each_other() -> None:
    text = counted(options_of(FullySharded(), 4), 10**9, 20).text()
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "parameters P / N 1.000 1.000" in rows
    assert "gathered parameters P / B 0.200 0.200" in rows
    assert "peak, in backward sum 3.600 3.600" in rows
    text = counted(options_of(FullySharded(), 4, amp="bf16"), 10**9, 20).text()
    assert re.search(r"activations +2 n +2\.000 +2\.000\n", text), "autocast's copies of all parameters"
    assert re.search(r"peak, in backward +sum +5\.600 +5\.600\n", text)
    text = counted(options_of(ParamServer(), 3), 10**9).text()
    assert "GB of a server" in text
    assert "GB of a worker" in text


@pytest.mark.parametrize(
    "strategy", [*(kind() for kind in IN_MESSAGES.values()), ShardedParamServer(servers=3)], ids=lambda kind: kind.name
)
def test_the_smallest_n_is_that_of_a_search_of_all(strategy: Strategy) -> None:
    options, sizes = options_of(strategy), sizes_of(Options(), 10**6, 20)
    least, most = strategy.traits.ranks

    def held(n: int) -> float:
        forms = [footprint(options, sizes, role, n) for role in set(strategy.roles(n))]
        return max(sum(form.values()) if form else math.inf for form in forms)

    enough = 4 if isinstance(strategy, ShardedParamServer) and strategy.servers == 3 else least
    of_each = {n: held(n) for n in range(enough, (most or 40) + 1)}
    for nbytes in (3e6, 5e6, 9e6, 12.1e6, 14e6, 30e6):
        fitting = [n for n, held_by_one in of_each.items() if held_by_one <= nbytes]
        nothing = None if of_each[enough] == math.inf else NEVER
        assert smallest_n(options, sizes, nbytes) == (fitting[0] if fitting else nothing)


def test_the_smallest_n_is_that_of_the_count() -> None:
    options = options_of(FullySharded(), optimizer="adam")
    n = smallest_n(options, sizes_of(Options(), PARAMETERS, LAYERS), 250e3)
    assert isinstance(n, int)
    kept = []
    for n_gpus in (n - 1, n):
        use = counted(options_of(FullySharded(), n_gpus, optimizer="adam")).counted[0]
        kept.append(sum(held for kind, held in use.most.items() if kind != "temporaries"))
    assert kept[1] <= 250e3 + 100 < kept[0]


def test_what_has_no_closed_form_is_said_so_and_what_runs_nowhere_is_refused() -> None:
    sizes = sizes_of(Options(), PARAMETERS)
    assert smallest_n(options_of(AsyncParamServer(aggregate=2)), sizes, 1e12) is None
    with pytest.raises(UsageError, match="--strategy hogwild: needs shared memory"):
        smallest_n(options_of(STRATEGIES["hogwild"]()), sizes, 1e12)


@pytest.mark.parametrize("layers", [1, 5])
def test_the_cards_have_passed_what_the_steps_have_sent_and_not_the_end_of_the_epoch(layers: int) -> None:
    run = counted(options_of(FullySharded(), 4), layers=layers)
    sent = sum(card.nbytes for card, _ in run.cards if card.name.endswith("sends"))
    assert sent == pytest.approx(sum(result.nbytes for result in run.results), abs=100), "but for the barriers"
    assert sent == pytest.approx(2 * 3 * 3 * 4 * PARAMETERS, abs=100), "two steps"
