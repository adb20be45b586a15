"""Barrier, ledger and events of the transports, and any schedule of messages, on every transport.

Above each test stands what its ranks run.
"""

import itertools
import random
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradwire.core.transports.base import ANY, Message, Transport, Work
from tests.ranks import LIMIT, engine_named, outcome, pattern, run

# Barrier


def arrive_one_by_one(transport: Transport, folder: str) -> list[int]:
    """In each round one rank is late; whoever leaves notes how many had come."""
    come = []
    for number in range(6):
        if number % transport.world_size == transport.rank:
            time.sleep(0.02)
        Path(folder, f"{number}.{transport.rank}").touch()
        transport.barrier()
        come.append(len(list(Path(folder).glob(f"{number}.*"))))
    return come


def test_nobody_leaves_a_barrier_before_all_have_come(engine: str, tmp_path: Path) -> None:
    assert run(engine, arrive_one_by_one, 3, str(tmp_path)) == [[3] * 6] * 3


def stay_away_from_the_barrier(transport: Transport) -> Any:
    if transport.rank == 2:
        for peer in transport.peers:
            transport.recv(peer, "given up")
        for peer in transport.peers:
            transport.isend(None, peer, "go home")
        return None
    transport.timeout = 0.3
    seen = outcome(transport.barrier)
    transport.timeout = LIMIT
    transport.isend(None, 2, "given up")
    transport.recv(2, "go home")
    return seen


def test_a_barrier_that_not_all_reach_times_out(engine: str) -> None:
    seen = run(engine, stay_away_from_the_barrier, 3)
    told = [f"rank {rank} waited 0.3 s for '(barrier)' from rank {late}" for rank, late in ((0, 2), (1, 0))]
    assert seen == [*(("WaitTimeout", text) for text in told), None]


# The ledger


def send_and_count(transport: Transport) -> dict[str, Any]:
    own = transport.allocate(1000, torch.float64)
    if transport.rank == 0:
        transport.recorder.epoch, transport.recorder.step = 2, 7
        bits = torch.zeros(10, dtype=torch.bfloat16)
        sends = [(own[:100], 1, "slice"), (own[::2], 1, "copy"), (torch.zeros(0), 1, "nothing"),
                 (bits, 2, "copy"), (b"x" * 5000, 2, "object"), (None, 2, "none")]  # fmt: skip
        for work in [transport.isend(*send) for send in sends]:
            work.wait()
    elif transport.rank == 1:
        transport.recv(0, "slice", timeout=LIMIT).release()  # type: ignore[union-attr]
        transport.recv(0, "copy").copy_to(torch.zeros(500, dtype=torch.float64))
        transport.recv(ANY, "nothing").release()
        transport.recv(0, "never sent", timeout=0)
    else:
        for tag in ("copy", "object", "none"):
            transport.recv(0, tag).release()
    transport.barrier()
    events = transport.recorder.frame()
    assert (events["t1"] >= events["t0"]).all()
    assert set(events["rank"]) == {transport.rank}
    if transport.rank == 0:
        assert set(zip(events["epoch"], events["step"], strict=True)) == {(2, 7)}
    messages, waits = (events[events["phase"] == phase] for phase in ("communicate", "wait"))
    assert len(messages) + len(waits) == len(events)
    assert set(zip(waits["op"], waits["bytes"], strict=True)) <= {("", 0)}
    return {
        "sent": transport.messages_sent,
        "bytes": transport.bytes_sent,
        "events": list(messages[["op", "peer", "tag", "bytes"]].itertuples(index=False, name=None)),
        "waits": set(zip(waits["peer"], waits["tag"], strict=True)),
    }


def test_ledger_and_events_tell_what_was_sent_and_nothing_else(engine: str) -> None:
    sender, first, second = run(engine, send_and_count, 3, record=True)
    pickled = sender["bytes"][2] - 20
    assert 5000 < pickled < 5050
    assert (sender["sent"], sender["bytes"]) == ({1: 3, 2: 3}, {1: 800 + 4000, 2: 20 + pickled})
    sent = {1: [("slice", 800), ("copy", 4000), ("nothing", 0)], 2: [("copy", 20), ("object", pickled), ("none", 0)]}
    assert sender["events"] == [("send", dst, *message) for dst, messages in sent.items() for message in messages]
    assert sender["waits"] <= {(1, "release"), (2, "release")}
    for rank, receiver in ((1, first), (2, second)):
        assert receiver["sent"] == receiver["bytes"] == {}
        assert receiver["events"] == [("recv", 0, *message) for message in sent[rank]]
        assert receiver["waits"] <= {(0, tag) for tag, _ in sent[rank]}


