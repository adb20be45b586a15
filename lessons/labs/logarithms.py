"""Lab 10: logarithms. All ranks end with the sum: in the fewest rounds, or with the fewest bytes.

When a function has run on numbers it is run on sets of contributors, which tell where it first went wrong.
"""

from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from math import log2
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from gradwire.core.records.errors import one_line
from gradwire.core.transports.base import Transport
from gradwire.every_order.contributions import check_all_reduce
from lessons.lab import Case, Figure, Run, Sent, Vectors, first
from lessons.labs.ring import AllReduce, other_bits
from lessons.sums import are_all, coefficients, describe
from lessons.values import check_in_place, is_close, is_spoiled

DOUBLING, HALVING = "recursive_doubling", "halving_doubling"
_LENGTHS = ((2, 8), (4, 12), (8, 40), (3, 6), (5, 10), (6, 12), (7, 45), (1, 5), (4, 3), (2, 0))
_CURE = "write the sum into `vector`, in place: vector.add_(...)"
_WAIT = "the partner reads `vector` where it lies: copy what comes, wait for your own Work, and add then"
_CASTS = "it is given integers, too: make vectors of your own by torch.empty_like(vector), and scale nothing"
_RETURNS = "wait for all Works before you return"

# By activity: the text of a fault of `check_all_reduce`, and the hint for it.
_HINTS: dict[str, Sequence[tuple[str, str]]] = {
    DOUBLING: (
        ("may not have read", _WAIT),
        ("more than once", "in each round the partner is to hold the sum of ranks of which you have none: r ^ 2^k"),
        ("ends without", "after k rounds a rank has the sum of 2^k ranks: go on until 2^k is N"),
    ),
    "folding": (
        ("may not have read", _WAIT),
        ("more than once", "what comes back at the end is the sum of all, your part in it: copy it, do not add"),
        ("ends without", "who has given its vector away is to get the sum when all rounds are done"),
    ),
    "halving of 2": (
        ("may not have read", "send the half that you do not keep, and add to the half that you keep"),
        ("other elements", "one of a pair keeps the first half, the other the second, and each sends what it does not "
         "keep"),
        ("ends without", "now every rank has the sum of its part: go back the same way, so that all get all parts"),
    ),
    "halving": (("", "in round k the partner is r ^ 2^k, and you halve the half that you kept in round k - 1"),),
    "way back of 2": (
        ("more than once", "on the way back what comes is a finished sum: copy it, do not add"),
        ("", "on the way back send the half that you have summed; what comes goes where the other half was"),
    ),
    "way back": (("", "on the way back the last partner comes first: each half returns from whom you gave it to"),),
    "odd": (("", "N does not divide the length: the halves differ by one element; torch.tensor_split(part, 2)"),),
}  # fmt: skip


