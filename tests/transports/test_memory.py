"""Memory that ranks share, and who has none."""

from typing import Any

import pytest
import torch

from tests.ranks import outcome, pattern, run
from tests.transports.samples import MILLION
from transports.base import Transport


def write_into_one_vector(transport: Transport) -> list[Any]:
    """Ranks 0 and 2 share one vector, ranks 1 and 2 another; each writes its own element and sees the other's."""
    seen = []
    for name, ranks in (("first", [2, 0]), ("second", [1, 2])):
        if transport.rank in ranks:
            vector = transport.shared_vector(name, 3, torch.int64, ranks)
            seen.append(vector.tolist())
            transport.barrier()
            vector[transport.rank] = transport.rank + 10
            transport.barrier()
            seen.append(vector.tolist())
        else:
            transport.barrier()
            transport.barrier()
    return seen


def test_a_shared_vector_is_one_memory_that_all_its_ranks_write() -> None:
    first, second = [[0, 0, 0], [10, 0, 12]], [[0, 0, 0], [0, 11, 12]]
    assert run("shared_memory", write_into_one_vector, 3) == [first, second, first + second]


def ask_for_shared_vector(transport: Transport) -> Any:
    return outcome(transport.shared_vector, "model", 3, torch.float32, transport.peers)


def test_a_shared_vector_is_refused_where_no_memory_is_shared() -> None:
    for kind, text in run("process_group", ask_for_shared_vector, 2):
        assert kind == "RuntimeError"
        assert "'model'" in text
        assert "no shared memory" in text
        assert "use the shared_memory transport" in text


# On a GPU


def exchange_on_gpu(transport: Transport) -> dict[str, Any]:
    peer = 1 - transport.rank
    own = transport.allocate(MILLION)
    zeroed, device = not bool(own.any()), own.device.type
    own.copy_(pattern(MILLION, torch.float32, seed=transport.rank))
    own[5] = 1000 + transport.rank
    work = transport.isend(own[5:-1], peer, "slice")
    copied = transport.isend(torch.arange(10, device=transport.device), peer, "copy")
    expected = pattern(MILLION, torch.float32, seed=peer)
    expected[5] = 1000 + peer
    message = transport.recv(peer, "slice")
    right = torch.equal(message.vector.cpu(), expected[5:-1])
    # Each side changes what it has sent (not allowed, but it shows whose memory it is); the other sees it.
    transport.isend(None, peer, "seen")
    transport.recv(peer, "seen")
    own[5] = 2000 + transport.rank
    torch.cuda.synchronize()
    transport.isend(None, peer, "changed")
    transport.recv(peer, "changed")
    in_place = message.vector[0].item() == 2000 + peer
    held = work.done
    out = torch.zeros(MILLION - 6, device=transport.device)
    message.copy_to(out)
    work.wait()
    got = transport.recv(peer, "copy").vector
    copied.wait()
    transport.barrier()  # nobody may end while another holds its memory
    copied_to = out[0].item() == 2000 + peer and torch.equal(out[1:].cpu(), expected[6:-1])
    return {
        "devices": {device, got.device.type, message.vector.device.type}, "zeroed": zeroed, "right": right,
        "in place": in_place, "held": held, "done": work.done, "copied to": copied_to, "copy": got.tolist(),
    }  # fmt: skip


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_ranks_on_a_gpu_read_each_others_memory_in_place() -> None:
    for seen in run("shared_memory", exchange_on_gpu, 2, device="cuda"):
        assert seen == {
            "devices": {"cuda"}, "zeroed": True, "right": True, "in place": True, "held": False, "done": True,
            "copied to": True, "copy": list(range(10)),
        }  # fmt: skip


def share_a_vector_on_gpu(transport: Transport) -> tuple[str, list[float]]:
    vector = transport.shared_vector("x", 4, torch.float32, [0, 1])
    vector[transport.rank] = 1 + transport.rank
    torch.cuda.synchronize()
    transport.barrier()
    seen = vector.tolist()
    transport.barrier()
    return vector.device.type, seen


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_ranks_on_a_gpu_write_one_shared_vector() -> None:
    assert run("shared_memory", share_a_vector_on_gpu, 2, device="cuda") == [("cuda", [1, 2, 0, 0])] * 2
