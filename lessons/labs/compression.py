"""Lab 7: top-k with error feedback. Nothing is lost: the code plus the residual is gradient plus old residual."""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import torch

from lessons.lab import Case, Fault, Figure, Lab, Run, Sent, Vectors, name_dtype
from lessons.points import has_none
from lessons.sums import are_all, coefficients, describe
from lessons.values import check_like, is_close, kind_of, normal

COMPRESS, DECOMPRESS, EXCHANGE = "compress", "decompress", "exchange"
STEPS = 3
INDEX_BYTES = 4
_OF_WHOLE_NUMBERS = 10  # elements: shorter vectors have magnitudes that are equal
_FEW = 5  # elements: of a shorter vector all are sent


class Compression(Lab):
    """The student writes `compress(g, residual, k)`, `decompress(indices, values, length)` and `exchange(...)`.

    Each rank first compresses the gradients of all steps alone, then exchanges the same ones. So what an exchange is to
    give is known from codes that were looked at before, whichever of equal magnitudes were chosen.
    """

    name = "compression"
    changed = ("residual",)
    functions = (COMPRESS, DECOMPRESS, EXCHANGE)
    cases = (Case(1, 24, until=COMPRESS), Case(1, 9, until=COMPRESS), Case(1, 4, until=COMPRESS),
             Case(1, 24, until=DECOMPRESS), Case(2, 24), Case(3, 24), Case(2, 9), Case(4, 32), Case(3, 4), Case(1, 12),
             Case(5, 40, torch.float64), Case(3, 5_000))  # fmt: skip
    scored = Case(4, 40_000)
    real = Case(3, 1_000)
    steps = STEPS
    parts: ClassVar = {
        COMPRESS: {"the choice": has_none(lambda run: _in_codes(run, _wrong_choices)),
                   "the values": has_none(lambda run: _in_codes(run, _wrong_values)),
                   "the residual": has_none(lambda run: _in_codes(run, _wrong_rests))},
        EXCHANGE: {"what it keeps": lambda run: all(
                       is_close(result[f"left{s}"], result[f"kept{s}"])
                       for result in run.results for s in range(1, STEPS + 1)),
                   "all codes": lambda run: all(
                       (found := _shares(run, result["mean1"])) is not None and found[0] and are_all(found, found[0])
                       for result in run.results)},
    }  # fmt: skip
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
                check_like("returned", f"{begin}: decompress returned", decoded, inputs["kept0"])
                result[f"decoded{s}"] = decoded
        if case.until:
            return result
        left = inputs["kept0"].clone()
        for s in range(1, STEPS + 1):
            mean = _keeping(inputs[f"g{s}"], begin, EXCHANGE, lambda g: yours.exchange(transport, g, left, k))
            check_like("returned", f"{begin}: exchange returned", mean, inputs["kept0"])
            result |= {f"mean{s}": mean.clone(), f"left{s}": left.clone()}
        return result

    def find_faults(self, run: Run) -> Iterator[str]:
        begin, results = f"{run.case}, k = {int(run.inputs[0]['k'])}, step", run.results
        steps = [*product(range(1, STEPS + 1), range(run.case.n))]
        for look in (_wrong_codes,) if run.case.until else (_wrong_codes, _wrong_means):
            for s, rank in steps:
                yield from (f"{begin} {s}: rank {rank}: {fault}" for fault in look(run, rank, s))
        for s, rank in [] if run.case.until else steps:
            if len(different := (results[rank][f"mean{s}"] != results[0][f"mean{s}"]).nonzero()):
                yield (f"{begin} {s}: ranks 0 and {rank} hold different bits in element {int(different[0])}: add the "
                       "codes in the order of ranks on all of them, so that replicas stay alike")  # fmt: skip

    def comment(self, kind: str, run: Run) -> Iterator[str]:
        k, length = int(run.inputs[0]["k"]), run.case.length
        if kind == "raised" and k > length:
            yield f"; here k = {k} and P = {length}: a code has {length} elements, also for unpack"

    def hint(self, run: Run, missed: Sequence[Figure]) -> Iterator[str]:
        names, k, width = [figure.name for figure in missed], int(run.inputs[0]["k"]), run.case.dtype.itemsize
        longest = max(run.sent, key=lambda message: message.nbytes)
        if "bytes of a rank" in names and longest.nbytes >= run.case.length * width:
            code = f"{k * (width + INDEX_BYTES):,}: send indices and values, and no zeros"
            yield f"rank {longest.rank} sends {longest.nbytes:,} bytes, a whole vector, where a code has {code}"
        if "bytes of a rank" in names and longest.nbytes == k * (width + 2 * INDEX_BYTES):
            yield "the indices travel as int64, 8 bytes each, where int32 has 4"
        if names[0] == "messages of a rank" and run.messages[0] == 2 * STEPS * (run.case.n - 1):
            yield "a code is two messages, where one can carry both: pack(values, indices)"

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
    if not (isinstance(code, tuple | list) and len(code) == 2 and all(isinstance(part, torch.Tensor) for part in code)):
        raise Fault("returned", f"{begin} {kind_of(code)}; expected two tensors: (indices, values)")
    indices, values = code
    if indices.dtype == torch.int64:
        raise Fault("returned", f"{begin} indices of int64; expected int32, as they are counted and unpacked")
    alike = (indices.dtype, values.dtype) == (torch.int32, case.dtype)
    if not (alike and indices.shape == values.shape == (len(values),)):
        raise Fault("returned", f"{begin} {kind_of((indices, values))}; expected as many indices, of int32, as "
                                f"values, of {name_dtype(case.dtype)}")  # fmt: skip
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < case.length:
        raise Fault("returned", f"{begin} an index that is not one of 0 to {case.length - 1}")
    return indices, values


