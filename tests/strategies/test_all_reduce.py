"""The fastest all-reduce: what it takes where the network is known and where it is not, and that it keeps to it."""

from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gradwire import run as train
from gradwire.compression import Codec, Float16, RandomK
from gradwire.core.records.errors import UsageError
from gradwire.core.strategy.cost_model import evaluate_cost
from gradwire.core.strategy.traits import Choice
from gradwire.core.training.checks import prepare, resolve
from gradwire.core.transports.base import Transport
from gradwire.core.transports.throttle import IN_ORDER, Rates
from gradwire.networks.graph import complete
from gradwire.networks.link import Link
from gradwire.results import load_events
from gradwire.virtual_time.launcher import VirtualTime
from gradwire.virtual_time.network import Linked, Network, OneSwitch, Racks
from strategies import FastestAllReduce, Replica
from strategies.all_reduce.predictions import all_reduces, candidates, predict_all_reduce, predict_on_cores
from tests.core.transports.samples import pair
from tests.ranks import run, virtual_time
from tests.runs import metadata, said_by, small
from tests.strategies.loops import OPTIMIZERS, Task

SWITCH, RACKS = OneSwitch(8, 1e8, 1e-5), Racks(8, 1e8, 1e-5, racks=2, rack_bandwidth=2e7)


def started(transport: Transport, numel: int, codec: Codec | None, state: Any = None) -> tuple[FastestAllReduce, Any]:
    """One that has begun, with a gradient of so many elements; and its parameter."""
    strategy, model = FastestAllReduce(), nn.Linear(numel, 1, bias=False)
    make = Task(strategy, transport.world_size, codec=codec).make_codec
    strategy.start(Replica(model, transport), transport, OPTIMIZERS["plain"], state=state, codec=make)
    return strategy, model.weight


def chosen(transport: Transport, numel: int, codec: Codec | None = None, ahead: float = 1.0) -> tuple[Any, ...]:
    """What is chosen, the messages and bytes that a step sends and is to send; `ahead`: how fast rank 1's clock is."""
    now = transport.now
    transport.now = lambda: now() * ahead**transport.rank  # type: ignore[method-assign]
    strategy, weight = started(transport, numel, codec)
    messages, nbytes = transport.messages_sent.total(), transport.bytes_sent.total()
    weight.grad = torch.ones_like(weight)
    strategy.step(1)
    sent = transport.messages_sent.total() - messages, transport.bytes_sent.total() - nbytes
    transport.owes, N = "", transport.world_size
    transport.barrier()
    assert "chosen" not in set(transport.recorder.frame()["tag"]), "what is timed is not recorded"
    dense = None if strategy.coding is None else strategy.coding.dense
    return strategy.choice, sent, evaluate_cost(strategy, strategy.cost().worker, N, 4 * numel), dense


def virtual(network: Network, numel: int, codec: Codec | None = None, **machine: Any) -> Choice:
    """What all ranks choose, in virtual time."""
    found = VirtualTime(network, lambda *_: 0.0, **machine).launch(chosen, network.world_size, numel, codec)
    assert all(one[0] == found[0][0] for one in found)
    choice: Choice = found[0][0]
    assert choice.taken == min(choice.us, key=choice.us.__getitem__)
    if codec is None:  # an average over ranks is in the formulas
        assert [sum(one[1][i] for one in found) for i in (0, 1)] == pytest.approx(
            [network.world_size * of for of in found[0][2]]
        )
    else:
        assert found[0][3] == found[0][2][1], "what it would send without a codec"
    return choice


@pytest.mark.parametrize(
    ("bandwidth", "latency", "rates"),
    [(1e6, 1e-3, Rates(1e6, 1e-3, sharing=IN_ORDER)), (1e6, 0.0, None), (inf, 1e-3, None)],
)
def test_a_real_network_is_known_by_its_bandwidth_and_its_latency(
    bandwidth: float, latency: float, rates: Rates | None
) -> None:
    with pair() as (transport, _):
        assert transport.rates is None
        transport.link = Link(bandwidth, latency)
        assert transport.rates == rates
        transport.link = None


@pytest.mark.parametrize("network", [SWITCH, replace(SWITCH, overhead=1e-5), RACKS])
def test_where_the_network_is_known_the_closed_forms_choose(network: Network) -> None:
    rates, taken = network.rates, set()
    assert rates is not None
    for numel in (8, 1000, 100_000):
        found = virtual(network, numel)
        assert found.why == f"by the closed forms, 8 ranks, {4 * numel} bytes"
        known = candidates(8, 4 * numel, rates)
        assert found.us == {
            name: pytest.approx(1e6 * (predict_all_reduce(one, 8, 4 * numel, rates) or 0))
            for name, one in known.items()
        }
        taken.add(found.taken)
    assert len(taken) > 1, "a short vector needs another than a long one"
    assert ("hierarchical_ring" in known) == isinstance(network, Racks)


def test_a_code_that_is_added_is_the_vector() -> None:
    assert virtual(SWITCH, 1000, Float16()).us == virtual(SWITCH, 500).us
    long, code = virtual(SWITCH, 100_000), virtual(SWITCH, 100_000, RandomK(density=1e-4))
    assert code.why.endswith("8 ranks, 40 bytes")
    assert (long.taken, code.taken) == ("halving_doubling", "all_gather")


