"""What `transports.base` promises when a peer is late, dead or gone, on both engines.

Above each test stands the function that its ranks run. Where a test needs an order of events between ranks, messages
make it; nothing sleeps and hopes.
"""

import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from records.events import clock
from tests.ranks import LIMIT, outcome, run, run_with_deaths, values, wait_until
from transports.base import ANY, Transport, WaitTimeout
from transports.shared_memory import SharedMemory

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
]  # fmt: skip
MILLION = 1_000_000


# Time-outs


def wait_in_vain(transport: Transport) -> dict[str, Any]:
    if transport.rank != 0:
        transport.recv(0, "go on")
        transport.isend(transport.rank, 0, "x")
        transport.isend(transport.rank, 0, "y")
        transport.recv(0, "go home")
        return {}

    def wait(**limit: float) -> dict[int, tuple[tuple[int, ...], str, bool]]:
        seen = {}
        for src in (2, ANY):
            t0 = clock()
            with pytest.raises(WaitTimeout) as caught:
                transport.recv(src, "x", **limit)
            seen[src] = (caught.value.ranks, str(caught.value), 0.2 <= clock() - t0 < 10)
        return seen

    given_limit = wait(timeout=0.2)
    transport.timeout = 0.2
    own_limit = wait()
    transport.timeout = LIMIT
    for peer in transport.peers:
        transport.isend(None, peer, "go on")
    after = {transport.recv(src, "x").object for src in (2, ANY, ANY)}
    late = sorted(transport.recv(ANY, "y", timeout=LIMIT).object for _ in transport.peers)  # type: ignore[union-attr]
    for peer in transport.peers:
        transport.isend(None, peer, "go home")
    return {"given": given_limit, "own": own_limit, "after": after, "late": late}


def test_a_time_out_names_the_ranks_and_harms_nothing(engine: str) -> None:
    seen = run(engine, wait_in_vain, 4)[0]
    assert seen["given"] == seen["own"]
    assert seen["given"] == {
        2: ((2,), "rank 0 waited 0.2 s for 'x' from rank 2", True),
        ANY: ((1, 2, 3), "rank 0 waited 0.2 s for 'x' from rank 1, 2, 3", True),
    }
    assert seen["after"] == {1, 2, 3}
    assert seen["late"] == [1, 2, 3]


def wait_for_a_release_in_vain(transport: Transport) -> list[Any]:
    own = transport.allocate(10)
    if transport.rank == 0:
        work = transport.isend(own, 1, "x")
        transport.timeout = 0.2
        first = outcome(work.wait)
        transport.timeout = LIMIT
        transport.isend(None, 1, "release")
        work.wait()
        return [first, work.done]
    message = transport.recv(0, "x")
    transport.recv(0, "release")
    message.release()
    return []


def test_a_wait_for_a_release_times_out_too() -> None:
    first, done = run("shared_memory", wait_for_a_release_in_vain, 2)[0]
    assert first[0] == "WaitTimeout"
    assert "release" in str(first)
    assert done


# Death of a peer


def die(how: str) -> None:
    if how == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(3)


def send_and_die(transport: Transport, how: str, src: int) -> Any:
    """Rank 2 sends and dies; rank 0 looks at its messages only when rank 1 has seen the death."""
    own = transport.allocate(1000)
    if transport.rank == 2:
        own.fill_(2)
        works = [transport.isend(number, 0, "x") for number in range(50)]
        works += [transport.isend(tensor, 0, "tensor") for tensor in (torch.arange(1000), torch.empty(0))]
        slices = [transport.isend(own[:10], 0, "slice"), transport.isend(own[990:], 0, "slice")]
        # In shared memory a slice is sent once its descriptor is; it is not done before rank 0 has read it.
        for work in works if isinstance(transport, SharedMemory) else works + slices:
            work.wait()
        die(how)
    if transport.rank == 1:
        lost = outcome(transport.recv, 2, "x")
        transport.isend(None, 0, "it is dead")
        transport.recv(0, "go home")
        return lost
    transport.recv(1, "it is dead")
    seen = {
        "objects": [transport.recv(src, "x").object for _ in range(50)],
        "tensors": [values(transport.recv(src, "tensor")) for _ in range(2)],
        "slices": [values(transport.recv(src, "slice")) for _ in range(2)],
        "recv": [outcome(transport.recv, 2, tag) for tag in ("x", "tensor", "x")],
        "isend": [outcome(transport.isend, 1, 2, "x") for _ in range(3)],
        "poll": outcome(transport.recv, 2, "x", timeout=0),
    }
    transport.isend(None, 1, "go home")
    return seen


