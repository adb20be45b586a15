"""Tell why two runs differ: `python -m records.why RESULTS_DIR/A RESULTS_DIR/B`, both of them with --hashes.

Names the first step, and in it the first thing in the order x, batch, gradient g of each worker, update u, that has not
the same bits, with its first tensor; and the cause, as far as 32 elements of each tensor, and its norm, show it.
That two sums differ only in the order of addition is shown by adding what all workers gave in every order: one has the
bits of A, and one those of B.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import islice, permutations
from typing import Any

import numpy as np

from records.finished import Parser, Run, differing_options, find_runs, run_command
from records.parting import Hashed, Parting, Row, differs, load, part

_OF_UPDATES = ("lr", "optimizer", "momentum", "weight_decay", "clip_norm", "lr_schedule", "warmup", "decay",
               "optimizer_options")  # fmt: skip
_OF_PASSES = ("dtype", "amp", "device", "task", "accumulate")
_OF_BATCHES = ("seed", "batch_size", "global_batch_size", "n_gpus", "dataset")
_OF_STARTS = ("seed", "model", "model_options", "dtype")
_MOST_ORDERS = 5040  # of addition: 7 ranks
_CLOSE = 1e-4
_LATE = 8  # steps


def cause(a: Hashed, b: Hashed, at: Parting) -> str:
    """Return why they part, or that it is not known."""
    found = {"x": _of_x, "batch": _of_batch, "g": _of_gradient, "u": _of_update}[at.kind](a, b, at)
    options = ", ".join(f"{name} {' and '.join(values)}" for name, values in differing_options([a.run, b.run]).items())
    unknown = "not known: nothing that was recorded explains it"
    return next((text for text in found if text), unknown + (f"; options that differ: {options}" if options else ""))


def _of_x(a: Hashed, b: Hashed, at: Parting) -> Iterator[str | None]:
    if at.step == 0:
        yield _options(a, b, _OF_STARTS, "another start")
        yield "another start, with the same options: the model is not made from --seed alone"
        return
    if a.run.metadata.get("arrivals") != b.run.metadata.get("arrivals"):
        yield "another order of messages: a server took them as they came"
    ours, theirs = (run.workers[at.who]["x"] for run in (a, b))
    for back in range(1, min(at.step, _LATE) + 1):
        for run, late, now in (("A", ours, theirs), ("B", theirs, ours)):
            if (late[at.step] == now[at.step - back]).all():
                yield f"a stale version: {run} computes step {at.step + 1} on the x of step {at.step + 1 - back}"
    yield _options(a, b, _OF_UPDATES, "another update of x")
    alike = [differs(a.row("x", at.step, k), b.row("x", at.step, k)) is None for k in range(len(a.workers))]
    if any(alike):
        yield f"x of worker {at.who} was changed by something else than the update; other workers have the same x"


def _of_batch(a: Hashed, b: Hashed, at: Parting) -> Iterator[str | None]:
    ours, theirs = ([worker["batch"][at.step] for worker in run.workers] for run in (a, b))
    if sorted(ours) == sorted(theirs):
        yield "another batch: workers have exchanged theirs"
    yield _options(a, b, _OF_BATCHES, "another batch")
    yield "another batch, with the same options: the data set, or how it is shuffled or augmented, is another"


def _of_gradient(a: Hashed, b: Hashed, at: Parting) -> Iterator[str | None]:
    ours, theirs = a.row("g", at.step, at.who), b.row("g", at.step, at.who)
    assert ours is not None
    assert theirs is not None
    if (factor := _factor(ours.elements, theirs.elements)) is not None:
        yield f"a factor: the gradient of B is {factor:.4g} times that of A, from the same x and batch"
    yield _options(a, b, _OF_PASSES, "another arithmetic")
    yield _unseen(a, ours, theirs)
    if _are_close(ours, theirs):
        names = ("machine torch", "machine threads", "machine cpu", "machine python")
        yield _options(a, b, names, "rounding of another version or number of threads")
    yield _lost(a, b, at, ours.elements, theirs.elements)
    yield "not known: the same x and batch gave another gradient (dropout, or an operation that is not deterministic)"


def _of_update(a: Hashed, b: Hashed, at: Parting) -> Iterator[str | None]:
    ours, theirs = a.row("u", at.step, at.who), b.row("u", at.step, at.who)
    assert ours is not None
    assert theirs is not None
    if len(a.workers) != len(b.workers):
        yield f"another number of workers: {len(a.workers)} and {len(b.workers)}"
    yield _options(a, b, ("codec",), "a lossy codec")
    yield _unseen(a, ours, theirs)
    if _are_close(ours, theirs):
        yield _order(a, b, at, ours.elements, theirs.elements)
    n = len(a.workers)
    if (factor := _factor(ours.elements, theirs.elements)) is not None:
        by_n = any(abs(factor * by - 1) < _CLOSE for by in (n, 1 / n))
        yield f"{'a missing mean' if by_n else 'a factor'}: the update of B is {factor:.4g} times that of A"
    for name, run, mine in (("B", b, theirs.elements), ("A", a, ours.elements)):
        yield _from_others(name, run, at.step, mine)
    yield _lost(a, b, at, ours.elements, theirs.elements)
    if _are_close(ours, theirs):
        yield "rounding: both are about the same mean, which no order of addition gives to the bit"


def _options(a: Hashed, b: Hashed, names: Sequence[str], what: str) -> str | None:
    """Return `what` with the options that differ, if some of `names` do."""
    found = [(name, a.option(name), b.option(name)) for name in names]
    texts = [f"{name.removeprefix('machine ')} {one} and {other}" for name, one, other in found if one != other]
    return f"{what}: {', '.join(texts)}" if texts else None


def _are_close(ours: Row, theirs: Row) -> bool:
    """Return whether the kept elements, and the norms of the tensors, are the same but for rounding."""
    least = 1e-6 * float(np.nanmax(np.abs(ours.elements)))
    same = np.allclose(ours.norms, theirs.norms, rtol=_CLOSE, atol=least, equal_nan=True)
    return same and np.allclose(ours.elements, theirs.elements, rtol=1e-3, atol=least, equal_nan=True)


def _unseen(a: Hashed, ours: Row, theirs: Row) -> str | None:
    """Return which tensor differs in none of the kept elements, of which nothing can be shown."""
    seen = (ours.elements != theirs.elements).any(1) | np.isnan(ours.norms) | np.isnan(theirs.norms)
    hidden = np.flatnonzero((ours.hashes != theirs.hashes) & ~seen)
    return f"not known: {a.names[hidden[0]]} differs only in elements that were not kept" if len(hidden) else None


def _factor(ours: np.ndarray, theirs: np.ndarray) -> float | None:
    """Return the number that all elements of A's are multiplied with in B; None: it is not one, or it is 1."""
    known = np.isfinite(ours) & np.isfinite(theirs) & (np.abs(ours) > 1e-12)
    if not known.any():
        return None
    ratios = theirs[known] / ours[known]
    middle = float(np.median(ratios))
    return middle if np.allclose(ratios, middle, rtol=_CLOSE) and abs(middle - 1) > _CLOSE and middle else None


