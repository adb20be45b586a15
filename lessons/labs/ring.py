"""Lab 2: the ring all-reduce. Every rank ends with the mean of all ranks' vectors."""

import random
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise, product
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from lessons.lab import Case, Figure, Lab, Run, Sent, Vectors, first
from lessons.sums import are_all, coefficients, describe
from lessons.values import check_in_place, is_close, normal

FORMULAS = ("2 (N - 1)", "2 (N - 1) P / N", "2 (N - 1)", "2 (N - 1) latency + 2 (N - 1) P / N / bandwidth")
_CURE = "write the mean into `vector`, in place: vector.copy_(...)"


class AllReduce(Lab):
    """A lab whose ranks have a vector each; all are to get the mean."""

    formulas: ClassVar[tuple[str, ...]] = FORMULAS

    def draw(self, case: Case, chance: random.Random) -> list[Vectors]:
        return [{"vector": normal(case.length, case.dtype, chance)} for _ in range(case.n)]

    def run(self, yours: SimpleNamespace, transport: Any, case: Case, inputs: Vectors) -> Vectors:
        vector = transport.allocate(case.length, case.dtype).copy_(inputs["vector"])
        returned = yours.all_reduce(transport, vector)
        check_in_place(f"rank {transport.rank}: all_reduce", _CURE, returned, vector, inputs["vector"])
        return {"vector": vector}

    def label_vector(self, message: Sent, vector: torch.Tensor, case: Case) -> str:
        if message.span is None:
            return f"a copy of {vector.numel()} elements"
        _, start, stop = message.span
        if (start, stop) == (0, case.length) and case.n > 1:
            return "the whole vector"
        chunk = chunk_of(message, chunk_spans(case))
        return f"elements {start} to {stop - 1}" if chunk is None else f"chunk {chunk}"


