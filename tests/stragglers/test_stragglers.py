"""Stragglers on demand: as slow as they are told, in the records too, and never with another result."""

import math
from typing import Any

import pytest
import torch

from gradwire.stragglers.straggler import Straggler


class Time:
    """A transport whose clock only work and sleep move on."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = torch.device(device)
        self.time = 100.0
        self.slept: list[float] = []

    def now(self) -> float:
        assert self.device.type == "cuda"
        return self.time

    def cpu_seconds(self) -> float:
        assert self.device.type == "cpu"
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


@pytest.fixture
def time() -> Time:
    return Time()


def straggler(factor: float, jitter: float, seed: int, time: Any) -> Straggler:
    return Straggler(factor, jitter, seed, time)


def stretches(time: Time, slow: Straggler, passes: int, seconds: float = 2.0) -> list[float]:
    """How many times its time each of so many passes took."""
    taken = []
    for _ in range(passes):
        start = time.time
        with slow.slowed():
            time.time += seconds
        taken.append((time.time - start) / seconds)
    return taken


def test_jitter_only_lengthens_and_follows_its_seed(time: Time) -> None:
    sigma, n = 0.5, 2000
    taken = stretches(time, straggler(1.0, sigma, 7, time), n)
    assert min(taken) >= 1
    slept, time.slept = time.slept, []
    stretches(time, straggler(1.0, sigma, 7, time), n)
    assert time.slept == pytest.approx(slept)
    assert stretches(time, straggler(1.0, sigma, 8, time), 9) != pytest.approx(taken[:9])
    z = [math.log(times) / sigma for times in taken]
    assert sum(z) / n == pytest.approx(math.sqrt(2 / math.pi), rel=0.05), "half-normal"
    assert sum(value * value for value in z) / n == pytest.approx(1, rel=0.1)
    both = stretches(time, straggler(3.0, sigma, 7, time), n)
    assert both == pytest.approx([3 * times for times in taken])


def test_on_a_gpu_what_is_queued_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    time, queued = Time("cuda"), list[float]()

    def finish(device: torch.device) -> None:
        time.time += sum(queued)
        queued.clear()

    monkeypatch.setattr(torch.cuda, "synchronize", finish)
    with straggler(3.0, 0.0, 0, time).slowed():
        queued.append(2.0)
    assert time.slept == [4.0]


def test_a_pass_has_one_jitter_however_often_it_is_interrupted(time: Time) -> None:
    whole = stretches(time, straggler(1.0, 0.5, 7, time), 4)
    slow, taken = straggler(1.0, 0.5, 7, time), []
    for _ in whole:
        start = time.time
        with slow.slowed():
            for _ in range(4):
                time.time += 0.5
                with slow.interrupted():
                    pass
        taken.append((time.time - start) / 2)
    assert taken == pytest.approx(whole)