@pytest.mark.parametrize(("how", "src"), [("SIGKILL", 2), ("exit", ANY)])
def test_what_a_dead_rank_had_sent_is_delivered_before_its_death(engine: str, how: str, src: int) -> None:
    seen = run_with_deaths(engine, send_and_die, 3, how, src)
    assert seen[1] == ("PeerLost", 2)
    lost = ("PeerLost", 2)
    assert seen[0] == {
        "objects": list(range(50)),
        "tensors": [list(range(1000)), []],
        "slices": [[2] * 10] * 2,
        "recv": [lost] * 3,
        "isend": [lost] * 3,
        "poll": lost,
    }


def wait_for_anybody_while_one_dies(transport: Transport, how: str) -> Any:
    if transport.rank == 2:
        transport.recv(0, "die")
        die(how)
    if transport.rank in (1, 3):
        transport.recv(0, "send")
        transport.isend(transport.rank, 0, "x")
        transport.recv(0, "go home")
        return None
    transport.isend(None, 2, "die")
    seen = [outcome(transport.recv, ANY, "x")]
    seen += [outcome(transport.recv, ANY, "x", timeout=0), outcome(transport.recv, ANY, "another", timeout=0)]
    for peer in (1, 3):
        transport.isend(None, peer, "send")
        seen.append(transport.recv(ANY, "x").object)
    seen += [outcome(transport.recv, ANY, "x", timeout=0.1), outcome(transport.recv, 2, "x")]
    for peer in (1, 3):
        transport.isend(None, peer, "go home")
    return seen


@pytest.mark.parametrize("how", ["SIGKILL", "exit"])
def test_recv_from_any_tells_a_death_once_and_goes_on(engine: str, how: str) -> None:
    seen = run_with_deaths(engine, wait_for_anybody_while_one_dies, 4, how)
    assert seen == {
        0: [
            ("PeerLost", 2),
            None,
            None,
            1,
            3,
            ("WaitTimeout", "rank 0 waited 0.1 s for 'x' from rank 1, 3"),
            ("PeerLost", 2),
        ],
        1: None,
        3: None,
    }


def die_with_work_outstanding(transport: Transport) -> Any:
    """Rank 2 keeps a slice, never asks for the rest, and dies while rank 0 waits and rank 1 has much more for it."""
    own = transport.allocate(1000)
    if transport.rank == 2:
        transport.recv(0, "slice")
        transport.recv(0, "about to wait")
        die("SIGKILL")
    if transport.rank == 1:
        works = [transport.isend(torch.ones(MILLION), 2, "much") for _ in range(10)]
        transport.isend(None, 0, "have sent")
        lost = outcome(transport.recv, 2, "x")
        return [lost, outcome(transport.isend, 1, 2, "x"), *(work.done for work in works)]
    works = [transport.isend(own[:10], 2, "slice"), transport.isend(own, 2, "unread")]
    transport.recv(1, "have sent")
    transport.isend(None, 2, "about to wait")
    works.append(transport.isend(torch.ones(5 * MILLION), 2, "large"))
    for work in works:
        work.wait()
    return [work.done for work in works]


