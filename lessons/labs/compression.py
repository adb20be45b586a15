"""Lab 7: top-k with error feedback. Nothing is lost: what is sent and what is kept are what came in."""

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from lessons.lab import Case, Fault, Figure, Lab, Run, Sent, Vectors, name_dtype, name_kind, normal
from lessons.labs.codes import COMPRESS, DECOMPRESS, EXCHANGE, STEPS, first_fault

INDEX_BYTES = 4
_OF_WHOLE_NUMBERS = 10  # elements: shorter vectors have magnitudes that are equal
_FEW = 5  # elements: of a shorter vector all are sent


class Compression(Lab):
    """The student writes `compress(g, residual, k)`, `decompress(indices, values, length)` and `exchange(...)`.

    Each rank first compresses the gradients of all steps alone, then exchanges the same ones. So what an exchange is to
    give is known from codes that were looked at before, whichever of equal magnitudes were chosen.
    """

    name = "compression"
    functions = (COMPRESS, DECOMPRESS, EXCHANGE)
    cases = (Case(1, 24, until=COMPRESS), Case(1, 9, until=COMPRESS), Case(1, 4, until=COMPRESS),
             Case(1, 24, until=DECOMPRESS), Case(2, 24), Case(3, 24), Case(2, 9), Case(4, 32), Case(3, 4), Case(1, 12),
             Case(5, 40, torch.float64), Case(3, 5_000))  # fmt: skip
    scored = Case(4, 40_000)
    real = Case(3, 1_000)
    steps = STEPS
    formulas = ("N - 1", "(N - 1) k (4 + 4), k = 400", "1", "latency + (N - 1) k (4 + 4) / bandwidth")

    def draw(self, case: Case, chance: random.Random) -> list[Vectors]:
        k = case.length + 3 if case.length < _FEW else chance.randint(case.length // 8 + 1, case.length // 3)
        if case == self.scored:
            k = case.length // 100
        drawn, sent_by_all = [], chance.randrange(case.length)
        for _ in range(case.n):
            vectors = [normal(case.length, case.dtype, chance) for _ in range(STEPS + 1)]
            if case.length < _OF_WHOLE_NUMBERS:
                vectors = [vector.mul(2).round() for vector in vectors]
            residual, *gradients = vectors
            gradients[0][sent_by_all] = 10  # so a sum is not what a division by the number of senders gives
            gradients[-1].zero_()  # so only what was kept is sent
            drawn.append({"kept0": residual, "k": torch.tensor([k])} | {f"g{s}": g for s, g in enumerate(gradients, 1)})
        return drawn

    def run(self, yours: SimpleNamespace, transport: Any, case: Case, inputs: Vectors) -> Vectors:
        k, length = int(inputs["k"]), case.length
        begin = f"{case}: rank {transport.rank}"
        result: Vectors = {}
        residual = inputs["kept0"].clone()
        for s in range(1, STEPS + 1):
            code = _keeping(inputs[f"g{s}"], begin, COMPRESS, lambda g: yours.compress(g, residual, k))
            indices, values = _checked_code(code, case, begin)
            result |= {f"indices{s}": indices.long(), f"values{s}": values, f"kept{s}": residual.clone()}
            if case.until != COMPRESS:
                decoded = yours.decompress(indices.clone(), values.clone(), length)
                _check_vector(decoded, case, begin, DECOMPRESS)
                result[f"decoded{s}"] = decoded
        if case.until:
            return result
        left = inputs["kept0"].clone()
        for s in range(1, STEPS + 1):
            mean = _keeping(inputs[f"g{s}"], begin, EXCHANGE, lambda g: yours.exchange(transport, g, left, k))
            _check_vector(mean, case, begin, EXCHANGE)
            result |= {f"mean{s}": mean.clone(), f"left{s}": left.clone()}
        return result

    def find_fault(self, run: Run) -> str:
        return first_fault(run)

    def comment(self, kind: str, run: Run) -> str:
        k, length = int(run.inputs[0]["k"]), run.case.length
        if kind == "raised" and k > length:
            return f"; here k = {k} and P = {length}: a code has {length} elements, also for unpack"
        return ""

    def hint(self, run: Run, missed: Sequence[Figure]) -> str:
        names, k, width = [one.name for one in missed], int(run.inputs[0]["k"]), run.case.dtype.itemsize
        longest = max(run.sent, key=lambda message: message.nbytes)
        if "bytes of a rank" in names and longest.nbytes >= run.case.length * width:
            code = f"{k * (width + INDEX_BYTES):,}: send indices and values, and no zeros"
            return f"rank {longest.rank} sends {longest.nbytes:,} bytes, a whole vector, where a code has {code}"
        if "bytes of a rank" in names and longest.nbytes == k * (width + 2 * INDEX_BYTES):
            return "the indices travel as int64, 8 bytes each, where int32 has 4"
        if names[0] == "messages of a rank" and run.messages[0] == 2 * STEPS * (run.case.n - 1):
            return "a code is two messages, where one can carry both: pack(values, indices)"
        return ""

    def label_vector(self, message: Sent, vector: torch.Tensor, case: Case) -> str:
        if vector.is_floating_point():
            return "the whole vector" if vector.numel() == case.length > 1 else f"values {message.rank}"
        return f"{'code' if vector.dtype == torch.uint8 else 'indices'} {message.rank}"


def _keeping(given: torch.Tensor, begin: str, name: str, call: Callable[[torch.Tensor], Any]) -> Any:
    """Return what the call returns for a copy of a gradient. Raises Fault if it has changed it."""
    g = given.clone()
    returned = call(g)
    if not torch.equal(g, given):
        raise Fault("damage", f"{begin}: {name} changed g, which belongs to the caller; change the residual only")
    return returned


def _checked_code(code: Any, case: Case, begin: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the indices and the values of a code. Raises Fault if it is none."""
    begin = f"{begin}: compress returned"
    if not (isinstance(code, tuple | list) and len(code) == 2 and all(isinstance(one, torch.Tensor) for one in code)):
        raise Fault("returned", f"{begin} {name_kind(code)}; expected two tensors: (indices, values)")
    indices, values = code
    if indices.dtype == torch.int64:
        raise Fault("returned", f"{begin} indices of int64; expected int32, as they are counted and unpacked")
    alike = (indices.dtype, values.dtype) == (torch.int32, case.dtype)
    if not (alike and indices.shape == values.shape == (len(values),)):
        raise Fault("returned", f"{begin} {name_kind((indices, values))}; expected as many indices, of int32, as "
                                f"values, of {name_dtype(case.dtype)}")  # fmt: skip
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < case.length:
        raise Fault("returned", f"{begin} an index that is not one of 0 to {case.length - 1}")
    return indices, values


def _check_vector(vector: Any, case: Case, begin: str, name: str) -> None:
    """Check that a function has returned a vector like g. Raises Fault."""
    if not isinstance(vector, torch.Tensor) or vector.shape != (case.length,) or vector.dtype != case.dtype:
        expected = f"a vector [{case.length}] of {name_dtype(case.dtype)}"
        raise Fault("returned", f"{begin}: {name} returned {name_kind(vector)}; expected {expected}")
