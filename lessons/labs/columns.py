"""Lab 15: columns and rows. A block, and the loss behind it, cut over ranks, are those of one process."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import ClassVar

import torch
import torch.distributed as dist
import torch.nn.functional as F

from lessons.lab import Case, Fault, Figure, Run, Vectors
from lessons.passes import Block, attend
from lessons.scripts import ScriptLab, count_calls
from lessons.values import check_like, is_close, kind_of, normal

T, HEADS, VOCABULARY = 4, 4, 14  # tokens, heads, and words, which N need not divide
NAMES = tuple(field.name for field in fields(Block))
ROWS = ("O", "B")  # of these a rank has rows, of the others columns
WHOLE = ("y", "gradient of x", *(f"gradient of {name}" for name in NAMES), "loss", "gradient of the logits")
F64 = torch.float64


def block_of(inputs: Vectors, d: int) -> Block:
    """Return the whole block."""
    shapes = [(d, d)] * 4 + [(d, 4 * d), (4 * d, d)]
    parts = inputs["weights"].split([rows * columns for rows, columns in shapes])
    return Block(*(part.view(shape) / d**0.5 for part, shape in zip(parts, shapes, strict=True)))


def part_of(block: Block, rank: int, N: int) -> Block:
    """Return the part of a rank."""
    sizes = {name: getattr(block, name).tensor_split(N, 0 if name in ROWS else 1)[rank] for name in NAMES}
    return Block(**{name: matrix.clone(memory_format=torch.contiguous_format) for name, matrix in sizes.items()})


def words_of(rank: int, N: int) -> range:
    """Return the words of a rank's part of the vocabulary."""
    part = torch.arange(VOCABULARY).tensor_split(N)[rank]
    return range(int(part[0]), int(part[-1]) + 1)


def run_mlp(x: torch.Tensor, part: Block, heads: int) -> torch.Tensor:
    """Return what a part gives, without the other ranks."""
    return F.gelu(x @ part.A) @ part.B


def run_attention(x: torch.Tensor, part: Block, heads: int) -> torch.Tensor:
    """Return what a part gives, without the other ranks."""
    return attend(x @ part.Q, x @ part.K, x @ part.V, heads) @ part.O


def run_block(x: torch.Tensor, part: Block, heads: int) -> torch.Tensor:
    """Return x after a block of one process."""
    x = x + run_attention(x, part, heads)
    return x + run_mlp(x, part, heads)


RUNS = {"mlp": run_mlp, "attention": run_attention, "": run_block}


def differentiate(run: Callable[[torch.Tensor, Block], torch.Tensor], block: Block, inputs: Vectors) -> Vectors:
    """Return y = run(x, block), and the gradients for the one of y that the inputs have. Raises Fault."""
    x = inputs["x"].view(T, -1).clone().requires_grad_()
    for name in NAMES:
        getattr(block, name).requires_grad_()
    y = run(x, block)
    check_like("returned", "y is", y, x)
    if not x.detach().equal(inputs["x"].view(T, -1)):
        raise Fault("damage", "x was changed in place; all_reduce works in place: give it a clone")
    if y.requires_grad:
        y.backward(inputs["u"].view(T, -1).clone())
    grads = {"x": x.grad} | {name: getattr(block, name).grad for name in NAMES}
    none = x.new_full((1,), torch.nan)
    return {"y": y.detach()} | {f"gradient of {name}": none if grad is None else grad for name, grad in grads.items()}


def cross_entropy(z: torch.Tensor, targets: torch.Tensor) -> Vectors:
    """Return the loss of one process, and the gradient of its logits."""
    z = z.clone().requires_grad_()
    value = F.cross_entropy(z, targets)
    return {"loss": value.detach().view(1), "gradient of the logits": torch.autograd.grad(value, z)[0]}