class Ring(AllReduce):
    """The student writes `all_reduce(transport, vector)`."""

    name = "ring"
    functions = ("all_reduce",)
    cases = (Case(3, 12), Case(4, 24), Case(2, 8), Case(4, 10), Case(7, 45, torch.float64), Case(1, 5), Case(4, 3),
             Case(3, 1), Case(2, 0), Case(3, 10_000))  # fmt: skip
    scored = Case(4, 40_000)
    real = Case(3, 1_000)
    looks_at_messages = True
    parts: ClassVar = {"all_reduce": {
        "share-reduce": lambda run: right_steps(run) >= run.case.n - 1 or ends_with(run, run.case.n),
        "share-only": lambda run: right_steps(run) >= 2 * (run.case.n - 1) or ends_with(run, run.case.n),
        "the mean": lambda run: ends_with(run, 1) and not run.damage,
    }}  # fmt: skip

    def is_other(self, run: Run) -> str:
        receivers = {rank: sorted({message.dst for message in run.of_rank(rank)}) for rank in range(run.case.n)}
        return first(f"no ring, in which each rank sends to one neighbour: rank {rank} sends to {len(to)}; "
                     for rank, to in receivers.items() if len(to) > 1)  # fmt: skip

    def find_faults(self, run: Run) -> Iterator[str]:
        if wrong := wrong_ranks(run):
            yield from added_to_what_is_sent(run)
            yield from wrong_messages(run)
            yield from _explain_result(run, wrong[0])

    def comment(self, kind: str, run: Run) -> Iterator[str]:
        if kind == "raised" and run.case.n == 1 and not run.sent:
            yield "; N = 1: a rank alone has no neighbour, and takes N - 1 = 0 steps"
        if kind == "hole" and run.sent:
            if wrong := first(wrong_messages(run)):
                yield f"; but first, {wrong}"
            most, phase = max(len(run.of_rank(rank)) for rank in range(run.case.n)), run.case.n - 1
            missing = f", but only {most} of each rank; share-reduce sends N - 1 = {phase}" if most < phase else ""
            yield f"; the messages so far are right{missing}"

    def hint(self, run: Run, missed: Sequence[Figure]) -> Iterator[str]:
        longest = max(run.sent, key=lambda message: message.nbytes)
        even, elements = -(-run.case.length // run.case.n), longest.nbytes // run.case.dtype.itemsize
        if missed[0].name == "bytes of a rank" and elements >= run.case.length:
            yield f"rank {longest.rank} sends the whole vector at once"
        if elements > even:
            yield f"the chunks differ in length: {elements} elements in the longest, {even} if alike"


def _explain_result(run: Run, rank: int) -> Iterator[str]:
    case, result = run.case, run.results[rank]["vector"]
    begin = f"{case}: rank {rank} ends with"
    if not torch.isfinite(result).all():
        yield f"{begin} NaN or infinity"
    for c, (start, stop) in enumerate(chunk_spans(case)):
        found = coefficients(result[start:stop], [inputs["vector"][start:stop] for inputs in run.inputs])
        if found is None or are_all(found, 1 / case.n):
            continue  # nothing is known of this chunk, or it is right
        if are_all(found, 1):
            yield f"{begin} the sum; expected the mean: divide by N, once"
        missing = [str(k) for k, a in enumerate(found) if not a]
        without = f", without the part of rank {', '.join(missing)}" if missing else ""
        yield f"{begin} {describe(found)} in chunk {c}{without}; expected the mean of all {case.n} ranks"
    yield f"{begin} something else than the mean of all {case.n} ranks"


def wrong_ranks(run: Run, times: float = 1) -> list[int]:
    """Return the ranks that have ended with something else than `times` the mean."""
    mean = torch.stack([inputs["vector"].double() for inputs in run.inputs]).mean(0)
    expected = (times * mean).to(run.case.dtype)
    return [rank for rank, result in enumerate(run.results) if not is_close(result["vector"], expected)]


def ends_with(run: Run, times: float) -> bool:
    """Whether ranks have sent only to one neighbour, and have ended with `times` the mean."""
    return bool(run.results and run.sent) and not (wrong_ranks(run, times) or Ring().is_other(run))


def other_bits(begin: str, what: str, vectors: Sequence[torch.Tensor]) -> Iterator[str]:
    """Yield the ranks that hold `what`, the sum or the mean, with other bits than rank 0."""
    for rank, vector in enumerate(vectors):
        if len(other := (vector != vectors[0]).nonzero()):
            yield (f"{begin}: all ranks hold the {what}, but element {int(other[0])} has other bits on rank {rank} "
                   "than on rank 0: let both of a pair add the same two sums")  # fmt: skip


def chunk_spans(case: Case) -> list[tuple[int, int]]:
    """Return the first element, and one past the last, of each of the N chunks: their lengths differ by at most 1."""
    lengths = [len(chunk) for chunk in torch.tensor_split(torch.empty(case.length), case.n)]
    return [*pairwise(accumulate(lengths, initial=0))]


def wrong_messages(run: Run) -> Iterator[str]:
    """Yield the messages, step by step, that no ring sends; nothing if another algorithm was written."""
    yield from (text for _, text in _wrong_steps(run) if text)


def right_steps(run: Run) -> int:
    """Return in how many steps all ranks have sent what they should in a ring, up to the first in which one has not."""
    last = min(len(run.of_rank(rank)) for rank in range(run.case.n)) if run.sent else -1
    return next((min(step, last) for step, _ in _wrong_steps(run)), last)


def _wrong_steps(run: Run) -> Iterator[tuple[int, str]]:
    """Yield the steps with a message that is not a ring's, and which; step 0 without one for another algorithm.

    The ring may go the other way round, and its ranks may begin with other chunks, a different one each.
    """
    case, spans = run.case, chunk_spans(run.case)
    by_rank = [run.of_rank(rank) for rank in range(case.n)]
    begun = [messages[0] for messages in by_rank if messages]
    if len(begun) < case.n or any(chunk_of(message, spans) is None for message in begun):
        yield 0, ""
        return
    way = -1 if sum(message.dst == (message.rank - 1) % case.n for message in begun) > case.n / 2 else 1
    numbers = {way * message.rank % case.n: chunk_of(message, spans) or 0 for message in begun}
    if len(set(numbers.values())) < case.n:
        numbers = {rank: rank for rank in range(case.n)}
    for step in range(2 * (case.n - 1)):
        for rank in range(case.n):
            dst, chunk = (rank + way) % case.n, numbers[(way * rank - step) % case.n]
            begin = f"N = {case.n}, step {step + 1}: rank {rank}"
            if step >= len(by_rank[rank]):
                if run.results:  # else the run has ended before
                    yield step, f"{begin} sent nothing; expected chunk {chunk} to rank {dst}"
                continue
            message = by_rank[rank][step]
            label = Ring().label(message, case)
            if message.dst != dst:
                yield step, f"{begin} sent {label} to rank {message.dst}; expected rank {dst}"
            if message.span is None or message.span[1:] != spans[chunk]:
                yield step, f"{begin} sent {label} to rank {dst}; expected chunk {chunk}"
            for content in _wrong_content(run, message, rank, step, way):
                yield step, f"{begin} sent {label} to rank {dst} {content}"


def chunk_of(message: Sent, spans: Sequence[tuple[int, int]]) -> int | None:
    """Return which of the chunks a message is; None if it is none, or a copy."""
    return spans.index(message.span[1:]) if message.span and message.span[1:] in spans else None


def added_to_what_is_sent(run: Run) -> Iterator[str]:
    """Yield the ranks that added a received chunk to the chunk that they were sending, instead of to their own."""
    spans = chunk_spans(run.case)
    of_chunks = [(message, message.vector, chunk) for message in run.sent
                 if message.vector is not None and (chunk := chunk_of(message, spans)) is not None]  # fmt: skip
    for (message, sent, chunk), (other, came, right) in product(of_chunks, of_chunks):
        came_in = other.dst == message.rank and other.arrived is not None and came.shape == sent.shape
        if came_in and is_close(message.became, sent + came):
            yield (f"N = {run.case.n}, step {message.step}: rank {message.rank} added what came in (chunk {right}) to "
                   f"chunk {chunk}, which it is just sending; expected: to chunk {right}")  # fmt: skip


def _wrong_content(run: Run, message: Sent, rank: int, step: int, way: int) -> Iterator[str]:
    """Yield the wrong parts in a chunk that was the right one to send; it may be divided already."""
    case = run.case
    if message.span is None or message.vector is None:
        return
    _, start, stop = message.span
    found = coefficients(message.vector, [inputs["vector"][start:stop] for inputs in run.inputs])
    wanted = {(rank - way * i) % case.n for i in range(min(step, case.n - 1) + 1)}
    expected = describe([float(k in wanted) for k in range(case.n)])
    if found is None:
        yield f"with something in it that is no sum of parts; expected {expected}"
        return
    scale, least = max(map(abs, found), default=0.0), min(abs(found[k]) for k in wanted)
    if {k for k, a in enumerate(found) if a} != wanted or abs(scale - least) >= 1e-2 * scale:
        hint = "; in share-only a chunk is finished: copy it, do not add" if step > case.n - 1 else ""
        yield f"that holds {describe(found)}; expected {expected}{hint}"
