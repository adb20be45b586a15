"""Tell why two runs differ: `python -m gradwire why RESULTS_DIR/A RESULTS_DIR/B`, both of them with --hashes.

Names the first step, and in it the first thing in the order x, batch, gradient g of each worker, update u, that has not
the same bits, with its first tensor; and the cause, as far as 32 elements of each tensor, and its norm, show it.
That two sums differ only in the order of addition is shown by adding what all workers gave in every order: one has the
bits of A, and one those of B.
"""

from collections.abc import Iterator, Sequence
from itertools import islice, permutations
from typing import Any

import numpy as np

from gradwire.diagnosis.divergence import CLOSE, Divergence, Hashed, differing, first_divergence, load
from gradwire.pictures.finished import Settings, command, differing_options

_OF_UPDATES = ("lr", "optimizer", "momentum", "weight_decay", "clip_norm", "lr_schedule", "warmup", "decay",
               "optimizer_options", "arguments")  # fmt: skip
_MOST_ORDERS = 5040  # of addition: 7 ranks
_LATE = 8  # steps


def _of_x(at: Divergence) -> Iterator[str]:
    a, b = at.a, at.b
    if at.step == 0:
        yield _options(at, ("seed", "model", "model_options", "dtype", "arguments"), "another start")
        yield "another start, with the same options: the model is not made from --seed alone"
        return
    if a.run.metadata.get("arrivals") != b.run.metadata.get("arrivals"):
        yield "another order of messages: a server took them as they came"
    ours, theirs = (run.workers[at.who]["x"] for run in (a, b))
    for back in range(1, min(at.step, _LATE) + 1):
        for run, late, now in (("A", ours, theirs), ("B", theirs, ours)):
            if (late[at.step] == now[at.step - back]).all():
                yield f"a stale version: {run} computes step {at.step + 1} on the x of step {at.step + 1 - back}"
    yield _options(at, _OF_UPDATES, "another update of x")
    rows = ((a.row("x", at.step, k), b.row("x", at.step, k)) for k in range(len(a.workers)))
    if any(not (of_a and of_b and len(differing(of_a, of_b))) for of_a, of_b in rows):
        yield f"x of worker {at.who} was changed by something else than the update; other workers have the same x"


def _of_batch(at: Divergence) -> Iterator[str]:
    ours, theirs = ([worker["batch"][at.step] for worker in run.workers] for run in (at.a, at.b))
    if sorted(ours) == sorted(theirs):
        yield "another batch: workers have exchanged theirs"
    yield _options(at, ("seed", "batch_size", "global_batch_size", "n_gpus", "dataset", "arguments"), "another batch")
    yield "another batch, with the same options: the data set, or how it is shuffled or augmented, is another"


def _of_gradient(at: Divergence) -> Iterator[str]:
    if at.factor:
        yield f"a factor: the gradient of B is {at.factor:.4g} times that of A, from the same x and batch"
    yield _options(at, ("dtype", "amp", "device", "task", "accumulate", "arguments"), "another arithmetic")
    yield _unseen(at)
    if at.are_close:
        names = ("machine torch", "machine threads", "machine cpu", "machine python")
        yield _options(at, names, "rounding of another version or number of threads")
    yield _lost(at)
    yield "not known: the same x and batch gave another gradient (dropout, or an operation that is not deterministic)"


def _of_update(at: Divergence) -> Iterator[str]:
    n = len(at.a.workers)
    if n != len(at.b.workers):
        yield f"another number of workers: {n} and {len(at.b.workers)}"
    yield _options(at, ("codec",), "a lossy codec")
    yield _unseen(at)
    if at.are_close:
        yield _order(at)
    if factor := at.factor:
        by_n = any(abs(factor * by - 1) < CLOSE for by in (n, 1 / n))
        yield f"{'a missing mean' if by_n else 'a factor'}: the update of B is {factor:.4g} times that of A"
    yield _from_others("B", at.b, at.step, at.theirs.elements)
    yield _from_others("A", at.a, at.step, at.ours.elements)
    yield _lost(at)
    if at.are_close:
        yield "rounding: both are about the same mean, which no order of addition gives to the bit"


_KINDS = {
    "x": ("the parameters x of worker", _of_x),
    "batch": ("the batch of worker", _of_batch),
    "g": ("the gradient of worker", _of_gradient),
    "u": ("the gradient that is applied, on updating rank", _of_update),
}
"""By kind: its name in reports, and the function that yields possible causes, the likeliest first; "" is none."""


def _options(at: Divergence, names: Sequence[str], what: str) -> str:
    """Return `what` with the options that differ, if some of `names` do."""
    found = [(name, at.a.option(name), at.b.option(name)) for name in names]
    texts = [f"{name.removeprefix('machine ')} {ours} and {theirs}" for name, ours, theirs in found if ours != theirs]
    return f"{what}: {', '.join(texts)}" if texts else ""


def _unseen(at: Divergence) -> str:
    """Return which tensor differs in none of the kept elements, so that its cause is unknown."""
    same = (at.ours.elements == at.theirs.elements).all(1)
    hidden = [i for i in differing(at.ours, at.theirs) if same[i]]
    return f"not known: {at.names[hidden[0]]} differs only in elements that were not kept" if hidden else ""