class Logarithms(AllReduce):
    """The student writes `recursive_doubling(transport, vector)` and `halving_doubling(transport, vector)`."""

    name = "logarithms"
    functions = (DOUBLING, HALVING)
    cases = (*(Case(n, length, torch.float64 if n > 6 else torch.float32, name)
               for name in functions for n, length in _LENGTHS if name == DOUBLING or n in (1, 2, 4, 8)),
             Case(4, 10_000))  # fmt: skip
    scored = Case(8, 40_000)
    real = Case(4, 1_000)
    parts: ClassVar = {
        DOUBLING: {"all vectors": lambda run: _has_all_alike(run), "one result": lambda run: _is_one(run, DOUBLING)},
        HALVING: {"the halves": lambda run: _has_halves(run), "the way back": lambda run: _is_one(run, HALVING)},
    }  # fmt: skip
    formulas = ("log2 N, the lower bound", "log2 N P", "2 log2 N", "2 (N - 1) P / N, the lower bound",
                "3 log2 N latency + (log2 N + 2 (N - 1) / N) P / bandwidth")  # fmt: skip
    carries_objects = False

    def run(self, yours: SimpleNamespace, transport: Any, case: Case, inputs: Vectors) -> Vectors:
        result: Vectors = {}
        for name in _asked(case):
            vector = transport.allocate(case.length, case.dtype).copy_(inputs["vector"])
            returned = getattr(yours, name)(transport, vector)
            check_in_place(f"rank {transport.rank}: {name}", _CURE, returned, vector, inputs["vector"])
            messages = torch.tensor(transport.messages_sent.total())
            result |= {name: vector, f"messages until {name}": messages}
        return result

    def examine(self, yours: Sequence[SimpleNamespace], run: Run) -> Iterator[str]:
        for name in _asked(run.case):
            fault = _find_fault([getattr(your, name) for your in yours], run.case)
            if fault and not _is_mean(run, name):
                released = any(is_spoiled(result[name]) for result in run.results)  # which is said of every lab
                hint = "" if released else _hint_of(name, fault, run.case)
                yield f"{name}: {fault}" + f": {hint}" * bool(hint)

    def find_faults(self, run: Run) -> Iterator[str]:
        vectors = [inputs["vector"] for inputs in run.inputs]
        for name in _asked(run.case):
            for rank, result in enumerate(run.results):
                begin = f"{name}: N = {run.case.n}, length {run.case.length}: rank {rank} ends with"
                if is_close(result[name], _total(run)):
                    continue
                if _is_mean(run, name):
                    yield f"{begin} the mean; expected the sum: do not divide"
                found = coefficients(result[name], vectors)
                yield f"{begin} {describe(found) if found else 'something else'}; expected the sum of all ranks"
            yield from other_bits(f"{name}: N = {run.case.n}", "sum", [result[name] for result in run.results])

    def comment(self, kind: str, run: Run) -> Iterator[str]:
        n, on_the_way = run.case.n, {(message.rank, message.dst) for message in run.sent if not message.released}
        if kind == "hole" and run.case.function:
            yield self.right_so_far(run.case.function)
        if kind == "deadlock" and any((dst, src) in on_the_way for src, dst in on_the_way):
            yield "; both of a pair wait for the other to read: isend, recv, and then wait for your Work"
        if kind == "deadlock" and _is_power_of_two(n):
            yield ("; a pair exchanges: receive from whom you send to" if on_the_way else
                   "; nothing is on its way: isend first, and then recv")  # fmt: skip
        if kind == "raised" and n == 1:
            yield "; N = 1: a rank alone has no partner, and log2 1 = 0 rounds"
        if kind in ("deadlock", "raised", "unread") and not _is_power_of_two(n):
            # Else rank 1 waits for the vector of rank 0.
            yield ("; N is no power of two: before the rounds the first 2 (N - p) ranks pair up"
                   if any(sent.round == 1 for sent in run.of_rank(1)) else "; of each pair only one takes part in the "
                   "rounds: count partners among the p ranks that are left")  # fmt: skip
        if kind == "raised" and run.case.function == DOUBLING and len(run.of_rank(0)) >= log2(n):
            yield f"; if this is one more round: there are log2 N = {log2(n):.0f}"

    def place(self, message: Sent, case: Case) -> str:
        return f"{case.function or ' and '.join(self.functions)}, step {message.step}"

    def label_vector(self, message: Sent, vector: torch.Tensor, case: Case) -> str:
        parts, rest = divmod(case.length, max(1, vector.numel()))
        return f"{vector.numel()} elements" if rest or not parts else f"P/{parts}" if parts > 1 else "P"

    def costs(self, run: Run) -> dict[str, float]:
        costs, begin = dict[str, float](), [0] * run.case.n
        for name in self.functions:
            end = [int(result[f"messages until {name}"]) for result in run.results]
            sent = [message for message in run.sent if begin[message.rank] < message.step <= end[message.rank]]
            by_rank = [sum(message.nbytes for message in sent if message.rank == rank) for rank in range(run.case.n)]
            costs |= {f"rounds, {name}": count_rounds(sent, run.case.n), f"bytes of a rank, {name}": max(by_rank)}
            begin = end
        return costs | {"virtual seconds": run.seconds}

    def hint(self, run: Run, missed: Sequence[Figure]) -> Iterator[str]:
        costs, rounds = self.costs(run), log2(run.case.n)
        more = costs[f"bytes of a rank, {DOUBLING}"] - rounds * run.case.length * run.case.dtype.itemsize
        what, _, name = missed[0].name.partition(", ")
        if name == DOUBLING and what == "rounds" and more <= 0:
            yield ("parts of the vector are sent: with whole ones log2 N rounds do" if more else "one of a pair waits "
                   "for the other's message before it sends its own: isend first, then recv")  # fmt: skip
        if name == HALVING and what == "rounds":
            yield "are these the N - 1 rounds of a ring, twice? Exchange with partners further and further away"
        if name == HALVING:
            whole = costs[f"rounds, {name}"] <= rounds
            yield ("whole vectors are exchanged: only that half is of use which the partner keeps" if whole else
                   "a rank sends more than half of what both of a pair still sum")  # fmt: skip


