"""Lab 9: parameters, gradients and state cut over the ranks, and memory that is held for as long as it is needed."""

import weakref
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from gradwire.core.records.recorder import Recorder
from gradwire.diagnosis.memory import Memory as Ledger
from gradwire.diagnosis.memory_use import GATHERED, GRADIENTS, OTHER
from lessons.lab import Case, Fault, Figure, Run, Vectors
from lessons.labs.param_server import LR, MOMENTUM, OfLosses, mean_gradient, one_process
from lessons.memory import Block
from lessons.sums import are_all, coefficients, describe
from lessons.values import Updater, check_like, is_close, kind_of

GATHER, FREE, REDUCE = "gather", "free", "reduce_scatter"
FIELDS = {GATHERED: "parameters", GRADIENTS: "gradients"}  # of a block, by the kind of their memory
BLOCKS, STEPS = 4, 2


class Memory(OfLosses):
    """The student writes `gather(transport, block)`, `free(block)` and `reduce_scatter(transport, block)`.

    Losses and optimizer are those of lab 8. The forward pass uses the four blocks of x from the first to the last, the
    backward pass from the last to the first.
    """

    name = "memory"
    functions = (GATHER, FREE, REDUCE)
    cases = (Case(3, 48), Case(2, 16), Case(4, 80), Case(4, 42), Case(5, 118, torch.float64), Case(1, 9), Case(4, 5),
             Case(3, 10_000))  # fmt: skip
    scored = Case(4, 40_000)
    real = Case(3, 1_000)
    formulas = ("P / 4", "P / 4 + P / N", "12 (N - 1)", "3 (N - 1) P / N", "12",
                "12 latency + 3 (N - 1) P / N / bandwidth")  # fmt: skip
    steps = STEPS
    parts: ClassVar = {GATHER: {GATHER: lambda run: _gathers(run)},
                       FREE: {FREE: lambda run: True},  # else a run ends in a Fault
                       REDUCE: {REDUCE: lambda run: _reduces(run)}}  # fmt: skip

    def run(self, yours: SimpleNamespace, transport: Any, case: Case, inputs: Vectors) -> Vectors:
        with Ledger(Recorder()) as ledger:
            return _Rank(yours, transport, case, inputs, ledger).train()

    def find_faults(self, run: Run) -> Iterator[str]:
        xs, parts = one_process(run.inputs, STEPS), cut(run.case)
        for s in range(1, STEPS + 1):
            mean = mean_gradient(run.inputs, xs[s - 1])
            begins = [(f"{run.case}, step {s}: rank {rank}:", rank) for rank in range(run.case.n)]
            for b, chunks in enumerate(parts):
                for begin, rank in begins:
                    for name in ("forward", "backward"):
                        gathered = run.results[rank][f"{name}{s}"]
                        yield from (f"{begin} {name} pass: gather(block {b}) {fault}"
                                    for fault in _wrong_chunks(gathered, xs[s - 1], chunks))  # fmt: skip
                for begin, rank in begins:
                    own, result = chunks[(rank + 1) % run.case.n], run.results[rank]
                    if not is_close(result[f"mean{s}"][own], mean[own]):
                        yield f"{begin} {_explain_mean(result[f'mean{s}'][own], run, xs[s - 1], b, rank)}"
                    if not is_close(result[f"x{s}"][own], xs[s][own]):
                        yield f"{begin} block.own of block {b} was changed; only the optimizer changes it"

    def costs(self, run: Run) -> dict[str, float]:
        most = torch.stack([result["most"] for result in run.results]).amax(0).tolist()
        return {f"bytes of {kind}": n for kind, n in zip(FIELDS, most, strict=True)} | super().costs(run)

    def hint(self, run: Run, missed: Sequence[Figure]) -> Iterator[str]:
        if missed[0].name == f"bytes of {GATHERED}":
            yield "gather holds more than one block for a while: copy each chunk to its place as it comes"
        if missed[0].name == f"bytes of {GRADIENTS}":
            yield "reduce_scatter holds copies for a while: add to the chunks of block.gradients, in place"


