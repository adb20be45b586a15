"""Lab 17: another way that is right."""

from tests.lessons.judged import judge_changed

TOTALS = """def normalize(x):
    n = torch.tensor([float(len(x))], dtype=x.dtype)
    sums = torch.cat([n, x.sum(0), x.square().sum(0)])
    dist.all_reduce(sums)
    n, mean, square = sums[0], *(sums[1:] / sums[0]).chunk(2)
    factor = torch.rsqrt(square - mean**2 + EPS)
    return (x - mean) * factor, ((x - mean) * factor, factor, n)


def differentiate(gradient, kept):
    y, factor, n = kept
    sums = torch.cat([gradient.sum(0), (gradient * y).sum(0)])
    dist.all_reduce(sums)
    a, b = (sums / n).chunk(2)
    return (gradient - a - y * b) * factor
"""


def test_one_vector_for_all_sums_is_as_good() -> None:
    first, second = TOTALS.split("\n\n\n")
    assert judge_changed("uneven", first, second).points == 100
