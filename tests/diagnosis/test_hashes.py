"""The hash of a vector tells every other vector from it, but for words that change places within a row."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.compression import Layout
from gradwire.diagnosis.hashes import ELEMENTS, Hashes

ROW = 8192 // 4  # elements


def hash_of(vector: torch.Tensor) -> int:
    hashes = Hashes(Layout(("w",), (tuple(vector.shape),)))
    hashes.gradient(0, [vector], [None], 1)
    found: int = hashes.arrays()["x"][0, 0]
    assert hashes.arrays()["x elements"].shape == (1, 1, ELEMENTS)
    return found


@given(st.integers(1, 3 * ROW + 5), st.data())
def test_one_bit_changes_it(n: int, data: st.DataObject) -> None:
    vector = torch.arange(n, dtype=torch.float32)
    other = vector.clone()
    other.view(torch.int32)[data.draw(st.integers(0, n - 1))] ^= 1 << data.draw(st.integers(0, 30))
    assert hash_of(vector) == hash_of(vector.clone()) != hash_of(other)


def test_the_order_of_rows_changes_it() -> None:
    vector = torch.arange(2.0 * ROW)
    assert hash_of(vector) != hash_of(vector.roll(ROW))
