"""The updates of one rank: schedule, state; also on a part of x."""

from functools import partial

import torch

from gradwire.compression import Layout
from gradwire.core.records.recorder import Recorder
from gradwire.core.strategy.factories import OptimizerFactory, by_name
from gradwire.core.strategy.updater import Schedule, Updater

SGD = partial(torch.optim.SGD, lr=1.0)
N = 6


def make(
    optimizer: OptimizerFactory = SGD, clip_norm: float = 0.0, schedule: Schedule | None = None
) -> tuple[torch.Tensor, Updater]:
    x = torch.zeros(N, dtype=torch.float64)
    return x, Updater([x], optimizer, clip_norm, schedule, Recorder())


def g(*values: float) -> torch.Tensor:
    return torch.tensor([*values, *[0.0] * (N - len(values))], dtype=torch.float64)


def test_the_schedule_is_asked_for_the_middle_of_the_samples_of_an_update() -> None:
    asked: list[float] = []

    def schedule(processed: float) -> float:
        asked.append(processed)
        return 0.5

    x, updater = make(schedule=schedule)
    updater.step(g(1), 10)
    updater.step(g(1), 20, processed=60)
    updater.step(g(1), 10)
    assert asked == [5, 40, 75]
    assert x[0] == -1.5, "each at half of the learning rate, not at half of the one before"


def test_a_part_of_x_is_updated_by_an_optimizer_of_its_own() -> None:
    x, updater = make(partial(torch.optim.Adam, lr=0.1))
    updater.optimize(x, parts=[slice(2, 4)])
    updater.step(torch.ones(2, dtype=torch.float64), 1)
    assert (x != 0).tolist() == [False, False, True, True, False, False]
    # two moments of two elements, and the count of steps
    assert 2 * 2 * 8 <= updater.state_bytes <= 2 * 2 * 8 + 8


def test_where_the_optimizer_sees_tensors_parts_are_cut_between_them() -> None:
    layout = Layout(("a", "b", "c"), ((2, 3), (2,), (3,)))

    def begun(make: OptimizerFactory, n: int) -> tuple[torch.Tensor, Updater, list[slice]]:
        x = torch.zeros(layout.n)
        updater = Updater([x], make, 0.0, None, Recorder(), layout)
        return x, updater, updater.parts(n)

    assert begun(SGD, 3)[2] == [slice(0, 4), slice(4, 8), slice(8, 11)]
    seeing = by_name(lambda named: torch.optim.Adam([p for name, p in named if name != "c"], lr=0.1))
    x, updater, parts = begun(seeing, 2)
    assert [p.shape for p in updater.parameters] == [(2, 3), (2,), (3,)]
    assert parts == [slice(0, 6), slice(6, 11)]
    assert begun(seeing, 4)[2] == [slice(0, 0), slice(0, 6), slice(6, 8), slice(8, 11)], "one may be empty"
    updater.optimize(x, parts=[parts[1]])
    updater.step(torch.ones(5), 1)
    assert (x != 0).tolist() == [False] * 6 + [True] * 2 + [False] * 3, "c has no optimizer"
    assert updater.state_bytes == 2 * 2 * 4 + 4, "only of the tensor that it updates"
