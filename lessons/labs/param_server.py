"""Lab 1: a synchronous parameter server. After each step all ranks hold the x of one process."""

import random
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from lessons.lab import Case, Fault, Lab, Run, Sent, Vectors
from lessons.sums import are_all, coefficients, describe
from lessons.values import Updater, check_in_place, is_close, normal

LR, MOMENTUM = 0.1, 0.9
STEPS = 3
CURE = "write the new parameters into x, in place: x.copy_(...)"


class OfLosses(Lab):
    """A lab whose rank k has a loss of its own, |x - c_k|^2 / 2. All ranks begin with the same x."""

    def draw(self, case: Case, chance: random.Random) -> list[Vectors]:
        x = normal(case.length, case.dtype, chance)
        return [{"x": x, "c": normal(case.length, case.dtype, chance)} for _ in range(case.n)]


class Server(OfLosses):
    """The student writes `serve(transport, x, update)` and `work(transport, x, g)`, each for one step.

    Worker k has a loss of its own, |x - c_k|^2 / 2, whose gradient is x - c_k: so the mean gradient leads all to the
    mean of the c_k. The optimizer is SGD with momentum, so one step with the mean is not N - 1 steps with each.
    """

    name = "param_server"
    changed = ("x",)
    functions = ("serve", "work")
    cases = (Case(3, 8), Case(4, 16), Case(2, 6), Case(7, 20, torch.float64), Case(4, 1), Case(3, 10_000))
    scored = Case(4, 40_000)
    real = Case(3, 1_000)
    formulas = ("N - 1", "(N - 1) P", "2", "2 latency + 2 (N - 1) P / bandwidth")
    steps = STEPS
    looks_at_messages = True
    parts: ClassVar = {
        "serve": {"one update a step": lambda run: _has(run, lambda used, _: len(used) == 1),
                  "the mean": lambda run: _has(run, lambda used, x: len(used) > 0 and is_close(
                      used[0], mean_gradient(run.inputs[1:], x)))},
        "work": {"its gradient": lambda run: all(_sends_gradient(run, k) for k in range(1, run.case.n)),
                 "the server's x": lambda run: _has(run, lambda used, x: not is_close(run.results[0]["x1"], x)) and all(
                     is_close(result["x1"], run.results[0]["x1"]) for result in run.results)},
    }  # fmt: skip
    carries_objects = False

    def run(self, yours: SimpleNamespace, transport: Any, case: Case, inputs: Vectors) -> Vectors:
        x = transport.allocate(case.length, case.dtype).copy_(inputs["x"])
        g = transport.allocate(case.length, case.dtype)
        updater = Updater(x, LR, MOMENTUM)
        result = {}
        for s in range(1, STEPS + 1):
            if transport.rank == 0:
                updater.used.clear()
                yours.serve(transport, x, updater.update)
                result[f"used{s}"] = torch.cat([x[:0], *updater.used]).view(-1, case.length)
            else:
                torch.sub(x, inputs["c"], out=g)
                before = g.clone()
                returned = yours.work(transport, x, g)
                check_in_place(f"rank {transport.rank}: work", CURE, returned, x, inputs["x"])
                if not torch.equal(before, g):
                    raise Fault("damage", f"rank {transport.rank}, step {s}: work changed g, which it is only to send")
            result[f"x{s}"] = x.clone()
        return result

    def find_faults(self, run: Run) -> Iterator[str]:
        xs = one_process(run.inputs[1:], STEPS)
        for s in range(1, STEPS + 1):  # in each the server's updates first, then what each rank holds
            yield from _explain_updates(run, s)
            for rank, result in enumerate(run.results):
                if not is_close(result[f"x{s}"], xs[s]):
                    why = _explain_worker(run, xs, s, rank) if rank else _explain_server(run, xs, s)
                    yield f"N = {run.case.n}, step {s}: {why}"

    def comment(self, kind: str, run: Run) -> Iterator[str]:
        if kind == "deadlock":
            workers = range(1, run.case.n)
            answers = {k: sum(message.rank == 0 and message.dst == k for message in run.sent) for k in workers}
            if waiting := [str(k) for k in workers if answers[k] < max(answers.values())]:
                yield f"; the server has not sent x to rank {', '.join(waiting)}, but to others"
            if not any(run.of_rank(k) for k in workers):
                yield "; no worker has sent a gradient"

    def explain_unread(self, run: Run, message: Sent) -> Iterator[str]:
        if run.results:
            yield from _explain_updates(run, 1)
        rank, dst, what = message.rank, message.dst, self.label(message, run.case)
        alike = [sent for sent in run.of_rank(rank) if (sent.dst, sent.tag) == (dst, message.tag)]
        begin = f"N = {run.case.n}, step {1 + alike.index(message)}:"
        if rank and dst:
            yield f"{begin} rank {rank} sent {what} to rank {dst}, which never receives it: send it to rank 0 only"
        received = sum(sent.arrived is not None for sent in alike)
        if not received and rank:
            yield f"{begin} rank 0 never received {what} of rank {rank}: receive from every rank of transport.peers"
        if not received:
            yield (f"{begin} rank {dst} ended its step without receiving the {what} that rank 0 sent it: work must "
                   "receive it")  # fmt: skip
        receiver = f"rank {dst}" if dst else "the server"
        yield (f"N = {run.case.n}, step 1: rank {rank} sent rank {dst} {len(alike) // STEPS} messages "
               f"{message.tag!r}; {receiver} received {received // STEPS}")  # fmt: skip

    def place(self, message: Sent, case: Case) -> str:
        # The server sends N - 1 messages in a step, a worker one, if they send what they should.
        return f"step {message.step if message.rank else 1 + (message.step - 1) // (case.n - 1)}"

    def costs(self, run: Run) -> dict[str, float]:
        answers = [message.sent for message in run.of_rank(0)]
        seconds = (answers[-len(answers) // STEPS] - answers[0]) / (STEPS - 1)  # between the first of each step
        return super().costs(run) | {"virtual seconds": seconds}

    def label_vector(self, message: Sent, vector: torch.Tensor, case: Case) -> str:
        if vector.numel() != case.length:
            return f"{vector.numel()} elements"
        if message.rank == 0:
            return "x"
        return "a copy of g" if message.span is None else "g" if message.span[0] else "x"


def _has(run: Run, holds: Callable[[torch.Tensor, torch.Tensor], bool]) -> bool:
    """Whether something holds of the gradients that the server used in the first step, and of the x before it."""
    return bool(run.results) and holds(run.results[0]["used1"], run.inputs[0]["x"])


def _sends_gradient(run: Run, k: int) -> bool:
    """Whether the first message of a worker is its gradient, to the server."""
    sent = run.of_rank(k)[:1]
    return any(
        message.dst == 0 and is_close(message.vector, run.inputs[k]["x"] - run.inputs[k]["c"]) for message in sent
    )


def _explain_updates(run: Run, s: int) -> Iterator[str]:
    made = len(run.results[0][f"used{s}"])
    if made != 1:
        yield (f"N = {run.case.n}, step {s}: the server made {made} updates; expected 1, with the mean of the "
               f"{run.case.n - 1} gradients")  # fmt: skip


def _explain_server(run: Run, xs: list[torch.Tensor], s: int) -> str:
    """Return what gradient the server's update was made with, or that x was changed besides."""
    if any(message.became is not None and is_close(message.vector, xs[s]) for message in run.of_rank(0)):
        return "rank 0 sent the new x, and then changed it: only update changes x"
    n, (used,) = run.case.n, run.results[0][f"used{s}"]
    found = coefficients(used, [xs[s - 1] - inputs["c"] for inputs in run.inputs[1:]])
    if found is None or is_close(used, mean_gradient(run.inputs[1:], xs[s - 1])):
        return "the server's x is another than that of one process"
    if are_all(found, 1):
        return "the server took the sum of the gradients; expected their mean"
    if are_all(found, 1 / n):
        return f"the server divided by {n}; there are {n - 1} gradients, since rank 0 has none"
    text = describe(found, "g of rank", range(1, n))
    return f"the server's gradient was {text}; expected the mean of all {n - 1}"


def _explain_worker(run: Run, xs: list[torch.Tensor], s: int, rank: int) -> str:
    x, c = run.results[rank][f"x{s}"], run.inputs[rank]["c"]
    if is_close(x, xs[s - 1]):
        if any(is_close(message.became, xs[s]) for message in run.of_rank(0)):
            return "rank 0 sent x and then updated it: send x after the update"
        return f"rank {rank} holds the x from before the step; expected the server's new x: copy it into x"
    if coefficients(x - xs[s], [xs[s - 1] - c, xs[s] - c]):
        return f"rank {rank} has made a step with its own gradient besides; only the server updates"
    return f"rank {rank} holds another x than the server"


def one_process(workers: Sequence[Vectors], steps: int) -> list[torch.Tensor]:
    """Return x before the first step and after each, as one process computes it from the workers' gradients x - c."""
    updater = Updater(workers[0]["x"].clone(), LR, MOMENTUM)
    for _ in range(steps):
        updater.update(mean_gradient(workers, updater.x))
    return [*updater.before, updater.x]


def mean_gradient(workers: Sequence[Vectors], x: torch.Tensor) -> torch.Tensor:
    """Return the mean of the workers' gradients at x."""
    return torch.stack([x - inputs["c"] for inputs in workers]).mean(0)
