"""Short vectors for a peer that is sent to often are copied into slots of its stage."""

import os
import time
from pathlib import Path
from random import Random

import pytest
import torch

from gradwire.core.records.recorder import Recorder
from gradwire.core.transports.base import Transport
from gradwire.core.transports.messages import Delivered, Message, PeerLost
from gradwire.core.transports.peer import InPlace
from gradwire.core.transports.shared_memory import SharedMemory
from gradwire.core.transports.staging_buffer import SLOT_BYTES, SLOTS
from tests.core.transports.samples import die, pair
from tests.core.transports.test_restarts import ONCE, see_it_return
from tests.core.transports.test_segments import names, no_room_beyond
from tests.ranks import LIMIT, launch


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


def test_a_stage_for_which_there_is_no_memory_is_done_without() -> None:
    """It only saves time; all is read in place then."""
    with pair() as (first, second):
        own = first.allocate(3)
        with no_room_beyond(SLOT_BYTES):
            for i in range(20):
                work = first.isend(own.fill_(i), 1, "x")
                with second.recv(0, "x") as message:
                    assert message.vector.tolist() == [i] * 3
                assert isinstance(work, InPlace)
                work.wait()
        assert names() == []


def live_twice(transport: Transport) -> list[float]:
    """Rank 1 dies while rank 0 holds its copies, is started again, and sends as before."""
    own, held = transport.allocate(3), list[Message]()
    for i in range(30):
        if transport.rank == 1:
            work = transport.isend(own.fill_(i + 100 * transport.rejoined), 0, "x")
            transport.recv(0, "go on")
            if i == 20 and not transport.rejoined:
                assert isinstance(work, Delivered)
                die()
            work.wait()
            continue
        message = transport.recv(1, "x")
        if i < 20:
            message.release()
        else:
            held.append(message)
        transport.isend(None, 1, "go on")
        if i == 20:
            break
    if transport.rank == 1:
        return []
    see_it_return(transport)
    transport.admit(1)
    for _ in range(30):
        held.append(transport.recv(1, "x").detach())
        transport.isend(None, 1, "go on")
        if len(held) == 20:
            held[0].release()  # into the void
    return [message.vector[0].item() for message in held]


def test_the_stage_of_an_earlier_life_is_not_taken_for_the_new_ones() -> None:
    assert launch(live_twice, 2, **ONCE)[0][1:] == [*range(100, 130)]


def test_other_tensors_are_read_in_place() -> None:
    with pair() as (first, second):
        own = make_often(first, second)
        for value in (own, first.allocate(4, torch.float64), own[:4].view(2, 2), own[:5].requires_grad_()):
            assert not first.isend(value, 1, "x").done
            assert second.recv(0, "x").vector.tolist() == [0] * value.numel()


@pytest.mark.parametrize("ways", [1, 2])
def test_whatever_is_held_and_released_in_whatever_order_keeps_its_content(ways: int) -> None:
    random = Random(0)
    with pair() as ranks:
        own = [make_often(ranks[r], ranks[1 - r]).copy_(torch.arange(SLOT_BYTES // 4 + 1)) for r in (0, 1)]
        held: list[list[tuple[Message, int]]] = [[], []]
        for i in range(500):
            r = random.randrange(ways)
            ranks[r].isend(own[r][i : i + 1], 1 - r, "x")
            held[r].append((ranks[1 - r].recv(r, "x"), i))
            random.shuffle(held[r])
            for _ in range(random.randrange(len(held[r]) + 1)):
                message, value = held[r].pop()
                assert message.vector.item() == value
                message.release()


def die_with_the_stage_on_its_way(transport: Transport) -> list[float] | None:
    """Rank 1 sends until it has a stage, and dies before rank 0 has looked."""
    if transport.rank == 1:
        own = transport.allocate(20).copy_(torch.arange(20))
        transport.isend(os.getpid(), 0, "who")
        transport.isend(own[:1], 0, "x").wait()
        for i in range(1, 20):
            transport.isend(own[i : i + 1], 0, "x")
        die()
    pid = transport.recv(1, "who").object
    found = [transport.recv(1, "x").detach().vector.item()]
    for _ in range(int(LIMIT * 100)):
        if not Path(f"/proc/{pid}").exists():
            break
        time.sleep(0.01)
    found += [transport.recv(1, "x").detach().vector.item() for _ in range(19)]
    with pytest.raises(PeerLost):
        transport.recv(1, "x")
    return found


def test_what_a_dead_rank_sent_while_its_stage_was_on_its_way_arrives() -> None:
    assert launch(die_with_the_stage_on_its_way, 2, timeout=LIMIT, expendable=[1])[0] == [*range(20)]
