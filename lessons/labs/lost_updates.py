"""Lab 5: lost updates. Clients change copies of x at their own pace, and nothing of it is lost or counts twice."""

import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from gradwire.core.transports.base import ANY
from gradwire.every_order.explore import explore
from gradwire.every_order.report import Report
from lessons.lab import Case, Fault, Lab, Run, Sent, Vectors
from lessons.labs import lost_updates_words as words
from lessons.labs.lost_updates_words import BLOCKS, FETCH, PUSH, SERVER, STEP, UPDATES
from lessons.values import normal

LONGEST_S = 300e-6  # before a client does the next thing; a message takes 50 us and more


def serve(transport: Any, x: torch.Tensor, apply: Callable[[torch.Tensor, torch.Tensor], object]) -> int:
    """Be the server: receive from any client, until all have said goodbye. Returns the sum of their `n`.

    `apply(x, pushed)` adds the push of a client to x [P]. A fetch is answered with a copy, since x may change while the
    answer is on its way.
    """
    n, present = 0, set(transport.peers)
    while present:
        with transport.recv(ANY, ("push", "fetch", "goodbye")) as message:
            match message.tag:
                case "push":
                    apply(x, message.vector)
                case "fetch":
                    transport.isend(x.clone(), message.src, "parameters")
                case "goodbye":
                    present.remove(message.src)
                    n += message.n
    return n


class LostUpdates(Lab):
    """The student writes `push(transport, x, base)`, `fetch(transport, x, base)` and `apply(x, pushed)`."""

    name = "lost_updates"
    parts: ClassVar = {"push": {"push": words.push_is_right}, "fetch": {"fetch": words.fetch_is_right},
                       "apply": {"apply": words.apply_is_right}}  # fmt: skip
    changed = ("x", "base")
    functions = ("push", "fetch", "apply")
    cases = (Case(2, 20), Case(3, 40), Case(4, 60), Case(6, 80, torch.float64), Case(3, 1), Case(5, 10_000))
    scored = Case(4, 40_000)
    real = Case(4, 1_000)
    formulas = ("pushes + fetches + a goodbye", "pushes P; only sent bytes count", "fetches of all clients",
                "fetches of all clients x P")  # fmt: skip

    def draw(self, case: Case, chance: random.Random) -> list[Vectors]:
        x = normal(case.length, case.dtype, chance)
        inputs = [{"x": x}]
        for _ in range(1, case.n):
            blocks = [*chance.sample(BLOCKS, len(BLOCKS)), (PUSH, FETCH)]
            actions = torch.tensor([action for block in blocks for action in block])
            delays = torch.tensor([chance.uniform(0, LONGEST_S) for _ in actions], dtype=torch.float64)
            steps = normal(UPDATES * case.length, case.dtype, chance)
            inputs.append({"x": x, "increments": steps, "actions": actions, "delays": delays})
        return inputs

    def run(self, yours: SimpleNamespace, transport: Any, case: Case, inputs: Vectors) -> Vectors:
        x = inputs["x"].clone()
        if transport.rank == SERVER:

            def apply(of_server: torch.Tensor, pushed: torch.Tensor) -> None:
                if isinstance(yours.apply(of_server, pushed), torch.Tensor):
                    raise Fault("returned", "apply returned a tensor; change x in place: x.add_(...), x.copy_(...)")

            serve(transport, x, apply)
            return {"x": x}
        steps = inputs["increments"].view(UPDATES, case.length)
        base, fetched, made = x.clone(), [], 0
        for action, delay in zip(inputs["actions"].tolist(), inputs["delays"].tolist(), strict=True):
            transport.sleep(delay)
            if action == STEP:
                x.add_(steps[made])
                made += 1
            elif action == PUSH:
                before = x.clone()
                yours.push(transport, x, base)
                if not torch.equal(before, x):
                    raise Fault("damage", f"rank {transport.rank}: push changed x, which only fetch is to change")
            elif action == FETCH:
                yours.fetch(transport, x, base)
                fetched.append(x.clone())
        transport.isend(None, SERVER, "goodbye")
        return {"fetched": torch.stack(fetched)}

    def in_all_orders(self, load: Callable[[], SimpleNamespace]) -> Report:
        from lessons import lost_updates  # which imports `serve` from here

        class Mine(lost_updates.Mine):
            def setup(self) -> None:
                super().setup()
                vars(self).update(vars(load()))

        return explore(Mine(n_fetch=2), n_gpus=3, steps=3, own_steps=True, until_broken=True)

    def find_faults(self, run: Run) -> Iterator[str]:
        yield from (f"{run.case}: {text}{words.count_lost(run)}" for text in words.explain(run))

    def comment(self, kind: str, run: Run) -> Iterator[str]:
        if kind in ("deadlock", "unread"):
            tags = {message.tag for message in run.sent if message.dst == SERVER}
            for other in sorted(tags - {"push", "fetch", "goodbye"}):
                yield f"; the server takes the tags 'push', 'fetch' and 'goodbye', and not {other!r}"
            if "fetch" not in tags:
                yield "; no client has sent 'fetch', which the server answers with 'parameters'"

    def label(self, message: Sent, case: Case) -> str:
        return "x" if message.rank == SERVER else message.tag

    def costs(self, run: Run) -> dict[str, float]:
        return {"messages of a client": max(run.messages[1:]), "bytes of a client": max(run.nbytes[1:]),
                "messages of the server": run.messages[SERVER], "bytes of the server": run.nbytes[SERVER]}  # fmt: skip