# What is wrong


class Code(NamedTuple):
    """What a rank has compressed in a step, and what came of it."""

    before: torch.Tensor  # the residual
    g: torch.Tensor
    after: torch.Tensor  # the residual
    indices: torch.Tensor
    values: torch.Tensor

    @property
    def came(self) -> torch.Tensor:
        """What is to be sent or kept."""
        return self.before + self.g


def _code(run: Run, rank: int, s: int) -> Code:
    result, inputs = run.results[rank], run.inputs[rank]
    before = result[f"kept{s - 1}"] if s > 1 else inputs["kept0"]
    return Code(before, inputs[f"g{s}"], *(result[f"{name}{s}"] for name in ("kept", "indices", "values")))


def _in_codes(run: Run, look: Callable[[Code], Iterator[str]]) -> Iterator[str]:
    for rank, s in product(range(run.case.n), range(1, STEPS + 1)):
        yield from look(_code(run, rank, s))


def _shares(run: Run, vector: torch.Tensor) -> list[float] | None:
    """Return how much of each rank's code in step 1 is in a vector."""
    return coefficients(vector, [result["decoded1"] for result in run.results])


def _wrong_codes(run: Run, rank: int, s: int) -> Iterator[str]:
    """Yield the faults in the code of a step and in the residual."""
    code, k = _code(run, rank, s), min(int(run.inputs[rank]["k"]), run.case.length)
    if len(code.indices) != k:
        yield f"compress chose {len(code.indices)} elements; expected {k}"
    if len(code.indices.unique()) < k:
        yield "compress chose an element twice"
    for look in (_wrong_values, _wrong_choices, _wrong_rests):
        yield from look(code)
    if run.case.until == COMPRESS:
        return
    decoded = run.results[rank][f"decoded{s}"]
    expected = torch.zeros_like(decoded).index_copy_(0, code.indices, code.values)
    if not torch.equal(decoded, expected):
        i = int((decoded - expected).abs().argmax())
        yield f"decompress gives {float(decoded[i]):.4g} for element {i}; the code says {float(expected[i]):.4g}"


def _wrong_values(code: Code) -> Iterator[str]:
    """Yield the faults in the values, which must be elements of residual + g."""
    values, indices, came, g = code.values, code.indices, code.came, code.g
    if is_close(values, came[indices]):
        return
    if is_close(values, came[indices].abs()):
        yield "compress sends magnitudes, without their signs"
    i = int((values - came[indices]).abs().argmax())
    element = int(indices[i])
    of_g = ", which is g alone" if is_close(values, g[indices]) else ""
    yield (f"compress sends {float(values[i]):.4g} for element {element}{of_g}; residual + g is "
           f"{float(came[element]):.4g} there: choose and send from the sum")  # fmt: skip