def test_what_was_sent_to_a_dead_rank_counts_as_done(engine: str) -> None:
    lost = ("PeerLost", 2)
    assert run_with_deaths(engine, die_with_work_outstanding, 3) == {0: [True] * 3, 1: [lost, lost, *[True] * 10]}


def die_in_the_middle_of_a_message(transport: Transport) -> Any:
    if transport.rank == 1:
        transport.isend("whole", 0, "x").wait()
        transport.isend(torch.ones(5 * MILLION), 0, "x")
        transport.recv(0, "die", timeout=0)
        die("SIGKILL")
    first = transport.recv(1, "x").object
    return first, outcome(transport.recv, 1, "x")


def test_a_message_that_a_death_cut_short_is_not_delivered() -> None:
    assert run_with_deaths("shared_memory", die_in_the_middle_of_a_message, 2) == {0: ("whole", ("PeerLost", 1))}


def lose_everybody(transport: Transport) -> Any:
    if transport.rank != 0:
        transport.recv(0, "die")
        die("exit")
    for peer in transport.peers:
        transport.isend(None, peer, "die")
    return [outcome(transport.recv, ANY, "x") for _ in range(4)]


def test_recv_from_any_fails_when_nobody_is_left_alive(engine: str) -> None:
    told, told_too, *later = run_with_deaths(engine, lose_everybody, 3)[0]
    assert {told, told_too} == {("PeerLost", 1), ("PeerLost", 2)}
    assert len(later) == 2
    assert set(later) <= {told, told_too}


def come_to_a_dead_ranks_barrier(transport: Transport) -> Any:
    if transport.rank == 1:
        die("SIGKILL")
    return outcome(transport.barrier)


def test_a_barrier_with_a_dead_rank_fails(engine: str) -> None:
    assert run_with_deaths(engine, come_to_a_dead_ranks_barrier, 2) == {0: ("PeerLost", 1)}


def be_declared_dead(transport: Transport) -> Any:
    """Rank 1 stops for good; its pipes stay open, so only the launcher can tell rank 0."""
    if transport.rank == 1:
        transport.isend("before", 0, "x")
        os.kill(os.getpid(), signal.SIGSTOP)
    return (
        transport.recv(1, "x").object,
        outcome(transport.recv, 1, "x", timeout=LIMIT),
        outcome(transport.isend, 1, 1, "x"),
    )


def test_a_rank_that_the_launcher_gives_up_is_lost() -> None:
    lost = ("PeerLost", 1)
    seen = run_with_deaths("shared_memory", be_declared_dead, 2, timeout=5.0)
    assert seen == {0: ("before", lost, lost)}


# Leaving


def leave_in_order(transport: Transport, order: list[int]) -> Any:
    """The ranks of `order` leave one after another, each with messages still under way; rank 0 stays and looks."""
    own = transport.allocate(100)
    if transport.rank != 0:
        while transport.recv(0, "leave or talk").object == "talk":
            transport.isend(transport.rank, 0, "talk")
        own.fill_(transport.rank)
        transport.isend(own[:5], 0, "last")
        transport.isend(torch.full((2 * MILLION,), transport.rank), 0, "last")
        transport.isend(transport.rank, 0, "last")
        transport.close()
        transport.close()
        return None
    seen: list[Any] = []
    for left, leaver in enumerate(order):
        staying = order[left + 1 :]
        transport.isend("leave", leaver, "leave or talk")
        last = [set(values(transport.recv(leaver, "last"))) for _ in range(2)]
        seen.append((last, transport.recv(leaver, "last").object))
        seen.append([outcome(transport.recv, leaver, "last") for _ in range(2)])
        seen.append(outcome(transport.isend, 1, leaver, "x"))
        if staying:
            seen.append(outcome(transport.recv, ANY, "talk", timeout=0))
            for peer in staying:
                transport.isend("talk", peer, "leave or talk")
            seen.append({transport.recv(ANY, "talk").object for _ in staying})
    seen.append(outcome(transport.recv, ANY, "talk")[0])
    return seen


