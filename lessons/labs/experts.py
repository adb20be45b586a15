"""Lab 16: experts. Tokens go to the rank that has their expert, and come back."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from lessons.lab import Case, Fault, Figure, Run, Vectors
from lessons.scripts import ScriptLab, count_calls
from lessons.values import check_like, is_close, kind_of, normal

TOKENS, CAPACITY = 12, 4
F64 = torch.float64
PLACES = ((6, 3, 2), (12, 4, 4), (9, 2, 9), (5, 1, 3))  # of `route`: tokens, experts, capacity
NAMES = ("y", "gradient of x", "gradient of scores", "gradient of the expert")


def choose(scores: torch.Tensor, capacity: int, drops: bool = True, late: bool = False) -> torch.Tensor:
    """Return the number of each token's expert, -1 if it is dropped: by default who comes `late`st."""
    numbers, taken = scores.argmax(1).tolist(), [0] * scores.shape[1]
    for i in reversed(range(len(numbers))) if late else range(len(numbers)):
        taken[numbers[i]] += 1
        if drops and taken[numbers[i]] > capacity:
            numbers[i] = -1
    return torch.tensor(numbers)


def of_tokens(scores: torch.Tensor) -> torch.Tensor:
    """Return what the gates are if the softmax is over the tokens."""
    return scores.softmax(0).gather(1, scores.argmax(1, True))[:, 0]


def scores_of(inputs: Vectors, n: int) -> list[torch.Tensor]:
    """Return what `route` is called with."""
    pieces = inputs["to_route"].split([tokens * experts for tokens, experts, _ in PLACES])
    return [piece.view(tokens, experts) for piece, (tokens, experts, _) in zip(pieces, PLACES, strict=True)]


