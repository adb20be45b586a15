"""Lab 10: logarithms. All ranks end with the sum, in the fewest rounds, then with the fewest bytes.

Functions that are right on numbers are run on sets of contributors, too: `strategies/common/contributions.py`.
"""

from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from math import log2
from types import SimpleNamespace
from typing import Any

import torch

from lessons.lab import Case, Figure, Run, Sent, Vectors, check_in_place, is_close
from lessons.labs.ring import Ring
from lessons.sums import are_all, coefficients, describe
from records.errors import one_line
from strategies.common.contributions import find_fault
from transports.base import Transport

DOUBLING, HALVING = "recursive_doubling", "halving_doubling"
_LENGTHS = ((2, 8), (4, 12), (8, 40), (3, 6), (5, 10), (6, 12), (7, 45), (1, 5), (4, 3), (2, 0))
_CURE = "write the sum into `vector`, in place: vector.add_(...)"
_WAIT = "the partner reads `vector` where it lies: copy what comes, wait for your own Work, and add then"
_FOLD = ("N is no power of two: of each pair of the fold only one takes part in the rounds, and the partner is counted "
         "among the p ranks that are left")  # fmt: skip
# What a fault of `find_fault` says, and what is to be said of it: of recursive doubling for powers of two, for other N,
# of halving, and on the way back.
_HINTS: dict[str, Sequence[tuple[str, str]]] = {
    DOUBLING: (
        ("may not have read", _WAIT),
        ("more than once", "in each round the partner is to hold the sum of ranks of which you have none: r ^ 2^k"),
        ("ends without", "after round k a rank has the sum of 2^k ranks: until 2^k is N"),
    ),
    "fold": (
        ("may not have read", _WAIT),
        ("more than once", _FOLD),
        ("ends without", "who has given its vector away is to get the sum when all rounds are done"),
    ),
    HALVING: (
        ("may not have read", "send the half that you do not keep, and add to the half that you keep"),
        ("to other elements", "one of a pair keeps the first half, the other the second: each sends what it does not "
         "keep, and adds what comes to the same elements"),
        ("more than once", "the partner of round k is r ^ 2^k, and both halve the part that they kept in round k - 1"),
    ),
    "back": (
        ("more than once", "on the way back what comes is a finished sum: copy it, do not add"),
        ("to other elements", "on the way back the last partner is the first, and its half goes where you sent yours "
         "from"),
        ("ends without", "each half that was given away has to come back: the same partners, the last one first"),
    ),
}  # fmt: skip