def _means(g: Any, n: list[int]) -> list[Any]:
    """Return the mean of gradients [workers, ...] that are added in this order, in the ways in which strategies do."""
    import torch  # which adds as they did; here, because reading results must not wait for it

    total, shares, mean = g[0] * n[0], g[0] / len(n), g[0]
    for k in range(1, len(n)):
        total, shares = total + g[k] * n[k], shares + g[k] / len(n)
        mean = torch.lerp(mean, g[k], n[k] / sum(n[: k + 1]))
    return [total / sum(n), shares, mean]


def _order(a: Hashed, b: Hashed, at: Parting, ours: np.ndarray, theirs: np.ndarray) -> str | None:
    """Return that both are sums of the same gradients, if every kept element of each is one in some order."""
    g, other, workers = a.elements(at.step), b.elements(at.step), a.workers
    g = other if g is None else g  # a built-in's own are not known: from the same x and batches they are the same
    if g is None:
        return None
    import torch

    dtype = getattr(torch, str(a.option("dtype") or "float32"))
    gradients = torch.from_numpy(g).to(dtype)
    aims = [torch.from_numpy(values).to(dtype) for values in (ours, theirs)]
    found = [aim.isnan() for aim in aims]
    for order in islice(permutations(range(len(workers))), _MOST_ORDERS):
        for mean in _means(gradients[list(order)], [int(workers[k]["n"][at.step]) for k in order]):
            for reached, aim in zip(found, aims, strict=True):
                reached |= mean == aim
    if all(one.all() for one in found):
        return (
            "another order of addition, which is benign: the gradients' kept elements, added in two orders, give both"
        )
    return None


