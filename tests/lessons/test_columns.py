"""Lab 15: another way that is right, and what its costs are by formula."""

from lessons import report, tensor
from lessons.labs import LABS
from lessons.labs.columns import T
from lessons.solutions import columns
from tests.lessons.judged import judge_changed, play_solution

SOFTMAX = """def loss(logits, targets, first):
    with torch.no_grad():
        largest = logits.amax(1)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
    words = torch.arange(first, first + logits.shape[1])
    hits = words[None] == targets[:, None]
    both = between(torch.cat([(logits - largest[:, None]).exp().sum(1), (logits * hits).sum(1)]), _sum, _same)
    return (both[: len(targets)].log() + largest - both[len(targets) :]).sum() / len(targets)
"""


IN_PLACE = """def cut(block, rank, N):
    for name in "QKVAOB":
        setattr(block, name, getattr(block, name).chunk(N, int(name in "QKVA"))[rank].contiguous())
    return block
"""


def test_a_loss_with_a_mask_and_one_vector_of_sums_is_as_good_and_so_is_a_cut_of_the_given_block() -> None:
    assert judge_changed("columns", SOFTMAX, IN_PLACE).points == 100


def test_what_has_no_tensors_is_no_part_of_a_block() -> None:
    found = judge_changed("columns", "def cut(block, rank, N):\n    return Block(*[[1]] * 6)\n")
    assert "cut returned a list as Q; expected a tensor" in found.verdict


def test_the_bytes_are_those_of_the_formula() -> None:
    N, P = LABS["columns"].scored.n, 4 * LABS["columns"].scored.length
    found = {figure.name: figure.yours for figure in judge_changed("columns").figures}
    assert found["bytes of a rank"] == 2 * (N - 1) * (4 * P + 8 * T) / N + 4 * (N - 1) * T


def test_cut_matrices_are_faster_on_a_fast_network_only() -> None:
    times = tensor.measure(judge_changed("columns"), columns.mlp, columns.cut, n=2)
    assert not isinstance(times, str)
    faster = times["times as fast"].tolist()
    assert faster[0] < 1 < faster[-1] < 2


def test_a_picture_with_too_many_arrows_for_labels_says_which_colour_is_which_call() -> None:
    run = play_solution("columns", LABS["columns"].scored)
    (legend,) = report.draw(LABS["columns"], run, run).legends
    assert [text.get_text() for text in legend.get_texts()] == [f"all_reduce {i}" for i in range(1, 7)]
    experts = play_solution("experts", LABS["experts"].scored)  # fewer arrows, but labels of words would hide them
    assert report.draw(LABS["experts"], experts, experts).legends
    ring = play_solution("ring", LABS["ring"].scored)
    assert not report.draw(LABS["ring"], ring, ring).legends
