"""Formulas as on paper."""

from dataclasses import replace

import pytest

from gradwire.core.records.errors import UsageError
from gradwire.networks.predict import predict
from strategies import Cost, RingAllReduce, Traffic


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("0", 0),
        ("N - 1", 3),
        ("(N - 1) P", 3000),
        ("2 (N - 1) P / N", 1500),
        ("(N - 1) P / n_fetch", 600),
        ("1 / n_push + 1 / n_fetch", 0.7),
        ("(N - 1) (N + 1)", 15),
        ("2 N P", 8000),
        ("n_push n_fetch", 10),
        ("2 * N", 8),
    ],
)
def test_a_formula_is_read_as_on_paper(formula: str, expected: float) -> None:
    values = {"N": 4, "P": 1000, "n_push": 2, "n_fetch": 5}
    assert Traffic(formula, "P").count(values) == (pytest.approx(expected), 1000)
    assert Traffic("0", formula).count(values)[1] == pytest.approx(expected)


def test_a_power_is_written_as_in_python() -> None:
    assert Traffic("N ** 2", "0").count({"N": 4})[0] == 16
    with pytest.raises(UsageError, match=r"^N \^ 2: \^ is not a power in a formula; write \*\*$"):
        Traffic("N ^ 2", "0").count({"N": 4})


class Late(RingAllReduce):
    """A ring whose sums are used a step later: they travel while the next step computes."""

    def cost(self, kind: str | None = None) -> Cost:
        """As the ring's."""
        return replace(super().cost(), path=Traffic("2 (N - 1)", "2 (N - 1) P / N", while_computing=True))


def test_what_travels_while_a_step_computes_takes_time_only_if_it_takes_longer() -> None:
    sending = predict(RingAllReduce(), 4, 1_000_000, 0.0, 1e6, 1e-3)
    assert sending is not None
    assert sending == pytest.approx(1.5 + 6e-3)
    assert predict(Late(), 4, 1_000_000, 2.0, 1e6, 1e-3) == 2.0
    assert predict(Late(), 4, 1_000_000, 1.0, 1e6, 1e-3) == sending
    assert predict(RingAllReduce(), 4, 1_000_000, 1.0, 1e6, 1e-3) == pytest.approx(1.0 + sending)


def test_a_value_that_is_missing_is_named() -> None:
    with pytest.raises(NameError, match="n_push"):
        Traffic("1 / n_push", "P").count({"N": 2, "P": 8})


@pytest.mark.parametrize("formula", ["__import__('os')", "open('x')", "print(N)"])
def test_a_formula_calls_nothing(formula: str) -> None:
    with pytest.raises((NameError, TypeError)):
        Traffic(formula, "0").count({"N": 2})