def make_the_other_wait(transport: Transport) -> list[Any]:
    """What rank 0 waits for is not sent before rank 0 is known to wait (as far as one can know)."""
    own = transport.allocate(10)
    if transport.rank == 1:
        transport.recv(0, "about to wait")
        time.sleep(0.05)
        transport.isend(None, 0, "late")
        message = transport.recv(0, "x")
        transport.recv(0, "about to wait")
        time.sleep(0.05)
        message.release()
        return []
    transport.isend(None, 1, "about to wait")
    transport.recv(1, "late")
    work = transport.isend(own, 1, "x")
    transport.isend(None, 1, "about to wait")
    work.wait()
    events = transport.recorder.frame()
    waits = events[events["phase"] == "wait"]
    return [(tag, peer, t1 > t0) for tag, peer, t0, t1 in waits[["tag", "peer", "t0", "t1"]].values.tolist()]


def test_the_time_of_waiting_is_recorded(engine_in_real_time: str) -> None:
    late, *release = run(engine_in_real_time, make_the_other_wait, 2, record=True)[0]
    assert late == ("late", 1, True)
    if engine_named(engine_in_real_time).in_place:
        assert release == [("release", 1, True)]


# Any schedule


Schedule = list[tuple[int, int, str, str, int]]  # source, destination, tag, kind, number of elements


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    pair = st.permutations(range(3)).map(lambda order: order[:2])
    kind = st.sampled_from(["copy", "slice", "strided", "object"])
    numel = st.one_of(st.integers(0, 20), st.integers(0, 30_000))
    messages = draw(st.lists(st.tuples(pair, st.sampled_from("ab"), kind, numel), max_size=50))
    return [(src, dst, tag, kind, numel) for (src, dst), tag, kind, numel in messages]


def follow_all(transport: Transport, plans: list[tuple[Schedule, int]]) -> list[str]:
    """Send and receive what each schedule says, interleaved at random; return what was not as it should be."""
    room = transport.allocate(50 * 30_000)
    wrong = []
    for number, (schedule, seed) in enumerate(plans):
        name = f"plan {number}, tag "
        wrong += follow(transport, room, schedule, random.Random(seed + transport.rank), name)
        transport.barrier()  # everybody has sent everything
        wrong += [f"{name}{tag}: one more" for tag in "ab" if transport.recv(ANY, name + tag, timeout=0) is not None]
        transport.barrier()  # nobody has left
    return wrong


def follow(transport: Transport, room: torch.Tensor, schedule: Schedule, chance: random.Random, name: str) -> list[str]:
    """Follow one schedule. No two slices of `room` overlap, so a wrong one shows."""
    wrong: list[str] = []
    works: list[Work] = []
    held: list[Message] = []
    starts = [0, *itertools.accumulate(numel for *_, numel in schedule)]
    to_send = deque(place for place, (src, *_) in enumerate(schedule) if src == transport.rank)
    to_come: dict[tuple[int, str], deque[int]] = {}
    for place, (src, dst, tag, _, _) in enumerate(schedule):
        if dst == transport.rank:
            to_come.setdefault((src, name + tag), deque()).append(place)
    while to_send or any(to_come.values()):
        if to_send and (not any(to_come.values()) or chance.random() < 0.6):
            place = to_send.popleft()
            _, dst, tag, kind, numel = schedule[place]
            value: Any = pattern(numel, torch.float32, seed=place)
            if kind == "slice":
                value = room[starts[place] : starts[place] + numel].copy_(value)
            elif kind == "strided":
                value = value.repeat_interleave(2)[::2]
            works.append(transport.isend((place, value.tolist()) if kind == "object" else value, dst, name + tag))
            continue
        src, tag = chance.choice([key for key, places in to_come.items() if places])
        source = chance.choice([src, ANY])
        # Whoever still has to send may only look: another may wait for it.
        look = to_send or chance.random() < 0.3
        message = transport.recv(source, tag, timeout=0) if look else transport.recv(source, tag)
        if message is None:
            continue
        place = to_come[message.src, tag].popleft()
        *_, kind, numel = schedule[place]
        expected = pattern(numel, torch.float32, seed=place)
        if kind == "object":
            right = message.object == (place, expected.tolist())
        else:
            right = message.object is None and torch.equal(message.vector, expected)
        if not right:
            wrong.append(f"{tag} from {message.src}: not message {place} ({kind} of {numel})")
        held.append(message)
        while held and chance.random() < 0.5:
            held.pop(chance.randrange(len(held))).release()
    for kept in held:
        kept.release()
    for work in works:
        work.wait()
    return wrong + ["work not done" for work in works if not work.done]


@pytest.mark.slow
@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(plans=st.lists(st.tuples(schedules(), st.integers(0, 2**32)), min_size=1, max_size=5))
def test_any_schedule_of_messages_arrives_complete_and_in_order(engine: str, plans: list[tuple[Schedule, int]]) -> None:
    assert run(engine, follow_all, 3, plans) == [[], [], []]
