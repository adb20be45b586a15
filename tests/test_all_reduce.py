"""The ring and the naive all-reduce: results, schedule and bytes, on real processes."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strategies.naive_all_reduce import naive_all_reduce
from strategies.ring_all_reduce import ring_all_reduce, split
from training import launch
from transports.base import Transport

ALL_REDUCES = {"ring": ring_all_reduce, "naive": naive_all_reduce}


def reduce_all_lengths(transport: Transport, lengths: list[int]) -> list[dict[str, Any]]:
    """All-reduce a vector of every length with both algorithms; report what came out and what was sent."""
    reports = []
    for length in lengths:
        for name, all_reduce in ALL_REDUCES.items():
            vector = transport.allocate(length, torch.float64)
            vector.copy_(torch.arange(length) + 1000.0 * transport.rank)
            messages, nbytes = list(transport.messages_sent), list(transport.bytes_sent)
            all_reduce(vector, transport)
            reports.append(
                {
                    "name": name,
                    "length": length,
                    "result": vector.tolist(),
                    "messages": [now - was for now, was in zip(transport.messages_sent, messages, strict=True)],
                    "bytes": [now - was for now, was in zip(transport.bytes_sent, nbytes, strict=True)],
                }
            )
    return reports


@pytest.mark.parametrize("N", range(1, 9))
def test_all_reduce_sums_and_sends_by_the_closed_form(N: int) -> None:
    lengths = sorted({0, 1, N - 1, N, N + 1, 13, 101, 9973})
    for r, reports in enumerate(launch(reduce_all_lengths, N, lengths, timeout=30)):
        for report in reports:
            length = report["length"]
            assert report["result"] == [N * i + 1000.0 * N * (N - 1) / 2 for i in range(length)]
            to = [0] * N
            nbytes = [0] * N
            if report["name"] == "ring" and N > 1:
                chunks = [chunk.numel() * 8 for chunk in split(torch.zeros(length), N)]
                to[(r + 1) % N] = 2 * (N - 1)
                nbytes[(r + 1) % N] = 2 * length * 8 - chunks[(r + 1) % N] - chunks[(r + 2) % N]
            elif report["name"] == "naive":
                for peer in range(N):
                    if peer != r and 0 in (peer, r):
                        to[peer], nbytes[peer] = 1, length * 8
            assert report["messages"] == to, report["name"]
            assert report["bytes"] == nbytes, report["name"]


def ten_times_one_more_than_rank(transport: Transport) -> dict[str, list[float]]:
    results = {}
    for name, all_reduce in ALL_REDUCES.items():
        vector = transport.allocate(3)
        vector.fill_(10.0 * (transport.rank + 1))
        all_reduce(vector, transport)
        results[name] = vector.tolist()
    return results


def test_10_20_30_40_50_gives_150_on_every_rank() -> None:
    for results in launch(ten_times_one_more_than_rank, 5, timeout=30):
        assert results == {"ring": [150.0] * 3, "naive": [150.0] * 3}


@given(length=st.integers(0, 5000), parts=st.integers(1, 64))
def test_chunks_cover_the_vector_and_differ_by_at_most_one_element(length: int, parts: int) -> None:
    vector = torch.arange(length)
    chunks = split(vector, parts)
    sizes = [chunk.numel() for chunk in chunks]
    assert len(chunks) == parts
    assert torch.equal(torch.cat(chunks), vector)
    assert max(sizes) - min(sizes) <= 1


def overwrite_right_after(transport: Transport, rounds: int, length: int) -> bool:
    """Change the vector as soon as all_reduce returns: no neighbour may still be reading it."""
    vector = transport.allocate(length)
    expected = sum(range(1, transport.world_size + 1))
    for all_reduce in ALL_REDUCES.values():
        for i in range(rounds):
            vector.fill_(float(transport.rank + 1 + i))
            all_reduce(vector, transport)
            if not bool((vector == expected + i * transport.world_size).all()):
                return False
    return True


def test_the_vector_may_be_overwritten_as_soon_as_all_reduce_returns() -> None:
    assert launch(overwrite_right_after, 4, 100, 100_003, timeout=60) == [True] * 4