def expected(case: Case, inputs: Sequence[Vectors], rank: int) -> Vectors:
    """Return the results that a rank should have."""
    n, name, mine = case.n, case.function, inputs[rank]
    own = [values["own"].view(T, -1) for values in inputs]
    x, d = mine["x"].view(T, -1), case.length // T
    match name:
        case "f":
            return {"y": x, "gradient of x": torch.stack(own).sum(0)}
        case "g":
            return {"y": torch.stack(own).sum(0), "gradient of x": mine["u"].view(T, -1)}
        case "cut":
            parts = {(k, N): part_of(block_of(mine, d), k, N) for N in (1, 2, 4) for k in range(N)}
            return {f"{key} of rank {k} of {N}": getattr(part, key) for (k, N), part in parts.items() for key in NAMES}
    found: Vectors = {}
    if name != "loss":
        found = differentiate(lambda x, part: RUNS[name](x, part, HEADS), block_of(mine, d), mine)
        for key in NAMES:
            grad = found[f"gradient of {key}"]
            found[f"gradient of {key}"] = grad if len(grad) == 1 else grad.tensor_split(n, int(key not in ROWS))[rank]
    if name in ("loss", ""):
        words = words_of(rank, n)
        found |= cross_entropy(mine["logits"].view(T, -1), mine["targets"])
        found["gradient of the logits"] = found["gradient of the logits"][:, words.start : words.stop]
    return found