def cut(case: Case) -> list[Sequence[torch.Tensor]]:
    """Return which elements of x the chunks of each block are."""
    return [block.tensor_split(case.n) for block in torch.arange(case.length).tensor_split(BLOCKS)]


class _Rank:
    """The passes of one rank, and the memory counted after each call of a student's function."""

    def __init__(self, yours: SimpleNamespace, transport: Any, case: Case, inputs: Vectors, ledger: Ledger) -> None:
        self.yours, self.ledger, self.case, self.x, self.c = yours, ledger, case, inputs["x"], inputs["c"]
        self.begin = ""  # of the fault in a call
        self.right: tuple[str, ...] = (GATHER,)  # so far, in the first step
        uncounted = ledger.holding(OTHER)  # what messages need
        self.transport = SimpleNamespace(
            rank=transport.rank, world_size=case.n, peers=transport.peers, sleep=transport.sleep,
            allocate=transport.allocate, isend=uncounted(transport.isend), recv=uncounted(transport.recv),
        )  # fmt: skip
        self.parts = [(torch.cat([*chunks]), chunks[(transport.rank + 1) % case.n]) for chunks in cut(case)]
        self.blocks: list[Block] = []
        for b, (chunks, (_, own)) in enumerate(zip(cut(case), self.parts, strict=True)):
            vector = transport.allocate(len(own), case.dtype).copy_(inputs["x"][own])
            self.blocks.append(Block(f"block {b}", [*map(len, chunks)], vector))
        self.memory: dict[str, weakref.ref[Any]] = {}  # of what a block had last, by kind
        self.reduced = 0  # bytes of the gradients that this rank has to keep
        self.kept: dict[str, tuple[str, Any]] = {}  # by kind: the words for memory that was kept too long, and it

    def train(self) -> Vectors:
        """Take the steps; return what was gathered and, at this rank's chunks, mean gradients and x. Raises Fault."""
        result: Vectors = {}
        optimizers = [Updater(block.own, LR, MOMENTUM) for block in self.blocks]
        self.ledger.begin_training()
        for s in range(1, STEPS + 1):
            result |= {
                f"{name}{s}": torch.full_like(self.c, torch.nan) for name in ("forward", "backward", "mean", "x")
            }
            self.reduced = 0
            for name, order in (("forward", range(BLOCKS)), ("backward", reversed(range(BLOCKS)))):
                self.begin = f"{self.case}, step {s}, {name} pass: rank {self.transport.rank}: after"
                for b in order:
                    result[f"{name}{s}"][self.parts[b][0]] = self.use(b, is_last=name == "backward")
            for optimizer, block, (_, own) in zip(optimizers, self.blocks, self.parts, strict=True):
                optimizer.update(block.own_gradients)
                result[f"mean{s}"][own], result[f"x{s}"][own] = optimizer.used[-1], optimizer.x
                block.own_gradients = None
            for text, _ in self.kept.values():
                raise Fault("kept", f"{text}; it was never freed", self.right)
        most = self.ledger.use().most
        return result | {"most": torch.tensor([most.get(kind, 0) for kind in FIELDS])}

    def use(self, b: int, is_last: bool) -> torch.Tensor:
        """Compute one pass of a block; return a copy of the parameters."""
        block, c = self.blocks[b], self.c[self.parts[b][0]]
        self.call(GATHER, block, c.nbytes, self.reduced)
        check_like("wrong", f"{self.begin} gather({block.name}), block.parameters is", block.parameters, c)
        assert block.parameters is not None
        self.memory[GATHERED] = weakref.ref(block.parameters.untyped_storage())
        read = block.parameters.clone()
        if block.own.equal(self.x[self.parts[b][1]]) and not is_close(read, self.x[self.parts[b][0]]):
            self.right = ()  # x is still what it was at first
        if is_last:
            with self.ledger.holding(GRADIENTS):
                block.gradients = block.parameters - c
            self.memory[GRADIENTS] = weakref.ref(block.gradients.untyped_storage())
        self.call(FREE, block, 0, self.reduced + c.nbytes * is_last)
        if is_last:
            self.reduced += block.own.nbytes
            self.call(REDUCE, block, 0, self.reduced)
            begin = f"{self.begin} reduce_scatter({block.name}), block.own_gradients is"
            check_like("wrong", begin, block.own_gradients, block.own)
        return read

    def call(self, name: str, block: Block, *expected: int) -> None:
        """Call a function of the student's; then compare the memory of each kind with the `expected`. Raises Fault."""
        with self.ledger.holding(GRADIENTS if name == REDUCE else GATHERED):
            returned = getattr(self.yours, name)(*[self.transport] * (name != FREE), block)
        if returned is not None:
            cure = "it is to change its block, and to return nothing"
            raise Fault("returned", f"{self.begin} {name}({block.name}) returned {kind_of(returned)}; {cure}")
        for kind, nbytes in zip(FIELDS, expected, strict=True):
            text, memory = self.kept.get(kind, ("", None))
            there = self.ledger.live[kind]
            if text and (there <= nbytes or (memory and memory() is None)):
                raise Fault("kept", f"{text}; it was freed too late, in {name}({block.name})", self.right)
            if there > nbytes and not text:
                memory = self.memory.get(kind) if name != GATHER else None
                why = _explain_kept(block, FIELDS[kind], memory and memory())
                found = f"{there:,} bytes of {kind} are held; expected {nbytes:,}: {why}"
                self.kept[kind] = f"{self.begin} {name}({block.name}), {found}", memory