def _means(g: Any, n: list[int]) -> list[Any]:
    """Return the mean of gradients [workers, ...] that are added in this order, in the ways in which strategies do."""
    import torch  # which adds as they did; here, because reading results must not wait for it

    total, shares, mean = g[0] * n[0], g[0] / len(n), g[0]
    for k in range(1, len(n)):
        total, shares = total + g[k] * n[k], shares + g[k] / len(n)
        mean = torch.lerp(mean, g[k], n[k] / sum(n[: k + 1]))
    return [total / sum(n), shares, mean]


def _order(at: Divergence) -> str:
    """Return that both are sums of the same gradients, if every kept element of each is one in some order."""
    g, workers = at.a.elements(at.step), at.a.workers
    g = at.b.elements(at.step) if g is None else g  # a built-in's are not known: from the same x and batches, the same
    if g is None:
        return ""
    import torch

    dtype = getattr(torch, str(at.a.option("dtype") or "float32"))
    gradients = torch.from_numpy(g).to(dtype)
    aims = [torch.from_numpy(row.elements).to(dtype) for row in (at.ours, at.theirs)]
    found = [aim.isnan() for aim in aims]
    for order in islice(permutations(range(len(workers))), _MOST_ORDERS):
        for mean in _means(gradients[list(order)], [int(workers[k]["n"][at.step]) for k in order]):
            for reached, aim in zip(found, aims, strict=True):
                reached |= mean == aim
    both = "another order of addition, which is benign: the gradients' kept elements, added in two orders, give both"
    return both if all(reached.all() for reached in found) else ""


def _from_others(name: str, run: Hashed, step: int, mine: np.ndarray) -> str:
    """Return which gradients an update is the mean of, if one is missing, counted twice or late."""
    g = run.elements(step)
    if g is None:
        return ""
    n = np.array([float(worker["n"][step]) for worker in run.workers])

    def ways() -> Iterator[tuple[np.ndarray, np.ndarray, str]]:
        """Yield weights, gradients, and the cause if the update is their mean."""
        yield n, g, ""
        for k, unit in enumerate(np.eye(len(n))):
            yield n - unit * n, g, f"a rank that is missing: the gradient of worker {k} is missing in {name}"
            yield n + unit * n, g, f"a rank too often: the gradient of worker {k} counts twice in {name}"
        for back in range(1, min(step, _LATE) + 1):
            before = run.elements(step - back)
            if before is None:
                return
            says, late = f"a stale version: {name} applies the", f"of step {step + 1 - back} in step {step + 1}"
            yield n, before, f"{says} gradients {late}"
            for k, is_late in enumerate(np.eye(len(n), dtype=bool)):
                yield n, np.where(is_late[:, None, None], before, g), f"{says} gradient of worker {k} {late}"

    def is_mean(weights: np.ndarray, of: np.ndarray) -> bool:
        total = np.tensordot(weights, of, 1)
        scale = CLOSE * np.nanmax(np.abs(of))
        means = (total / by for by in (weights.sum(), n.sum()))
        return any(np.allclose(mean, mine, rtol=1e-3, atol=scale, equal_nan=True) for mean in means)

    return next((text for weights, of, text in ways() if weights.sum() and is_mean(weights, of)), "")


def _lost(at: Divergence) -> str:
    """Return in which run the gradient of a tensor is zero or not there, and in the other not."""
    given = [bool(np.nan_to_num(row.elements[at.tensor]).any()) for row in (at.ours, at.theirs)]
    name = "AB"[given.index(False)] if given[0] != given[1] else ""
    return f"a gradient that is missing: in {name} that of {at.name} is zero" if name else ""


def why(a: Hashed, b: Hashed) -> str:
    """Return as lines where two runs part, and why."""
    at = first_divergence(a, b)
    if at is None:
        steps = [min(len(worker["g"]) for worker in run.workers) for run in (a, b)]
        longer = f"; A has {steps[0]} steps, B {steps[1]}" if steps[0] != steps[1] else ""
        return f"the same bits in all {min(steps)} steps: x, batches, gradients and updates{longer}"
    what, causes = _KINDS[at.kind]
    taken = a.workers[0]["step"]
    step = 1 + int(taken[min(at.step, len(taken) - 1)])
    after = "after " if at.step == len(taken) else ""
    when = f"epoch {1 + int((a.run.table.groupby('epoch')['step'].max() < step).sum())}, {after}step {step}"
    lines = [f"A  {a.run.path}", f"B  {b.run.path}", f"part at   {when}: {what} {at.who}"]
    if at.kind != "batch":
        lines[-1] += f", first in {at.name}"
        for name, row in (("A", at.ours), ("B", at.theirs)):
            lines.append(f"   {name}     {', '.join(f'{value:.7g}' for value in row.elements[at.tensor][:4])}, ...")
    options = ", ".join(f"{name} {' and '.join(values)}" for name, values in differing_options([a.run, b.run]).items())
    unknown = f"not known: nothing that was recorded explains it{'; options that differ: ' if options else ''}{options}"
    lines.append(f"cause     {next(filter(None, causes(at)), unknown)}")
    ours, theirs = (run.run.metadata.get("sources") or {} for run in (a, b))
    if changed := sorted(name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name]):
        lines.append(f"sources   {', '.join(changed)}: another text in B")
    return "\n".join(lines)


_RUNS: Settings = {"runs": {"nargs": 2, "metavar": "RUN", "help": "RESULTS_DIR/RUN_NAME, or its .json"}}
_ABOUT = "Tell why two runs differ; both were made with --hashes."
main = command("why", _ABOUT, _RUNS, lambda given: why(*map(load, given.runs)))