def count_rounds(sent: Sequence[Sent], n: int) -> int:
    """Return how many rounds messages take, in this order, if a rank sends one and receives one in each."""
    rounds, sends, receives = dict[int, int](), [0] * n, [0] * n
    events = [(number, message) for message in sent for number in (message.number, message.taken)]
    for number, message in sorted(events, key=lambda event: event[0]):
        if number == message.number:
            rounds[number] = sends[message.rank] = max(sends[message.rank], receives[message.rank]) + 1
        else:
            receives[message.dst] = max(receives[message.dst] + 1, rounds[message.number])
    return max(sends + receives)


def _asked(case: Case) -> Sequence[str]:
    return (case.function,) if case.function else Logarithms.functions


def _is_power_of_two(n: int) -> bool:
    return n & n - 1 == 0


def _total(run: Run) -> torch.Tensor:
    return torch.stack([inputs["vector"].double() for inputs in run.inputs]).sum(0).to(run.case.dtype)


def _is_mean(run: Run, name: str) -> bool:
    """Whether it has divided: sets cannot be divided, so the numbers are to say it."""
    return run.case.n > 1 and run.case.length > 0 and is_close(run.results[0][name], _total(run) / run.case.n)


def _has_all_alike(run: Run) -> bool:
    """Whether each rank has the vectors of all equally often in its own."""
    vectors = [inputs["vector"] for inputs in run.inputs]
    found = [coefficients(result[DOUBLING], vectors) or [0.0] for result in run.results]
    return all(of[0] and are_all(of, of[0]) for of in found)


def _is_one(run: Run, name: str) -> bool:
    """Whether all ranks of several end with one vector, which none of them had."""
    results = [result[name] for result in run.results]
    was = any(is_close(results[0], inputs["vector"]) for inputs in run.inputs)
    return not was and all(is_close(result, results[0]) for result in results)


def _has_halves(run: Run) -> bool:
    """Whether each element of the sum is on some rank."""
    found = torch.stack([result[HALVING] for result in run.results])
    return run.case.n > 1 and bool(((found - _total(run)).abs() < 1e-4).any(0).all())


def _find_fault(functions: Sequence[Any], case: Case) -> str | None:
    """Return the first fault of a function, as each rank has it, on sets of contributors."""

    def all_reduce(vector: torch.Tensor, transport: Transport, _: int) -> int:
        functions[transport.rank](transport, vector)
        return (4**case.n - 1) // 3  # the sum that is not asked of it

    try:
        with redirect_stdout(None):  # what it prints has been shown
            return check_all_reduce(all_reduce, case.n, case.length)
    except (Exception, SystemExit) as error:
        return f"N = {case.n}, length {case.length}, on vectors of integers: {one_line(error)}"


def _hint_of(name: str, fault: str, case: Case) -> str:
    """Return the hint for a fault that `check_all_reduce` has named."""
    doing = DOUBLING if _is_power_of_two(case.n) else "folding"
    if name == HALVING:
        is_back = int(fault.partition("round ")[2].partition(":")[0] or 0) > log2(case.n)
        doing = "odd" if case.length % case.n else ("way back" if is_back else "halving") + " of 2" * (case.n == 2)
    hints = (("be cast", _CASTS), ("Error: ", ""), ("returns before", _RETURNS), *_HINTS[doing])
    return first(hint for text, hint in hints if text in fault)