def _wrong_choices(code: Code) -> Iterator[str]:
    """Yield the faults in the choice of elements: those of residual + g with the largest magnitudes must be chosen."""
    came, g = code.came, code.g
    chosen = torch.zeros(len(came), dtype=torch.bool).index_fill_(0, code.indices, True)

    def are_largest(keys: torch.Tensor) -> bool:
        return bool(chosen.all()) or bool(keys[chosen].min() >= keys[~chosen].max())

    if are_largest(came.abs()):
        return
    least = int(came.abs().masked_fill(~chosen, torch.inf).argmin())
    most = int(came.abs().masked_fill(chosen, -torch.inf).argmax())
    seen = (f"of residual + g compress chose element {least} ({float(came[least]):.4g}) and left out element {most} "
            f"({float(came[most]):.4g})")  # fmt: skip
    if are_largest(came):
        yield f"{seen}: it chooses the largest values; expected the largest magnitudes, of either sign"
    if are_largest(g.abs()):
        yield f"{seen}: it chooses by g alone, without what was kept; add the residual first"
    yield f"{seen}; expected the largest magnitudes"


def _wrong_rests(code: Code) -> Iterator[str]:
    """Yield the elements where code plus residual is not gradient plus old residual."""
    (before, g, after, indices, _), came = code, code.came
    rest = came.index_fill(0, indices, 0)
    if is_close(after, rest):
        return
    if torch.equal(after, before):
        yield "the residual is as it was before, so what is not sent is lost: change it in place (add_, copy_)"
    if is_close(after, came):
        i = int(indices[came[indices].abs().argmax()])
        yield f"the residual keeps element {i}, though it was sent: it would be sent again; clear it where you send"
    if not after.any():
        i = int(rest.abs().argmax())
        yield f"the residual is zero everywhere, so element {i} is lost: clear the residual only where you send"
    if is_close(after, g.index_fill(0, indices, 0)):
        yield "the residual has forgotten what it held before the step: add g to it, do not replace it"
    i = int((after - rest).abs().argmax())
    sent = float(came[i] - rest[i])
    yield (f"element {i}: {sent:.4g} was sent and {float(after[i]):.4g} is kept, but {float(came[i]):.4g} came in "
           f"({float(before[i]):.4g} kept before, {float(g[i]):.4g} of g): nothing may be lost or added")  # fmt: skip


def _wrong_means(run: Run, rank: int, s: int) -> Iterator[str]:
    """Yield the faults in the result of an exchange, which must be the mean of all codes."""
    N, result = run.case.n, run.results[rank]
    codes = torch.stack([result[f"decoded{s}"] for result in run.results])  # [N, P]
    senders = torch.cat([result[f"indices{s}"] for result in run.results]).bincount(minlength=run.case.length)  # [P]
    mean, total = result[f"mean{s}"], codes.sum(0)
    if not is_close(result[f"left{s}"], result[f"kept{s}"]):
        yield "exchange leaves another residual than compress does: call compress once in a step, with the one given"
    if is_close(mean, total / N):
        return
    if is_close(mean, total):  # in step 1 all have sent one element, so this is no division by the senders
        yield "exchange returns the sum of the codes; expected their mean: divide by N"
    if is_close(mean, total / senders.clamp(min=1)):
        i = int(((senders > 0) & (senders < N)).long().argmax())
        yield (f"element {i} was sent by {int(senders[i])} of {N} ranks, and is divided by {int(senders[i])}; "
               f"expected a division by N = {N}: a rank that does not send an element sends 0 for it")  # fmt: skip
    wrong = (N * mean - total).abs() > 1e-3
    of_one = ((N * mean - codes).abs() < 1e-3) & (codes != 0)  # where a sum holds the part of one rank only
    if wrong.any() and (senders > 1)[wrong].all() and of_one.any(0)[wrong].all():
        i = int(wrong.long().argmax())
        yield (f"element {i} was sent by {int(senders[i])} ranks, and the result holds the part of one of them: where "
               "codes have an element in common, add")  # fmt: skip
    if found := coefficients(mean, list(codes)):
        text = describe(found, "the code of rank")
        yield f"exchange returns {text}; expected the mean of all {N}, each rank's own being one of them"
    i = int((mean - total / N).abs().argmax())
    yield f"exchange returns {float(mean[i]):.4g} for element {i}; the mean of the codes is {float(total[i] / N):.4g}"