@pytest.mark.parametrize("machine", [{}, {"cores": 2, "copying": 1e-8}])
def test_where_no_form_is_known_all_are_timed(machine: dict[str, Any]) -> None:
    """On a graph of links, on cores, and where a rack is no power of two."""
    graph = Linked(complete(8))
    networks = [SWITCH] if machine else [graph, replace(RACKS, racks=4), replace(RACKS, racks=3)]
    for network in networks:
        found = virtual(network, 10_000, **machine)
        assert found.why.startswith("as timed")
        names = set(all_reduces()) - (
            set() if isinstance(network, Racks) and network.racks == 4 else {"hierarchical_ring"}
        )
        assert set(found.us) == names
        assert min(found.us.values()) > 0


@pytest.mark.parametrize("on", ["shared_memory", "shared_memory, held back"])
def test_processes_agree_on_what_rank_0_has_timed(on: str) -> None:
    """Whatever their clocks say; where messages are held back as on a network, this is known."""
    ranks = run(on, chosen, 3, 1000, None, 0.5, record=True)
    found = ranks[0][0]
    assert all(rank[0] == found for rank in ranks)
    is_known = "held back" in on
    assert found.why == f"{'by the closed forms' if is_known else 'as timed'}, 3 ranks, 4000 bytes"
    assert len(found.us) == (len(all_reduces()) - 1 if is_known else 3)
    assert found.taken == min(found.us, key=found.us.__getitem__)


def test_with_fewer_cores_than_ranks_the_fewest_messages_in_all_are_the_likeliest() -> None:
    rates = Rates(4e9, 2e-5, 2e-5)

    def first(N: int, nbytes: int, cores: int) -> str:
        known = candidates(N, nbytes, rates)
        return min(known, key=lambda name: predict_on_cores(known[name], N, nbytes, rates, cores))

    assert [first(8, 4000, cores) for cores in (2, 8)] == ["naive", "recursive_doubling"]
    assert [first(8, 10**8, cores) for cores in (2, 8)] == ["halving_doubling"] * 2


def resumed(transport: Transport) -> list[str]:
    """The names of what was chosen, of what begins with another choice, and of what loads the first."""
    strategy, _ = started(transport, 100, None)
    state, messages = strategy.state_dict(), transport.messages_sent.total()
    own = asdict(strategy.choice) if strategy.choice else {}
    other, _ = started(transport, 100, None, state | {"choice": own | {"taken": "swing", "options": {}}})
    assert transport.messages_sent.total() == messages, "nothing is timed again"
    names = [one.chosen.name for one in (strategy, other)]
    other.load_state_dict(state)
    transport.barrier()
    return [*names, other.chosen.name]


def test_a_resumed_run_takes_the_same() -> None:
    for found in run("shared_memory", resumed, 2):
        assert found[0] == found[2] != found[1] == "swing"


def test_a_run_says_and_records_what_it_took_and_a_replay_how_to_take_it_again(tmp_path: Path) -> None:
    options = small(tmp_path, FastestAllReduce(), n_gpus=3, epochs=1, run_name="run")
    said = said_by(lambda: 0 if train(options, launcher=virtual_time(3).launcher()) is not None else 1)[1]
    found = Choice(**metadata(tmp_path)["choice"])
    assert f"takes {found.text()}" in said
    assert f"took           {found.taken}, as timed, " in said
    text = rf"run it again with its options and --algorithm {found.taken}, nothing else"
    with pytest.raises(UsageError, match=text):
        prepare(resolve(replace(options, run_name="again", replay=str(tmp_path / "run"))))
    swing = replace(options, strategy=FastestAllReduce(algorithm="swing"), run_name="swing")
    quiet = said_by(lambda: 0 if train(swing, quiet=True, launcher=virtual_time(3).launcher()) is not None else 1)[1]
    assert "takes" not in quiet
    assert any("halving_doubling.py" in line for line in load_events(tmp_path / "swing.events.csv.gz")["line"])
    again = replace(options, strategy=FastestAllReduce(algorithm=found.taken), run_name="again")
    train(again, quiet=True, launcher=virtual_time(3).launcher())
    assert metadata(tmp_path, "again")["parameter_hash"] == metadata(tmp_path)["parameter_hash"]
    taken = Choice(**metadata(tmp_path, "again")["choice"])
    assert taken.text() == f"{found.taken}, as --algorithm says, 3 ranks, {found.why.split()[-2]} bytes"
    with pytest.raises(UsageError, match=r"^--algorithm rung: unknown.*ring"):
        prepare(resolve(replace(options, strategy=FastestAllReduce(algorithm="rung"), run_name="third")))


def test_an_overhead_leaves_fewer_segments_and_on_racks_no_form() -> None:
    racks, ring = Rates(1e8, 1e-5, racks=2, rack_bandwidth=1e7), all_reduces()["ring"]()
    assert (
        predict_all_reduce(ring, 8, 4000, racks) is None,
        predict_all_reduce(ring, 8, 4000, replace(racks, overhead=1e-5)),
    ) == (False, None)
    trees = [candidates(8, 10**6, Rates(1e8, 1e-5, overhead))["double_tree"] for overhead in (0.0, 1e-3)]
    assert [asdict(tree)["segments"] for tree in trees] == [64, 3]
