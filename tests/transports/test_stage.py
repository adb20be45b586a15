"""Short vectors for a peer that is sent to often are copied into slots of its stage."""

import pytest
import torch

from records.recorder import Recorder
from tests.transports.samples import pair
from transports.peer import InPlace
from transports.shared_memory import SharedMemory
from transports.stage import SLOT_BYTES, SLOTS


def make_often(sender: SharedMemory, receiver: SharedMemory) -> torch.Tensor:
    """Send short messages until they are copied; return the allocated vector."""
    own = sender.allocate(SLOT_BYTES // 4 + 1)
    for _ in range(100):
        work = sender.isend(own[:3], receiver.rank, "x")
        receiver.recv(sender.rank, "x").release()
        if not isinstance(work, InPlace):
            return own
        work.wait()
    raise AssertionError("no message was copied")


def test_a_copied_message_is_done_at_once_and_keeps_its_content() -> None:
    with pair() as (first, second):
        own = make_often(first, second).fill_(1)
        first.recorder = Recorder(0, True)
        assert first.isend(own[:5], 1, "x", n=7).done
        own.fill_(2)
        with second.recv(0, "x") as message:
            assert message.vector.tolist() == [1] * 5
            assert (message.n, message.nbytes) == (7, 20)
        frame = first.recorder.frame()
        assert frame[["op", "peer", "tag", "bytes"]].to_numpy().tolist() == [["send", 1, "x", 20]]


def test_what_is_held_is_never_written_again_and_what_finds_no_slot_is_read_in_place() -> None:
    with pair() as (first, second):
        own = make_often(first, second)
        held, works = [], []
        for i in range(SLOTS + 2):
            works.append(first.isend(own[i : i + 1].fill_(i), 1, "x"))
            held.append(second.recv(0, "x"))
        assert works[0].done
        assert not works[-1].done
        assert [message.vector.item() for message in held] == list(range(SLOTS + 2))
        for message in held:  # nothing goes the other way: the slots are told of nevertheless
            message.release()
        works[-1].wait()
        assert first.isend(own[:1], 1, "x").done
        assert second.recv(0, "x").vector.item() == 0


@pytest.mark.parametrize("what", ["long", "float64", "matrix"])
def test_other_tensors_are_read_in_place(what: str) -> None:
    with pair() as (first, second):
        own = make_often(first, second)
        doubles = first.allocate(4, torch.float64)
        value = {"long": own, "float64": doubles, "matrix": own[:4].view(2, 2)}[what].fill_(3)
        assert not first.isend(value, 1, "x").done
        assert second.recv(0, "x").vector.tolist() == [3] * value.numel()


def test_slots_that_are_free_again_are_told_of_by_the_next_copy_the_other_way() -> None:
    with pair() as (first, second):
        own, theirs = make_often(first, second), make_often(second, first)
        for i in range(10 * SLOTS):  # ping-pong
            works = first.isend(own[:1].fill_(i), 1, "x"), second.isend(theirs[:1].fill_(-i), 0, "x")
            assert second.recv(0, "x").detach().vector.item() == i
            assert first.recv(1, "x").detach().vector.item() == -i
            assert all(work.done for work in works)
