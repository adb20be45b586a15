"""All-reduces that are made for a network: right on any, as fast as planned, none of the others faster."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.core.records.errors import UsageError
from gradwire.core.training.checks import resolve
from gradwire.core.transports.base import Transport
from gradwire.every_order.contributions import check_all_reduce
from gradwire.networks.graph import Edge, Graph, read_graph
from gradwire.options import Options
from gradwire.virtual_time import simulate
from gradwire.virtual_time.launcher import VirtualTime
from gradwire.virtual_time.network import Linked
from strategies.all_reduce.synthesised import Schedule, Synthesised, run_schedule, synthesise
from strategies.collectives import AllReduce
from tests.graphs import FOLDER
from tests.runs import SMALL, said_by
from tests.strategies.test_collectives import ALL_REDUCES, in_racks

HAND_WRITTEN: dict[str, AllReduce] = {
    **{name: f for name, f in ALL_REDUCES.items() if name != "synthesised"}, "racks of 4": partial(in_racks, rack=4)
}  # fmt: skip


def seconds(graph: Graph, all_reduce: AllReduce, length: int) -> float:
    def each(transport: Transport) -> float:
        all_reduce(transport.allocate(length), transport, 1)
        return transport.now()

    return max(VirtualTime(Linked(graph), lambda *_: 0.0).launch(each, graph.ranks))


EXHAUSTIVE_TORUS = pytest.param("torus-4x4.json", marks=pytest.mark.exhaustive)


def running(schedule: Schedule) -> AllReduce:
    return lambda vector, transport, n: run_schedule(vector, transport, n, schedule)


@pytest.mark.parametrize("length", [1_600, 160_000])  # of float32; of fewer whole vectors have fewer latencies
@pytest.mark.parametrize("name", ["ring-8.json", "two-racks-of-4.json", EXHAUSTIVE_TORUS])
def test_it_takes_what_was_planned_and_no_other_is_faster_and_a_ring_has_the_ring(name: str, length: int) -> None:
    graph = read_graph(str(FOLDER / name))
    schedule = synthesise(graph, 4 * length / graph.ranks)
    planned = sum(max(hop.end for hop in half) for half in schedule)
    took = seconds(graph, running(schedule), length)
    assert took == pytest.approx(planned)
    others = {name: seconds(graph, all_reduce, length) for name, all_reduce in HAND_WRITTEN.items()}
    assert took <= min(others.values()) * (1 + 1e-9)
    assert (took == pytest.approx(others["ring"])) == name.startswith("ring")


@settings(max_examples=6)
@given(N=st.integers(1, 9), seed=st.integers(0, 99), data=st.data())
def test_it_has_no_fault_on_any_network(N: int, seed: int, data: st.DataObject) -> None:
    around = [(rank, (rank + 1) % N) for rank in range(N) if N > 1]
    more = data.draw(st.sets(st.tuples(st.integers(0, N - 1), st.integers(0, N - 1))))
    ways = {*around, *(way for way in more if len({*way}) == 2)}
    speeds, latencies = st.sampled_from((1e6, 1e8, 1e9)), st.sampled_from((0.0, 1e-6, 1e-3))
    graph = Graph(N, tuple(Edge(*way, data.draw(speeds), data.draw(latencies)) for way in sorted(ways)))
    schedule = synthesise(graph, data.draw(st.sampled_from((0, 1e3, 1e6))), seed)
    for half in schedule:
        assert len({(hop.dst, hop.chunk) if half is schedule.all_gather else (hop.src, hop.chunk) for hop in half}) == (
            N * (N - 1)
        )
        assert {(hop.src, hop.dst) for hop in half} <= ways
    for length in (0, 1, 19):
        assert check_all_reduce(running(schedule), N, length) is None


def test_a_slow_link_is_idle_rather_than_slower_than_another_way() -> None:
    around = tuple(Edge(rank, (rank + d) % 8, 1e9, 1e-6) for rank in range(8) for d in (1, -1))
    across = tuple(Edge(rank, (rank + 4) % 8, 1e7, 1e-6) for rank in range(8))
    end = [max(hop.end for hop in synthesise(Graph(8, edges), 1e6).all_gather) for edges in (around, around + across)]
    assert end == pytest.approx([4 * 1.001e-3] * 2), "7 chunks by two links"


def test_the_same_seed_makes_the_same() -> None:
    graph = read_graph(str(FOLDER / "two-racks-of-4.json"))
    made = [synthesise.__wrapped__(graph, 1e4, seed) for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]


# A run


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--n_gpus", "3"], "--n_gpus 3: --network {ring} has 8 ranks; give as many"),
        (["--latency", "3us"], "--bandwidth, --latency: --network says them, link by link; leave them out"),
        (["--racks", "2"], "--racks, --rack_bandwidth: --network says how ranks are connected; leave them out"),
    ],
)
def test_what_does_not_fit_a_network_is_one_line(given: list[str], message: str) -> None:
    ring = str(FOLDER / "ring-8.json")
    data = [f"--{name}={SMALL[name]}" for name in ("dataset", "model", "epochs")]
    code, text = said_by(lambda: simulate.main([*data, "--network", ring, *given]))
    assert (code, text.strip()) == (2, "error: " + message.format(ring=ring))


def test_processes_take_a_network_only_to_plan_for_it() -> None:
    ring = str(FOLDER / "ring-8.json")
    assert resolve(Options(strategy=Synthesised(), network=ring)).n_gpus == 8
    with pytest.raises(UsageError, match="--network: ring_all_reduce does not plan for it; take"):
        resolve(Options(network=ring))
