"""Memory that ranks share, and who has none."""

import sys
from typing import Any

import pytest
import torch

from gradwire.core.transports.base import Transport
from tests.core.transports.samples import MILLION
from tests.ranks import outcome, pattern, run


def meet(transport: Transport) -> None:
    if transport.device.type == "cuda":
        torch.cuda.synchronize()
    transport.barrier()


def write_into_one_vector(transport: Transport) -> list[Any]:
    """Ranks 0 and 2 share one vector, ranks 1 and 2 another; each writes its own element and sees the other's."""
    seen = []
    for name, ranks in (("first", [2, 0]), ("second", [1, 2])):
        vector = transport.shared_vector(name, 3, torch.int64, ranks) if transport.rank in ranks else torch.zeros(3)
        seen.append(vector.tolist())
        meet(transport)
        vector[transport.rank] = transport.rank + 10
        meet(transport)
        seen.append(vector.tolist())
    return seen


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_shared_vector_is_one_memory_that_all_its_ranks_write(device: str) -> None:
    first, second = [[0, 0, 0], [10, 0, 12]], [[0, 0, 0], [0, 11, 12]]
    seen = run("shared_memory", write_into_one_vector, 3, device=device)
    assert [seen[0][:2], seen[1][2:], seen[2]] == [first, second, first + second]


def ask_for_shared_vector(transport: Transport) -> Any:
    return outcome(transport.shared_vector, "model", 3, torch.float32, transport.peers)


def test_a_shared_vector_is_refused_where_no_memory_is_shared() -> None:
    for kind, text in run("process_group", ask_for_shared_vector, 2):
        assert kind == "RuntimeError"
        assert "'model'" in text
        assert "no shared memory" in text
        assert "use the shared_memory transport" in text


# On a GPU


def exchange_on_gpu(transport: Transport) -> list[Any]:
    peer = 1 - transport.rank
    own = transport.allocate(MILLION)
    assert (bool(own.any()), own.device.type) == (False, "cuda")
    own.copy_(pattern(MILLION, torch.float32, seed=transport.rank))
    own[5] = 1000 + transport.rank
    work = transport.isend(own[5:-1], peer, "slice")
    copied = transport.isend(torch.arange(10, device=transport.device), peer, "copy")
    expected = pattern(MILLION, torch.float32, seed=peer)
    expected[5] = 1000 + peer
    message = transport.recv(peer, "slice")
    assert torch.equal(message.vector.cpu(), expected[5:-1])
    # Each side changes what it has sent (not allowed, but it shows whose memory it is); the other sees it.
    transport.barrier()
    own[5] = 2000 + transport.rank
    meet(transport)
    held, out = work.done, torch.zeros(MILLION - 6, device=transport.device)
    message.copy_to(out)
    work.wait()
    got = transport.recv(peer, "copy").vector
    copied.wait()
    transport.barrier()  # nobody may end while another holds its memory
    assert torch.equal(out[1:].cpu(), expected[6:-1])
    return [out[0].item() - peer, held, work.done, got.device.type, got.tolist()]


@pytest.mark.gpu
def test_ranks_on_a_gpu_read_each_others_memory_in_place() -> None:
    seen = run("shared_memory", exchange_on_gpu, 2, device="cuda")
    assert seen == [[2000, False, True, "cuda", list(range(10))]] * 2


def free_what_a_peer_has_mapped(transport: Transport) -> list[Any]:
    """Rank 1 keeps its view of what rank 0 frees, and gets the next vector."""
    seen: list[Any] = []
    for value in (1.0, 2.0):
        if transport.rank == 0:
            own = transport.allocate(MILLION)
            own.fill_(value)
            transport.isend(own, 1, "x").wait()
            transport.free(own)
            transport.isend(None, 1, "freed")
        else:
            with transport.recv(0, "x") as message:
                view = message.vector
                seen.append(view[5000].item())
            transport.recv(0, "freed")
            seen.append(view[5000].item())
    return seen


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the memory lives as long as the last view of it")
def test_the_memory_of_a_vector_that_is_freed_is_given_back_though_a_peer_has_mapped_it() -> None:
    assert run("shared_memory", free_what_a_peer_has_mapped, 2) == [[], [1.0, 0.0, 2.0, 0.0]]