@pytest.mark.parametrize("order", [[1, 2, 3], [3, 2, 1], [2, 3, 1]])
def test_ranks_may_leave_in_any_order(engine: str, order: list[int]) -> None:
    expected: list[Any] = []
    for left, leaver in enumerate(order):
        staying = order[left + 1 :]
        lost = ("PeerLost", leaver)
        expected += [([{leaver}, {leaver}], leaver), [lost, lost], lost]
        if staying:
            expected += [None, set(staying)]
    assert run(engine, leave_in_order, 4, order)[0] == [*expected, "PeerLost"]


def leave_with_mail_unread(transport: Transport, to_everybody: bool, folder: str) -> None:
    """Everybody has sent more than a pipe takes, and nobody reads it. Files tell when all have."""
    own = transport.allocate(1000)
    left = (transport.rank - 1) % transport.world_size
    for peer in transport.peers if to_everybody else [left]:
        for number in range(20):
            transport.isend(torch.ones(100_000), peer, "unread")
            transport.isend(own, peer, "unread slice")
            transport.isend(number, peer, "unread object")
    Path(folder, str(transport.rank)).touch()
    wait_until(lambda: len(list(Path(folder).iterdir())) == transport.world_size)


@pytest.mark.parametrize("to_everybody", [True, False])
def test_ranks_may_leave_with_messages_unread(engine: str, to_everybody: bool, tmp_path: Path) -> None:
    t0 = clock()
    run(engine, leave_with_mail_unread, 3, to_everybody, str(tmp_path))
    assert clock() - t0 < LIMIT / 2, "they waited for each other until the time-out"


def leave_while_the_other_is_busy(transport: Transport, left: str) -> Any:
    """Rank 1 neither receives nor closes before it sees, by a file, that rank 0 is out of `close`."""
    if transport.rank == 0:
        transport.isend("last words", 1, "x")
        transport.timeout = 0.5
        transport.close()
        Path(left).touch()
        return None
    return wait_until(Path(left).exists), transport.recv(0, "x").object, outcome(transport.recv, 0, "x")


def test_close_waits_for_a_busy_peer_no_longer_than_the_time_out(engine: str, tmp_path: Path) -> None:
    seen = run(engine, leave_while_the_other_is_busy, 2, str(tmp_path / "left"))[1]
    assert seen == (True, "last words", ("PeerLost", 0))


def go_on_without_the_first(transport: Transport) -> Any:
    """Rank 0 leaves at once; the others learn of it and talk on."""
    if transport.rank == 0:
        return None
    lost = outcome(transport.recv, 0, "x")
    other = 3 - transport.rank
    transport.isend(transport.rank, other, "x")
    return lost, transport.recv(ANY, "x").object, transport.recorder.rank


def test_others_go_on_when_rank_0_has_left(engine: str) -> None:
    assert run(engine, go_on_without_the_first, 3) == [None, (("PeerLost", 0), 2, 1), (("PeerLost", 0), 1, 2)]


def use_after_close(transport: Transport) -> list[str]:
    peer = 1 - transport.rank
    vector = transport.allocate(10)
    work = transport.isend(vector, peer, "x")
    held = transport.recv(peer, "x")
    transport.close()
    with tempfile.TemporaryFile() as file:  # it may be given the number that a pipe had
        held.release()
        work.wait()
        size = os.fstat(file.fileno()).st_size
    said = []
    for use in (lambda: transport.isend(1, peer, "y"), lambda: transport.recv(peer, "y"), transport.barrier):
        try:
            use()
        except RuntimeError as error:
            said.append(str(error))
    return [*said, str(size)]


def test_a_closed_transport_says_so_and_writes_nowhere(engine: str) -> None:
    for rank, said in enumerate(run(engine, use_after_close, 2)):
        assert said == [f"rank {rank} has closed its transport"] * 3 + ["0"]
