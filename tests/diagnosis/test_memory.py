"""The memory of a rank by kind: against closed forms, against torch's own tracker, and against itself elsewhere."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker

from gradwire.core.records.recorder import Recorder
from gradwire.core.transports.base import Transport
from gradwire.diagnosis.memory import Memory
from gradwire.diagnosis.memory_use import MemoryUse, summary
from tests.ranks import run, virtual_time

FLOAT = 4


def use_of(memory: Memory) -> MemoryUse:
    memory.end_step()
    return memory.use()


def test_a_storage_counts_once_from_its_operation_to_its_end() -> None:
    recorder = Recorder()
    before = torch.zeros(100)
    with Memory(recorder) as memory:
        memory.begin_training()
        x = torch.zeros(10)
        views = [x[2:5], x.view(2, 5), x.add_(1), before[3:]]
        assert memory.total == 10 * FLOAT, "a view, and what was there before, are no memory of this rank's"
        with recorder.holding("buckets"):
            y = x + 1
        with recorder.phase("forward"):
            z = x * 2
        memory.hold(z, "messages")
        assert dict(memory.live) == {"other": 40, "buckets": 40, "activations": 0, "messages": 40}
        del x, y
        assert memory.total == 2 * 40, "its views live"
        del views, z
        assert memory.total == 0
        y = torch.zeros(6)
        y.untyped_storage().resize_(0)
        assert memory.total == 0
        y.untyped_storage().resize_(12)
        assert memory.total == 12
        del y
        with recorder.holding(""):
            assert torch.zeros(5).numel() == 5
        with recorder.evaluating():
            assert torch.zeros(1000).numel() == 1000
        assert use_of(memory).peak == 3 * 40, "what is on its way, and evaluation, are left out"
    assert not recorder.observers
    assert torch.zeros(3).numel() == 3
    assert memory.total == 0, "it counts no longer"


def test_what_is_found_to_be_of_another_kind_was_so_at_the_peak() -> None:
    with Memory(recorder := Recorder()) as memory:
        memory.begin_training()
        model = nn.Linear(3, 2, bias=False)
        memory.watch(model)
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.5)
        memory.begin_step()
        with recorder.phase("backward"):
            model(torch.ones(1, 3)).sum().backward()
        with recorder.phase("update"):
            optimizer.step()
            torch.zeros(2)
        use = use_of(memory)
    assert use.at_peak == {"parameters": 24, "gradients": 24, "optimizer state": 24, "temporaries": 8}
    assert (use.peak, use.phase) == (80, "update")
    assert use.most.keys() >= {"parameters", "gradients", "optimizer state"}
    assert summary({0: use.recorded(), 1: use.recorded() | {"peak": 90}}).startswith(
        "memory MB      peak by rank 0: 0.0, 1: 0.0; rank 1, in update: parameters 0.000"
    )


def test_the_peak_is_that_of_torchs_own_tracker() -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(torch.ones(7, 30)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(30, 50), nn.Tanh(), nn.LayerNorm(50), nn.Linear(50, 5))
        return model, torch.optim.SGD(model.parameters(), momentum=0.9)

    theirs, (model, optimizer) = MemTracker(), made()
    theirs.track_external(model, optimizer)
    with theirs:
        step(model, optimizer)
    with Memory(Recorder()) as memory:
        model, optimizer = made()
        memory.begin_training()
        memory.begin_step()
        step(model, optimizer)
        use = use_of(memory)
    (snapshot,) = theirs.get_tracker_snapshot("peak").values()
    assert use.peak == snapshot["Total"]
    assert use.curve is not None
    heights = [sum(use.curve.start.values())]
    for _, _, nbytes in use.curve.changes:
        heights.append(heights[-1] + nbytes)
    assert max(heights) == use.peak, "the curve has the peak"


def counted(transport: Transport) -> dict[str, Any]:
    """Exchange a vector that lies where the peer can read it, and one that is copied; return what they are."""
    N, r = transport.world_size, transport.rank
    with Memory(transport.recorder) as memory:
        memory.begin_training()
        with transport.recorder.holding("gradients"):
            vector = transport.allocate(100 + r)
        works = [transport.isend(vector, (r + 1) % N, "x") for vector in (vector, torch.ones(10))]
        messages = [transport.recv((r - 1) % N, "x") for _ in works]
        held = memory.live["messages"]
        for message in messages:
            message.release()
        for work in works:
            work.wait()
        del message, messages
        return {"held": held, "after": memory.live["messages"], "gradients": memory.live["gradients"]}


def test_ranks_that_share_a_process_are_counted_apart_and_a_copy_is_the_receivers() -> None:
    found = virtual_time(3).launch(counted, 3)
    assert found == [{"held": 40, "after": 0, "gradients": FLOAT * (100 + r)} for r in range(3)]


@pytest.mark.parametrize("transport", ["shared_memory", "process_group"])
def test_processes_count_the_messages_that_they_have_memory_for(transport: str) -> None:
    copied = 0 if transport == "shared_memory" else FLOAT * 100
    found = run(transport, counted, 2)
    for r, counts in enumerate(found):
        held = 40 + (copied and FLOAT * (100 + (r - 1) % 2))
        assert counts == {"held": held, "after": 0, "gradients": FLOAT * (100 + r)}