def _explain_kept(block: Block, field: str, memory: Any) -> str:
    """Return why there is more of a field of the block's than there should be. `memory`: what it had last, if it is."""
    if memory is None:
        return "a copy is kept"
    if getattr(block, field) is not None:
        return f"block.{field} still refers to them: set it to None"
    if block.own_gradients is not None and block.own_gradients.untyped_storage()._cdata == memory._cdata:
        return "block.own_gradients is a view, which keeps all of the gradients: copy the chunk"
    return f"something else refers to what block.{field} was: a list, a view, or transport.allocate, which keeps it"


# What is wrong


def _gathers(run: Run) -> bool:
    """Whether all ranks have gathered x in the first step."""
    return all(is_close(result["forward1"], run.inputs[0]["x"]) for result in run.results)


def _reduces(run: Run) -> bool:
    """Whether all ranks have kept the mean gradient of their chunks in the first step."""
    mean = mean_gradient(run.inputs, run.inputs[0]["x"])
    owned = [(result["mean1"], chunks[(rank + 1) % run.case.n])
             for rank, result in enumerate(run.results) for chunks in cut(run.case)]  # fmt: skip
    return all(is_close(g[own], mean[own]) for g, own in owned)


def _wrong_chunks(gathered: torch.Tensor, x: torch.Tensor, chunks: Sequence[torch.Tensor]) -> Iterator[str]:
    for c, part in enumerate(chunks):
        if not is_close(gathered[part], x[part]):
            others = (f"chunk {d}" for d, other in enumerate(chunks) if is_close(gathered[part], x[other]))
            what = next(others, "something else")
            yield f"has put {what} in the place of chunk {c}, which is block.own of rank {(c - 1) % len(chunks)}"


def _explain_mean(g: torch.Tensor, run: Run, x: torch.Tensor, b: int, rank: int) -> str:
    """Return what the gradient is that a rank has kept of a block."""
    n, chunks, what = run.case.n, cut(run.case)[b], "something else"
    for c, part in enumerate(chunks):
        if found := coefficients(g, [(x - inputs["c"])[part] for inputs in run.inputs]):
            what = "the mean" if are_all(found, 1 / n) else describe(found, "g of rank")
            what = f"{'the sum' if are_all(found, 1) else what} of chunk {c}"
    expected = f"the mean of chunk {(rank + 1) % n}: the sum, divided by {n}"
    return f"reduce_scatter(block {b}) has kept {what}; expected {expected}"