class Logarithms(Ring):
    """The student writes `recursive_doubling(transport, vector)` and `halving_doubling(transport, vector)`."""

    name = "logarithms"
    functions = (DOUBLING, HALVING)
    cases = (*(Case(n, length, torch.float64 if n > 6 else torch.float32, name)
               for name in functions for n, length in _LENGTHS if name == DOUBLING or n & n - 1 == 0),
             Case(4, 10_000))  # fmt: skip
    scored = Case(8, 40_000)
    real = Case(4, 1_000)
    formulas = ("log2 N, the lower bound", "log2 N P", "2 log2 N", "2 (N - 1) P / N, the lower bound",
                "3 log2 N latency + (log2 N + 2 (N - 1) / N) P / bandwidth")  # fmt: skip
    carries_objects = False

    def run(self, yours: SimpleNamespace, transport: Any, case: Case, inputs: Vectors) -> Vectors:
        result, sent = Vectors(), 0

        def isend(*args: Any, **kwargs: Any) -> Any:
            nonlocal sent
            sent += 1
            return transport.isend(*args, **kwargs)

        counting = SimpleNamespace(rank=transport.rank, world_size=case.n, peers=transport.peers, isend=isend,
                                   allocate=transport.allocate, recv=transport.recv, sleep=transport.sleep)  # fmt: skip
        for name in _asked(case):
            vector = transport.allocate(case.length, case.dtype).copy_(inputs["vector"])
            returned = getattr(yours, name)(counting, vector)
            check_in_place(f"rank {transport.rank}: {name}", _CURE, returned, vector, inputs["vector"])
            result |= {name: vector, f"last message of {name}": torch.tensor(sent)}
        return result

    def examine(self, yours: Sequence[SimpleNamespace], run: Run) -> Iterator[str]:
        for name in _asked(run.case):
            if _is_mean(run, name):
                continue  # sets cannot be divided; the numbers say what is wrong
            fault = _find_fault([getattr(one, name) for one in yours], run.case.n, run.case.length)
            if fault:
                yield f"{name}: {fault}{_hint_of(name, fault, run.case.n)}"

    def find_faults(self, run: Run) -> Iterator[str]:
        for name in _asked(run.case):
            vectors = [inputs["vector"] for inputs in run.inputs]
            total = torch.stack(vectors).double().sum(0).to(run.case.dtype)
            for rank, result in enumerate(run.results):
                begin = f"{name}: N = {run.case.n}, length {run.case.length}: rank {rank} ends with"
                if is_close(result[name], total):
                    continue
                if _is_mean(run, name):
                    yield f"{begin} the mean; expected the sum: do not divide"
                found = coefficients(result[name], vectors)
                yield f"{begin} {describe(found) if found else 'something else'}; expected the sum of all ranks"
            for rank, result in enumerate(run.results):
                if len(other := (result[name] != run.results[0][name]).nonzero()):
                    yield (f"{name}: N = {run.case.n}: all ranks hold the sum, but element {int(other[0])} has other "
                           f"bits on rank {rank} than on rank 0: let both of a pair add the same two sums")  # fmt: skip

    def comment(self, kind: str, run: Run) -> Iterator[str]:
        waiting = {(one.rank, one.dst) for one in run.sent if not one.released}
        if kind == "hole" and run.case.function:
            yield self.right_so_far(run.case.function)
        if kind == "deadlock" and any((dst, src) in waiting for src, dst in waiting):
            yield "; both of a pair wait for the other to read: isend, recv, and then wait for your Work"
        if kind in ("deadlock", "raised", "unread") and run.case.function == DOUBLING and run.case.n & run.case.n - 1:
            yield f"; {_FOLD}"

    def place(self, message: Sent, case: Case) -> str:
        return f"{case.function or 'both functions'}, step {message.step}"

    def costs(self, run: Run) -> dict[str, float]:
        costs, firsts = dict[str, float](), [0] * run.case.n
        for name in self.functions:
            lasts = [int(result[f"last message of {name}"]) for result in run.results]
            sent = [one for one in run.sent if firsts[one.rank] < one.step <= lasts[one.rank]]
            costs[f"rounds, {name}"] = count_rounds(sent, run.case.n)
            by_rank = [sum(one.nbytes for one in sent if one.rank == rank) for rank in range(run.case.n)]
            costs[f"bytes of a rank, {name}"] = max(by_rank)
            firsts = lasts
        return costs | {"virtual seconds": run.seconds}

    def hint(self, run: Run, missed: Sequence[Figure]) -> Iterator[str]:
        costs, rounds, P = self.costs(run), log2(run.case.n), run.case.length * run.case.dtype.itemsize
        what, _, name = missed[0].name.partition(", ")
        if name == DOUBLING and what == "rounds":
            halves = costs[f"bytes of a rank, {DOUBLING}"] < rounds * P
            yield ("parts of the vector are sent: with whole ones half as many rounds do" if halves else
                   "one of a pair waits for the other's message before it sends its own: isend first, then recv")  # fmt: skip
        if name == HALVING and what == "rounds":
            yield "more rounds than 2 log2 N: is this a ring? Exchange with partners further and further away"
        if name == HALVING and costs[f"rounds, {HALVING}"] <= rounds:
            yield "whole vectors are exchanged: a rank need send only the half that its partner keeps"
        if name == HALVING:
            yield "a rank sends more than half of what both of a pair still sum"


def count_rounds(sent: Sequence[Sent], n: int) -> int:
    """Return how many rounds messages take, in this order, if each rank sends one and receives one in a round."""
    rounds, sends, receives = dict[int, int](), [0] * n, [0] * n
    for number, one in sorted([(one.number, one) for one in sent] + [(one.taken, one) for one in sent],
                              key=lambda event: event[0]):  # fmt: skip
        if number == one.number:
            rounds[number] = sends[one.rank] = max(sends[one.rank], receives[one.rank]) + 1
        else:
            receives[one.dst] = max(receives[one.dst] + 1, rounds[one.number])
    return max(sends + receives)


def _asked(case: Case) -> Sequence[str]:
    return (case.function,) if case.function else Logarithms.functions


def _is_mean(run: Run, name: str) -> bool:
    total = torch.stack([inputs["vector"] for inputs in run.inputs]).double().sum(0)
    mean = (total / run.case.n).to(run.case.dtype)
    return run.case.n > 1 and run.case.length > 0 and is_close(run.results[0][name], mean)


def _find_fault(functions: Sequence[Any], n: int, length: int) -> str | None:
    """Return the first fault of a function, as each rank has it, on sets of contributors."""

    def all_reduce(vector: torch.Tensor, transport: Transport, _: int) -> int:
        functions[transport.rank](transport, vector)
        return (4**n - 1) // 3  # which the functions are not asked for

    try:
        with redirect_stdout(None):  # what they print has been shown
            return find_fault(all_reduce, n, length)
    except Exception as error:
        return f"N = {n}, length {length}, on vectors of integers: {one_line(error)}"


def _hint_of(name: str, fault: str, n: int) -> str:
    """Return what is to be said of a fault that `find_fault` has named, by its round."""
    kind = "fold" if name == DOUBLING and n & n - 1 else name
    round = int(fault.partition("round ")[2].partition(":")[0] or 0)
    if name == HALVING and round > log2(n):
        kind = "back"
    return next((f": {hint}" for text, hint in _HINTS[kind] if text in fault), "")