def others(run: Run, rank: int) -> Vectors:
    """Return what a rank's part gives without the other ranks, and other results that are easily got."""
    inputs, name, n = run.inputs[rank], run.case.function, run.case.n
    if name in ("f", "g"):
        return {"y": inputs["own"].view(T, -1), "gradient of x": inputs["own"].view(T, -1)}
    if name == "loss":
        z, targets = inputs["logits"].view(T, -1), inputs["targets"]
        parts = [z[:, words_of(k, n).start : words_of(k, n).stop] for k in range(n)]
        of_target = z.gather(1, targets[:, None])[:, 0]
        owners = torch.stack([sum(words_of(k, n).start <= target for k in range(n)) - 1 for target in targets])
        largest = torch.stack([part.amax(1) for part in parts])
        total = torch.stack([(part - most[:, None]).exp().sum(1) for part, most in zip(parts, largest, strict=True)])
        mine = of_target.where(owners == rank, largest.amax(0))
        scaled = total.sum(0).log() - of_target + largest[owners, torch.arange(T)]
        apart = torch.stack([torch.logsumexp(part, 1) for part in parts])[owners, torch.arange(T)] - of_target
        unscaled = torch.logsumexp(z, 1) - of_target - z.amax(1)
        alone = torch.logsumexp(parts[rank], 1) - mine
        values = {"loss": alone, "largest": scaled, "apart": apart, "unscaled": unscaled}
        return {key: value.mean().view(1) for key, value in values.items()}
    whole = block_of(inputs, run.case.length // T)
    found = differentiate(lambda x, part: RUNS[name](x, part, HEADS // n), part_of(whole, rank, n), inputs)
    found["x"] = x = inputs["x"].view(T, -1)
    found["other"] = x @ whole.A @ whole.B if name == "mlp" else run_attention(x, whole, n)
    return found


# What a wrong result looks like, given the right one, those of `others`, and N; and what to say of it
Looks = Callable[[torch.Tensor, Vectors, int], torch.Tensor]
MEAN: dict[str, Looks] = {"the mean over ranks; expected the sum": lambda right, others, n: right / n}
OFTEN: dict[str, Looks] = {
    "N times too large: all ranks have the same, and it was added up": lambda right, others, n: right * n,
    **MEAN,
}
ADDED: dict[str, Looks] = {"with x added, which the block does itself": lambda right, others, n: right + others["x"],
                           **OFTEN}  # fmt: skip
TABLE: Mapping[str, Mapping[str, Looks]] = {  # by function and result, or by result
    "f y": OFTEN, "g gradient of x": OFTEN,
    "g y": {"this rank's term of the sum alone: all-reduce": lambda right, others, n: others["y"]} | MEAN,
    "f gradient of x": {"this rank's alone; add up those of all ranks": lambda right, others, n:
                        others["gradient of x"]} | MEAN,
    "mlp y": {"this rank's term of the sum alone: g is missing": lambda right, others, n: others["y"],
              "x A B: gelu is missing": lambda right, others, n: others["other"], **ADDED},
    "attention y": {"this rank's term of the sum alone: g is missing": lambda right, others, n: others["y"],
                    "of fewer heads: the part has `heads` of them": lambda right, others, n: others["other"], **ADDED},
    "gradient of x": {"this rank's alone: f is missing": lambda right, others, n: others["gradient of x"]} | OFTEN,
    "loss": {
        "that of this rank's words alone": lambda right, others, n: others["loss"],
        "made of sums of which each has another largest logit: take that of all ranks": lambda right, others, n:
            others["largest"],
        "the sum over tokens; expected the mean": lambda right, others, n: right * T,
        "less than 0: it is log(sum of exp(z)) - z of the target": lambda right, others, n: -right,
        "made with a softmax over each rank's own words: add up the sums of exp(z)": lambda right, others, n:
            others["apart"],
        "too small by the largest logit: subtract it from that of the target, too": lambda right, others, n:
            others["unscaled"],
    },
}  # fmt: skip


def explain(run: Run, rank: int, name: str, right: torch.Tensor) -> str:
    """Return what a wrong result of a rank is."""
    value, case = run.results[rank][name], run.case
    if value.isnan().all() and value.shape != right.shape:
        return "missing: nothing that has a gradient leads there"
    if case.function == "cut":
        return f"wrong: a rank has {'rows' if name[0] in ROWS else 'columns'} of {name[0]}, in the order of the ranks"
    if name == "loss" and value.isnan().all():
        return "NaN: is it divided by the number of targets that this rank has, which may be 0?"
    if not value.isfinite().all():
        return "not finite: subtract the largest logit, that of all ranks, before exp"
    if case.function:
        wrong = others(run, rank)
        for text, looks in TABLE.get(f"{case.function} {name}", TABLE.get(name, OFTEN)).items():
            if is_close(value, looks(right, wrong, case.n)):
                return text
    return "something else than that of one process"


class Columns(ScriptLab):
    """The student writes f, g, the cut of a block, its two halves, and the loss behind it."""

    name = "columns"
    functions = ("f", "g", "cut", "mlp", "attention", "loss")
    changed = ()
    cases = (Case(3, 12, function="f"), Case(3, 12, function="g"), Case(1, 32, function="cut"),
             Case(2, 32, function="mlp"), Case(4, 64, F64, function="mlp"), Case(2, 32, function="attention"),
             Case(4, 64, F64, function="attention"), Case(3, 8, function="loss"), Case(4, 8, F64, function="loss"),
             Case(1, 8, function="loss"), Case(4, 64, F64))  # fmt: skip
    scored = Case(4, 256)
    real = Case(2, 64, F64)
    formulas = ("4 + 2", "2 (N - 1) (4 P + 8 T) / N + 4 (N - 1) T", "12 d**2 / N",
                "6 all-reduces, one after the other")  # fmt: skip
    parts: ClassVar = {
        **{name: {f"{name}, forward": lambda run: all_right(run, "y"),
                  f"{name}, backward": lambda run: all_right(run, "gradient")}
           for name in ("f", "g", "mlp", "attention")},
        "cut": {"the columns": lambda run: all_right(run, *(name for name in NAMES if name not in ROWS)),
                "the rows": lambda run: all_right(run, *ROWS)},
        "loss": {"the loss": lambda run: all_right(run, "loss"),
                 "its gradient": lambda run: all_right(run, "gradient")},
    }  # fmt: skip

    def draw(self, case: Case, chance: random.Random) -> list[Vectors]:
        d = case.length // T
        sizes = {"x": case.length, "u": case.length, "weights": 12 * d * d, "logits": T * VOCABULARY}
        drawn = {name: normal(n, case.dtype, chance) for name, n in sizes.items()}
        drawn["logits"] = 3 * drawn["logits"] + 200  # whose exp is not finite
        drawn["targets"] = torch.tensor([chance.randrange(VOCABULARY) for _ in range(T)])
        return [drawn | {"own": normal(case.length, case.dtype, chance)} for _ in range(case.n)]

    def run_rank(self, yours: SimpleNamespace, case: Case, inputs: Vectors) -> Vectors:
        rank, n, name, d = dist.get_rank(), case.n, case.function, case.length // T
        try:
            if name == "cut":
                return _cut_all(yours.cut, block_of(inputs, d))
            if name in ("f", "g"):
                given = inputs | ({"u": inputs["own"]} if name == "f" else {"x": inputs["own"]})
                found = differentiate(lambda x, _: getattr(yours, name)(x), block_of(inputs, d), given)
                return {key: found[key] for key in ("y", "gradient of x")}
            result: Vectors = {}
            if name != "loss":
                run = {"mlp": lambda x, part: yours.mlp(x, part),
                       "attention": lambda x, part: yours.attention(x, part, HEADS // n),
                       "": lambda x, part: (h := x + yours.attention(x, part, HEADS // n)) + yours.mlp(h, part)
                       }[name]  # fmt: skip
                whole = block_of(inputs, d)
                part = part_of(whole, rank, n) if name else yours.cut(whole, rank, n)
                result = differentiate(run, part, inputs)
                result["numbers"] = torch.tensor(sum(getattr(part, key).numel() for key in NAMES))
            if name in ("loss", ""):
                result |= _run_loss(yours.loss, inputs, words_of(rank, n))
        except Fault as fault:
            raise Fault(fault.kind, f"{case}: rank {rank}: {name or 'the block'}: {fault}") from None
        return result

    def find_faults(self, run: Run) -> Iterator[str]:
        for rank, result in enumerate(run.results):
            for name, right in expected(run.case, run.inputs, rank).items():
                if not (result[name].isnan().all() and right.isnan().all()) and not is_close(result[name], right):
                    yield f"{run.case}: rank {rank}: {name} is {explain(run, rank, name, right)}"

    def costs(self, run: Run) -> dict[str, float]:
        calls = sum(count_calls(run, kind) for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"))
        return {"collectives": calls, "bytes of a rank": max(run.nbytes),
                "weights of a rank": max(float(result["numbers"]) for result in run.results),
                "virtual milliseconds": 1e3 * run.seconds}  # fmt: skip

    def hint(self, run: Run, missed: Sequence[Figure]) -> Iterator[str]:
        if count_calls(run, "all_gather"):
            yield "all_gather brings whole matrices to all ranks; a sum over ranks is enough"
        if missed[0].name == "collectives":
            yield ("a block needs one all-reduce in each half and pass: f at the beginning, g at the end; the loss "
                   "needs one for the largest logits, one for both sums")  # fmt: skip


def all_right(run: Run, *names: str) -> bool:
    """Whether the results whose names begin so are right on all ranks."""
    return all(
        is_close(result[name], right) or (result[name].isnan().all() and right.isnan().all())
        for rank, result in enumerate(run.results)
        for name, right in expected(run.case, run.inputs, rank).items()
        if name.startswith(names)
    )


def _cut_all(cut: Callable[[Block, int, int], Block], block: Block) -> Vectors:
    found: Vectors = {}
    for N in (1, 2, 4):
        for k in range(N):
            part = cut(replace(block), k, N)
            if not isinstance(part, Block):
                raise Fault("returned", f"cut returned {kind_of(part)}; expected a Block")
            if other := [key for key in NAMES if not isinstance(getattr(part, key), torch.Tensor)]:
                what = kind_of(getattr(part, other[0]))
                raise Fault("returned", f"cut returned {what} as {other[0]}; expected a tensor")
            found |= {f"{key} of rank {k} of {N}": getattr(part, key) for key in NAMES}
            if other := [key for key in NAMES if not getattr(part, key).is_contiguous()]:
                raise Fault("returned", f"cut returned {other[0]} as a view, which keeps the whole: .contiguous()")
    return found


def _run_loss(loss: Callable[..., torch.Tensor], inputs: Vectors, words: range) -> Vectors:
    z = inputs["logits"].view(T, -1)[:, words.start : words.stop].clone().requires_grad_()
    value = loss(z, inputs["targets"], words.start)
    check_like("returned", "it is", value, z.sum())
    if value.requires_grad:
        value.backward()
    none = z.new_full((1,), torch.nan)
    return {"loss": value.detach().view(1), "gradient of the logits": none if z.grad is None else z.grad}
