"""What a pass computes: its threads, the part of it that belongs to each parameter, and who is told of it."""

import pytest
import torch
from torch import nn

from gradwire.core.launchers.devices import as_before
from gradwire.core.records.recorder import Recorder
from gradwire.core.training.computing import choose_threads
from gradwire.virtual_time.shares import shares_of


def test_a_share_is_that_of_the_operations_split_over_a_modules_own_trainable_parameters() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))
    expected = [0.75 * 15 / 20, 0.75 * 5 / 20, 0.25 * 5 / 6, 0.25 / 6]
    before, random = torch.cat([p.flatten() for p in model.parameters()]), torch.get_rng_state()
    assert shares_of(model, lambda: model(torch.zeros(2, 3))) == pytest.approx(expected)
    assert model.training
    assert torch.equal(torch.cat([p.flatten() for p in model.parameters()]), before)
    assert torch.equal(torch.get_rng_state(), random)
    model[0].requires_grad_(False)
    assert shares_of(model, lambda: model(torch.zeros(2, 3))) == pytest.approx([5 / 6, 1 / 6])
    norm = nn.LayerNorm(4)
    model.append(nn.Identity())
    model[2].register_parameter("empty", nn.Parameter(torch.empty(0, 3)))
    assert shares_of(model, lambda: model(torch.zeros(2, 3))) == pytest.approx([5 / 6, 1 / 6, 0]), "it has no elements"
    assert shares_of(norm, lambda: norm(torch.zeros(2, 4))) == (0.5, 0.5), "what is not counted is split by size"


def test_what_is_spent_in_a_phase_is_not_spent_again_at_its_end_and_one_in_another_takes_its_own_time_only() -> None:
    passed: list[tuple[str, float]] = []
    recorder = Recorder(clock=lambda: sum(part for _, part in passed))
    recorder.time_passes = lambda name, part: passed.append((name, part))
    recorder.shares = (0.25, 0.5, 0.25)
    with recorder.phase("backward"):
        recorder.spend("backward", 2)
        recorder.spend("backward", 1)
    with recorder.phase("backward"):
        pass
    assert passed == [("backward", 0.25), ("backward", 0.5), ("backward", 0.25), ("backward", 1.0)]
    assert recorder.frame()["t1"].tolist() == [1.0, 2.0]
    passed.clear()
    with recorder.phase("forward"):
        recorder.spend("forward", 0)
        with recorder.phase("update", 0.125):
            pass
        recorder.spend("forward", 1)
    assert passed == [("forward", 0.25), ("update", 0.125), ("forward", 0.5), ("forward", 0.25)]


@pytest.mark.parametrize(("n_samples", "expected"), [(1, 1), (10**7, 2)])
def test_a_small_pass_has_one_thread(n_samples: int, expected: int) -> None:
    model, x = nn.Linear(8, 8), torch.zeros(1, 8)
    with as_before():
        torch.set_num_threads(2)
        choose_threads(model, lambda: model(x), n_samples)
        assert torch.get_num_threads() == expected