def _from_others(name: str, run: Hashed, step: int, mine: np.ndarray) -> str | None:
    """Return which gradients an update is the mean of, if one is missing, counted twice or late."""
    g = run.elements(step)
    if g is None:
        return None
    n = np.array([float(worker["n"][step]) for worker in run.workers])

    def is_mean(weights: np.ndarray, of: np.ndarray) -> bool:
        total = np.tensordot(weights, of, 1)
        scale = _CLOSE * np.nanmax(np.abs(of))
        means = (total / by for by in (weights.sum(), n.sum()))
        return any(np.allclose(mean, mine, rtol=1e-3, atol=scale, equal_nan=True) for mean in means)

    if is_mean(n, g):
        return None
    for k in range(len(n)):
        for times, what in ((0, f"is missing in {name}"), (2, f"counts twice in {name}")):
            weights = n.copy()
            weights[k] *= times
            if weights.sum() and is_mean(weights, g):
                return f"a rank {'that is missing' if not times else 'too often'}: the gradient of worker {k} {what}"
    for back in range(1, min(step, _LATE) + 1):
        before = run.elements(step - back)
        if before is None:
            break
        late = f"of step {step + 1 - back} in step {step + 1}"
        if is_mean(n, before):
            return f"a stale version: {name} applies the gradients {late}"
        for k in range(len(n)):
            mixed = g.copy()
            mixed[k] = before[k]
            if is_mean(n, mixed):
                return f"a stale version: {name} applies the gradient of worker {k} {late}"
    return None


def _lost(a: Hashed, b: Hashed, at: Parting, ours: np.ndarray, theirs: np.ndarray) -> str | None:
    """Return in which run the gradient of a tensor is zero or not there, and in the other not."""
    for name, one, other in (("A", ours, theirs), ("B", theirs, ours)):
        if not np.nan_to_num(one[at.tensor]).any() and np.nan_to_num(other[at.tensor]).any():
            return f"a gradient that is missing: in {name} that of {a.names[at.tensor]} is zero"
    return None


def why(a: Hashed, b: Hashed) -> str:
    """Return as lines where two runs part, and why."""
    at = part(a, b)
    if at is None:
        steps = [min(len(one["x"]) for one in run.workers) for run in (a, b)]
        longer = f"; A has {steps[0]} steps, B {steps[1]}" if steps[0] != steps[1] else ""
        return f"the same bits in all {min(steps)} steps: x, batches, gradients and updates{longer}"
    what = {"x": "the parameters x of worker", "batch": "the batch of worker", "g": "the gradient of worker",
            "u": "the gradient that is applied, on updating rank"}[at.kind]  # fmt: skip
    where = "" if at.kind == "batch" else f", first in {a.names[at.tensor]}"
    step = 1 + int(a.workers[0]["step"][at.step])
    when = f"epoch {1 + int((a.run.table.groupby('epoch')['step'].max() < step).sum())}, step {step}"
    lines = [f"A  {a.run.path}", f"B  {b.run.path}", f"part at   {when}: {what} {at.who}{where}"]
    rows = [run.row(at.kind, at.step, at.who) for run in (a, b)] if at.kind != "batch" else []
    for name, row in zip("AB", rows, strict=False):
        if row:
            lines.append(f"   {name}     {', '.join(f'{value:.7g}' for value in row.elements[at.tensor][:4])}, ...")
    return "\n".join([*lines, f"cause     {cause(a, b, at)}"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print why two runs differ; return the exit status."""
    parser = Parser(prog="python -m records.why", description="Tell why two runs differ; both were made with --hashes.")
    parser.add_argument("runs", nargs=2, metavar="RUN", help="RESULTS_DIR/RUN_NAME, or its .json")
    return run_command(parser, lambda given: why(*(load(_found(path)) for path in given.runs)), arguments)


def _found(path: str) -> Run:
    (run,) = find_runs([path if path.endswith(".json") else f"{path}.json"])
    return run


if __name__ == "__main__":
    sys.exit(main())
