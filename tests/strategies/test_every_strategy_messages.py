"""Every strategy, by being in the table: what it sends, that nobody spoils a vector on its way, every transport."""

import random
import zlib
from collections import defaultdict
from typing import Any

import pandas as pd
import pytest
import torch

from gradwire.compression import Layout
from gradwire.core.records.tables import ledger
from gradwire.core.strategy.cost_model import evaluate_cost
from gradwire.core.strategy.traits import NOTHING
from gradwire.core.transports.base import Message, Transport, Work
from gradwire.sharding.blocks import blocks_of
from strategies import ParamServer, RingAllReduce, Strategy
from strategies.local_models.fragments import Fragmented
from tests.ranks import ENGINES, LIMIT, launch, run
from tests.strategies.kinds import EXHAUSTIVE, exact, fit, is_virtual, some, start, variants, with_workers
from tests.strategies.loops import Rank, Task, trajectories

Kind = type[Strategy]

# The ledger is the formula


def counted_steps(strategy: Strategy) -> int:
    """How many steps of a worker are counted: whole periods, of at least 6 steps."""
    return strategy.period * -(-6 // strategy.period)


def counted(transport: Transport, tasks: list[Task]) -> list[tuple[pd.DataFrame, Layout, torch.Tensor, int, Strategy]]:
    """The events of so many steps of each worker, without what begins or ends an epoch, x, and who knows its cost."""
    found = []
    for task in tasks:
        first = len(transport.recorder.frame())
        rank = Rank(transport, task)
        transport.recorder.epoch = 1
        if rank.is_server:
            rank.strategy.serve()
        else:
            for i in range(counted_steps(task.strategy)):
                rank.take(i)
        if isinstance(rank.strategy, Fragmented):
            rank.strategy.use_all(wait=True)  # what is on its way belongs to these steps
        transport.recorder.mark_codes()
        transport.recorder.epoch = 2
        rank.strategy.finish()
        events = transport.recorder.frame()[first:]
        replica, blocks = rank.replica, len(blocks_of(rank.replica.model, rank.replica.layout))
        sender = rank.strategy if hasattr(rank.strategy, "chosen") else task.strategy
        found.append((events[events["epoch"] == 1], replica.layout, replica.x.clone(), blocks, sender))
        transport.recorder.epoch = 0
        rank.close()
    return found


def test_what_it_sends_is_what_it_says(punctual: Kind, n_gpus: int) -> None:
    """With three workers whatever its options."""
    strategies = variants(punctual, n_gpus) if n_gpus == with_workers(punctual, 3) else [exact(punctual)]
    tasks = [Task(strategy, n_gpus, "plain") for strategy in strategies]
    assert tasks, "no options are possible"
    ranks = start(punctual, counted, n_gpus, tasks, record=True)
    for case, task in enumerate(tasks):
        pairs = ledger(pd.concat([rank[case][0] for rank in ranks]))
        _, layout, x, blocks, sender = ranks[0][case]
        for role, traffic in sender.cost().by_role.items():
            own = [rank for rank, of_rank in enumerate(task.roles) if of_rank == role]
            sent = pairs[pairs["src"].isin(own)]
            found = tuple(sent[["messages", "bytes"]].sum() / len(own) / counted_steps(task.strategy))
            expected = evaluate_cost(sender, traffic, n_gpus, x.nbytes, task.coded(layout, x), 8, blocks)
            assert found == pytest.approx(expected, rel=1e-12), f"a {role} of {task.strategy}"


# The Work of a message is done when its reader needs it no longer: until then nobody changes the vector

Seen = dict[tuple[int, str], list[Any]]


class Witness:
    """Digests of every vector: as it was sent, and where it is read in place as it was received and released."""

    def __init__(self, transport: Transport) -> None:
        self.sent: Seen = defaultdict(list)
        self.received: Seen = defaultdict(list)
        self.in_place = 0
        self.chance = random.Random(transport.rank)
        self.transport = transport
        self.isend, self.recv = transport.isend, transport.recv
        transport.isend = self.spied_isend  # type: ignore[method-assign]
        transport.recv = self.spied_recv  # type: ignore[assignment, method-assign]

    def spied_isend(self, value: Any, dst: int, tag: str, n: float = 0) -> Work:
        if isinstance(value, torch.Tensor):
            self.sent[dst, tag].append(digest(value))
        return self.isend(value, dst, tag, n=n)

    def spied_recv(self, src: int, tag: Any, timeout: float | None = None) -> Message | None:
        message = self.recv(src, tag) if timeout is None else self.recv(src, tag, timeout)
        if message is not None and message.tensor is not None:
            self.watch(message, message.tensor)
        return message

    def watch(self, message: Message, tensor: torch.Tensor) -> None:
        self.linger()  # whoever overwrites it too early has the time to
        story = [digest(tensor), None]
        self.received[message.src, message.tag].append(story)
        give_back = message._give_back
        if give_back is None:  # a copy of the receiver's own
            story[1] = story[0]
            return
        self.in_place += 1

        def released() -> None:
            self.linger()
            story[1] = digest(tensor)
            give_back()

        message._give_back = released

    def linger(self) -> None:
        self.transport.sleep(self.chance.choice((0.0, 0.0, 0.0, 0.003)))


def digest(tensor: torch.Tensor) -> int:
    return zlib.crc32(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())


def witnessed(transport: Transport, tasks: list[Task]) -> list[tuple[dict[Any, Any], dict[Any, Any], int]]:
    found = []
    for task in tasks:
        witness = Witness(transport)
        _train(Rank(transport, task))
        found.append((dict(witness.sent), dict(witness.received), witness.in_place))
        transport.isend, transport.recv = witness.isend, witness.recv  # type: ignore[method-assign]
        transport.barrier()
    return found


def _train(rank: Rank) -> None:
    for number in range(1, rank.task.epochs + 1):
        rank.epoch(number)


@EXHAUSTIVE
def test_no_vector_on_its_way_is_changed_before_its_reader_has_released_it(kind: Kind, exhaustive: bool) -> None:
    """In virtual time, whose readers too see what the sender does to a vector; in processes too, if exhaustive all."""
    n_gpus = with_workers(kind, 3)
    tasks = [Task(strategy, n_gpus, "plain", 0.5) for strategy in some(variants(kind, n_gpus), exhaustive)]
    runs = [(start(kind, witnessed, n_gpus, tasks), tasks, not is_virtual(kind))]
    if kind in (RingAllReduce, ParamServer) or (exhaustive and is_virtual(kind)):
        runs.append((launch(witnessed, n_gpus, tasks[:1], timeout=LIMIT), tasks[:1], True))
    for ranks, of_ranks, in_processes in runs:
        for case, task in enumerate(of_ranks):
            for rank, (_, received, in_place) in enumerate(witness[case] for witness in ranks):
                sends = kind().cost().by_role[task.roles[rank]] != NOTHING and kind.traits.agree and n_gpus > 1
                assert in_place or not (sends and in_processes), "vectors are read where they are"
                for (src, tag), stories in received.items():
                    sent = ranks[src][case][0][rank, tag]
                    where = f"{tag} from {src} to {rank}, {task.strategy}"
                    assert stories == [[story, story] for story in sent], where


# Every transport

EVERY_ENGINE = [
    pytest.param("process_group", marks=pytest.mark.xdist_group("torchrun")),
    *(pytest.param(engine, marks=pytest.mark.exhaustive) for engine in ENGINES if engine != "process_group"),
]


@pytest.mark.parametrize("on", EVERY_ENGINE)
def test_the_transport_does_not_decide_the_result(determined: Kind, on: str) -> None:
    task = Task(exact(determined), fit(determined, 4))
    expected = start(determined, trajectories, len(task.roles), [task])
    assert run(on, trajectories, len(task.roles), [task]) == expected
