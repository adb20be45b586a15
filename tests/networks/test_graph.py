"""Networks of links: what a file says, what is wrong with one, and which way a message goes."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradwire.core.records.errors import UsageError
from gradwire.networks.graph import Edge, Graph, read_graph
from gradwire.networks.units import PAYLOAD
from gradwire.virtual_time.network import Linked

THERE = {"from": 0, "to": 1, "bandwidth": "1gbit", "latency": "2us"}
BACK = THERE | {"from": 1, "to": 0}


def test_a_file_says_ranks_and_links(tmp_path: Path) -> None:
    (path := tmp_path / "two.json").write_text(json.dumps({"ranks": 2, "links": [THERE, BACK]}))
    rate = 125e6 * PAYLOAD
    assert read_graph(str(path)) == Graph(2, (Edge(0, 1, rate, 2e-6), Edge(1, 0, rate, 2e-6)))


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("{", "JSONDecodeError"),
        ("[" * 100_000, "RecursionError"),
        ({"links": []}, "['links']: must be an object of ranks, links, as gradwire/networks/graph.py shows"),
        ({"ranks": 2, "links": [THERE, BACK], "racks": 2}, "['ranks', 'links', 'racks']: must be an object"),
        ({"ranks": 2, "links": {}}, "links: must be a list"),
        ({"ranks": 2, "links": [1]}, "1: must be an object of from, to, bandwidth, latency"),
        ({"ranks": 2, "links": [THERE | {"loss": 0.1}, BACK]}, "must be an object of from, to, bandwidth, latency"),
        ({"ranks": True, "links": []}, "ranks True: must be a whole number"),
        ({"ranks": 2, "links": [THERE | {"to": 2}]}, "a link from 0 to 2: must be two ranks from 0 to 1"),
        (
            {"ranks": 2, "links": [THERE | {"bandwidth": "2us"}]},
            "the link from 0 to 1: write a bandwidth such as 1gbit",
        ),
        ({"ranks": 2, "links": [THERE | {"latency": 2}]}, "the link from 0 to 1: write a time such as 50us"),
        ({"ranks": 2, "links": [THERE, BACK, BACK]}, "two links have the same from and to"),
        ({"ranks": 2, "links": [BACK]}, "there is no way from rank 0 to rank 1; add links"),
        ({"ranks": 2, "links": [THERE]}, "there is no way to rank 0 from rank 1; add links"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(tmp_path: Path, written: Any, message: str) -> None:
    path = tmp_path / "one.json"
    path.write_text(written if isinstance(written, str) else json.dumps(written))
    with pytest.raises(UsageError) as error:
        read_graph(str(path))
    assert str(error.value).startswith(f"--network {path}: ")
    assert message in str(error.value)


def test_a_way_has_the_least_latency_then_the_fewest_links() -> None:
    links = [(0, 1, 1.0), (1, 2, 1.0), (0, 2, 2.0), (2, 3, 1.0), (0, 3, 9.0)]
    graph = Graph(4, tuple(Edge(src, dst, 1.0, latency) for src, dst, latency in links))
    assert {dst: edge[:2] for dst, edge in graph.last_links(0).items()} == {1: (0, 1), 2: (0, 2), 3: (2, 3)}
    network = Linked(graph)
    assert [card.name for card in network.path(0, 3)] == ["0 to 2", "2 to 3"]
    assert (network.delay(0, 3), network.delay(1, 3), network.path(0, 0)) == (3.0, 2.0, [])


def test_a_long_ring_is_read_and_its_ways_are_found() -> None:
    """In seconds and megabytes, not in minutes and gigabytes."""
    N = 5_000
    network = Linked(Graph(N, tuple(Edge(rank, (rank + 1) % N, 1.0, 1.0) for rank in range(N))))
    assert len(network.path(7, 6)) == N - 1