def matrices(inputs: Vectors, case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return x [TOKENS, d], its scores [TOKENS, N], the gradient of y, and the weights of this rank's expert [d, d]."""
    return (inputs["x"].view(TOKENS, -1), inputs["scores"].view(TOKENS, -1), inputs["u"].view(TOKENS, -1),
            inputs["weights"].view(case.length, case.length))  # fmt: skip


def rows_of(case: Case, inputs: Sequence[Vectors]) -> tuple[list[list[int]], list[torch.Tensor]]:
    """Return how many rows each rank gives to each, and these rows, for the cases of `exchange`."""
    give = [values["give"].tolist() for values in inputs]
    return give, [values["x"].view(-1, case.length)[: sum(of)] for values, of in zip(inputs, give, strict=True)]


def expected(run: Run) -> list[Vectors]:
    """Return the results that each rank should have."""
    case, inputs, ranks = run.case, run.inputs, range(run.case.n)
    if case.function == "route":
        found: Vectors = {}
        for i, (scores, (*_, capacity)) in enumerate(zip(scores_of(inputs[0], case.n), PLACES, strict=True)):
            numbers = choose(scores, capacity)
            found |= {f"numbers {i}": numbers, f"gate {i}": scores.softmax(1).amax(1) * (numbers >= 0)}
        return [found]
    if case.function == "count":
        all_numbers = [choose(matrices(values, case)[1], CAPACITY) for values in inputs]
        given = torch.stack([torch.tensor([int((of == k).sum()) for k in ranks]) for of in all_numbers])
        return [{"give": given[rank], "take": given[:, rank]} for rank in ranks]
    if case.function == "exchange":
        pieces = [part.split(sizes) for sizes, part in zip(*rows_of(case, inputs), strict=True)]
        return [{"rows": torch.cat([pieces[k][rank] for k in ranks])} for rank in ranks]
    return one_process(run)


def one_process(run: Run) -> list[Vectors]:
    """Return y and the gradients of one process, which has all tokens and experts; y in wrong ways, too."""
    given = [matrices(values, run.case) for values in run.inputs]
    weights = [weight.clone().requires_grad_() for *_, weight in given]
    found: list[Vectors] = []
    for x, scores, u, _ in given:
        x, scores = (value.clone().requires_grad_() for value in (x, scores))
        numbers = choose(scores, CAPACITY)
        kept, gate = (numbers >= 0)[:, None], scores.softmax(1).amax(1, True)
        made = torch.stack([torch.tanh(row @ weights[number]) for row, number in zip(x, numbers, strict=True)])
        y = (gate * made).where(kept, 0)
        grads = torch.autograd.grad(y, [x, scores], u, retain_graph=True)
        torch.autograd.backward(y, u, inputs=weights)
        order = torch.cat([numbers.argsort(stable=True)[int((~kept).sum()) :], (~kept)[:, 0].nonzero()[:, 0]])
        plain, own = (gate * x).where(kept, 0), (gate * torch.tanh(x @ weights[len(found)])).where(kept, 0)
        inside = torch.stack([torch.tanh(row @ weights[number]) for row, number in zip(gate * x, numbers, strict=True)])
        wrong = {"plain": plain, "own": own, "inside": inside.where(kept, 0)}
        found.append(wrong | {
                      "y": y, "gradient of x": grads[0], "gradient of scores": grads[1], "as they come back": y[order],
                      "without gates": made.where(kept, 0), "with dropped": y.where(kept, x),
                      "without drops": gate * torch.stack([torch.tanh(row @ weights[k]) for row, k in zip(
                          x, choose(scores, CAPACITY, drops=False), strict=True)])})  # fmt: skip
        found[-1] = {name: value.detach() for name, value in found[-1].items()}
    for result, weight in zip(found, weights, strict=True):
        result["gradient of the expert"] = torch.zeros_like(weight) if weight.grad is None else weight.grad
    return found


# What a wrong result looks like: by function and result, the other result, and what to say of it
Looks = Callable[[Run, int, Vectors], torch.Tensor]
TABLE: Mapping[str, Mapping[str, Looks]] = {
    "route numbers": {
        "of an expert with more than its capacity: drop the tokens behind the first ones, -1": lambda run, i, right:
            choose(scores_of(run.inputs[0], 1)[i], PLACES[i][2], drops=False),
        "such that the first tokens are dropped; an expert keeps the first": lambda run, i, right:
            choose(scores_of(run.inputs[0], 1)[i], PLACES[i][2], late=True),
        "such that an expert has less than its capacity": lambda run, i, right:
            choose(scores_of(run.inputs[0], 1)[i], PLACES[i][2] - 1),
        "such that the number of dropped tokens is that of the experts; expected -1": lambda run, i, right:
            right[f"numbers {i}"].where(right[f"numbers {i}"] >= 0, PLACES[i][1]),
        "those of the smallest scores": lambda run, i, right: choose(-scores_of(run.inputs[0], 1)[i], PLACES[i][2]),
    },
    "route gate": {
        "the largest score; expected its probability, softmax": lambda run, i, right:
            scores_of(run.inputs[0], 1)[i].amax(1) * (right[f"numbers {i}"] >= 0),
        "the sigmoid of the score; expected its probability among the experts, softmax": lambda run, i, right:
            scores_of(run.inputs[0], 1)[i].amax(1).sigmoid() * (right[f"numbers {i}"] >= 0),
        "a softmax over the tokens; expected one over the experts": lambda run, i, right:
            of_tokens(scores_of(run.inputs[0], 1)[i]) * (right[f"numbers {i}"] >= 0),
    },
    "count give": {
        "what it takes; give comes first": lambda run, rank, right: right["take"],
        "with the tokens that are dropped, which go to no rank": lambda run, rank, right: torch.bincount(
            choose(matrices(run.inputs[rank], run.case)[1], CAPACITY) % run.case.n, minlength=run.case.n),
    },
    "count take": {"what this rank gives: what it takes only the others know": lambda run, rank, right: right["give"]},
    "exchange rows": {"the rows of this rank": lambda run, rank, right: rows_of(run.case, run.inputs)[1][rank]},
    "moe y": {
        "in the order in which tokens come back, by expert: put each where its token stood": lambda run, rank, right:
            right["as they come back"],
        "not multiplied by the gates": lambda run, rank, right: right["without gates"],
        "x for tokens that are dropped; expected 0": lambda run, rank, right: right["with dropped"],
        "made without a capacity": lambda run, rank, right: right["without drops"],
        "made without the experts": lambda run, rank, right: right["plain"],
        "made by this rank's expert for all tokens": lambda run, rank, right: right["own"],
        "made of x times the gates; expected the expert's result times them": lambda run, rank, right: right["inside"],
    },
}  # fmt: skip


def explain(run: Run, rank: int, name: str, right: Vectors) -> str:
    """Return what a wrong result of a rank is."""
    value, (kind, _, number) = run.results[rank][name], name.partition(" ")
    if value.shape != right[name].shape:
        return "missing: nothing that has a gradient leads there" if name.startswith("gradient") else (
            f"{kind_of(value)}; expected {kind_of(right[name])}")  # fmt: skip
    rows = TABLE.get(f"{run.case.function or 'moe'} {kind}", {})
    place = int(number) if number.isdigit() else rank
    return next(
        (text for text, looks in rows.items() if is_close(value, looks(run, place, right))),
        "something else than that of one process",
    )


class Experts(ScriptLab):
    """The student routes tokens to experts, counts, exchanges rows, and puts them back."""

    name = "experts"
    functions = ("route", "count", "exchange", "moe")
    whole = "moe"
    changed = ()
    cases = (Case(1, 3, function="route"), Case(3, 3, function="count"), Case(3, 2, function="exchange"),
             Case(4, 5, F64, function="exchange"), Case(2, 3, function="moe"), Case(1, 3, function="moe"),
             Case(4, 5, F64), Case(3, 4))  # fmt: skip
    scored = Case(4, 64)
    real = Case(3, 8, F64)
    formulas = (
        "1 + 2 + 2",
        "4 times the rows for other ranks, 8 (N - 1) of counts",
        "5 all-to-alls, one behind the other",
    )
    parts: ClassVar = {
        "route": {"the experts": lambda run: all_right(run, "numbers"),
                  "the gates": lambda run: all_right(run, "gate")},
        "count": {"what is given": lambda run: all_right(run, "give"),
                  "what is taken": lambda run: all_right(run, "take")},
        "exchange": {"how many rows": lambda run: _exchanges(run, lambda rows: torch.tensor(rows.shape)),
                     "which rows": lambda run: _exchanges(run, lambda rows: rows[rows[:, 0].argsort()])},
        "moe": {"the layer": lambda run: all_right(run, "y"), "its gradients": lambda run: all_right(run, "gradient")},
    }  # fmt: skip

    def draw(self, case: Case, chance: random.Random) -> list[Vectors]:
        sizes = {"x": TOKENS * case.length, "scores": TOKENS * case.n, "u": TOKENS * case.length,
                 "weights": case.length**2, "to_route": sum(size[0] * size[1] for size in PLACES)}  # fmt: skip
        drawn = [{name: normal(n, case.dtype, chance) for name, n in sizes.items()} for _ in range(case.n)]
        for values in drawn:
            values["weights"] /= case.length**0.5
            values["scores"].view(TOKENS, -1)[:, 0] += 1  # so that one expert is asked for more than the others
            values["give"] = torch.tensor([chance.choice((0, 1, 2, 3)) for _ in range(case.n)])
        return drawn

    def run_rank(self, yours: SimpleNamespace, case: Case, inputs: Vectors) -> Vectors:
        try:
            return getattr(self, f"_run_{case.function or 'moe'}")(yours, case, inputs)
        except Fault as fault:
            name = case.function or "moe"
            raise Fault(fault.kind, f"{case}: rank {dist.get_rank()}: {name} returned {fault}") from None

    def _run_route(self, yours: SimpleNamespace, case: Case, inputs: Vectors) -> Vectors:
        found: Vectors = {}
        for i, (scores, (*_, capacity)) in enumerate(zip(scores_of(inputs, case.n), PLACES, strict=True)):
            numbers, gate = _pair(yours.route(scores.clone(), capacity), torch.Tensor)
            check_like("returned", "numbers:", numbers, torch.zeros(len(scores), dtype=torch.int64))
            check_like("returned", "gates:", gate, scores[:, 0])
            found |= {f"numbers {i}": numbers, f"gate {i}": gate * (choose(scores, capacity) >= 0)}
        return found

    def _run_count(self, yours: SimpleNamespace, case: Case, inputs: Vectors) -> Vectors:
        give, take = _pair(yours.count(choose(matrices(inputs, case)[1], CAPACITY), case.n), list)
        return {"give": torch.tensor(give), "take": torch.tensor(take)}

    def _run_exchange(self, yours: SimpleNamespace, case: Case, inputs: Vectors) -> Vectors:
        give, take = inputs["give"].tolist(), [torch.zeros(1, dtype=torch.int64) for _ in range(case.n)]
        dist.all_to_all(take, [*inputs["give"].split(1)])
        given = inputs["x"].view(-1, case.length)[: sum(give)].clone()
        rows = yours.exchange(given, give, [int(n) for n in take])
        if not isinstance(rows, torch.Tensor):
            raise Fault("returned", f"{kind_of(rows)}; expected the rows")
        return {"rows": rows}

    def _run_moe(self, yours: SimpleNamespace, case: Case, inputs: Vectors) -> Vectors:
        x, scores, u, weights = (value.clone() for value in matrices(inputs, case))
        leaves = [value.requires_grad_() for value in (x, scores, weights)]
        y = yours.moe(x, scores, lambda rows: torch.tanh(rows @ weights), CAPACITY)
        check_like("returned", "", y, x)
        if y.requires_grad:
            y.backward(u)
        none = x.new_full((1,), torch.nan)
        grads = (none if leaf.grad is None else leaf.grad for leaf in leaves)
        return dict(zip(NAMES, (y.detach(), *grads), strict=True))

    def find_faults(self, run: Run) -> Iterator[str]:
        wanted = expected(run)
        for name in run.results[0]:
            for rank, result in enumerate(run.results):
                if not is_close(result[name], wanted[rank][name]):
                    label = "{}, {} tokens, {} experts, capacity {},".format(
                        name[:-2], *PLACES[int(name[-1])]) if run.case.function == "route" else name  # fmt: skip
                    yield f"{run.case}: rank {rank}: {label} is {explain(run, rank, name, wanted[rank])}"

    def costs(self, run: Run) -> dict[str, float]:
        kinds = ("all_to_all", "all_gather", "all_reduce", "broadcast", "message")
        return {"collectives": sum(count_calls(run, kind) for kind in kinds), "bytes of a rank": max(run.nbytes),
                "virtual milliseconds": 1e3 * run.seconds}  # fmt: skip

    def hint(self, run: Run, missed: Sequence[Figure]) -> Iterator[str]:
        if "bytes" in missed[0].name:
            yield "more rows travel than are needed: only those of tokens that are kept, to the rank of their expert"


def all_right(run: Run, kind: str) -> bool:
    """Whether the results whose names begin so are right on all ranks."""
    return all(
        is_close(result[name], right[name])
        for result, right in zip(run.results, expected(run), strict=True)
        for name in result
        if name.startswith(kind)
    )


def _exchanges(run: Run, of: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Whether `of` the rows of each rank is what it is of the right ones."""
    pairs = zip(run.results, expected(run), strict=True)
    return all(is_close(of(has["rows"]), of(right["rows"])) for has, right in pairs)


def _pair(returned: Any, of: type) -> tuple[Any, Any]:
    if not isinstance(returned, tuple) or len(returned) != 2 or not all(isinstance(value, of) for value in returned):
        raise Fault("returned", f"{kind_of(returned)}; expected two, each a {of.__name__}")
    return returned
