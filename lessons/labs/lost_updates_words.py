"""The verdicts on the functions of lab 5: on what was pushed, on the server's x at the end, and on what was fetched.

Every increment is drawn, so the amounts of all of them in a vector can be found.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch

from lessons.lab import Run, first
from lessons.sums import coefficients, describe
from lessons.values import is_close

SERVER = 0
STEP, PUSH, FETCH = range(3)  # what a client does
# The order of the blocks is drawn. Each has what some mistake needs: pushes without a fetch between them, a fetch of a
# client that has not pushed its last step, several steps in one push.
BLOCKS = ((STEP, PUSH, STEP, PUSH, FETCH), (STEP, FETCH, STEP, PUSH), (STEP, STEP, PUSH, FETCH))
UPDATES = sum(block.count(STEP) for block in BLOCKS)  # of a client
_NOTHING = "nothing of"
_REBOUND = "`base = ...` does not change the caller's base"
_LOOK = 1e-2  # how exactly float32 tells what a vector is made of
Amounts: TypeAlias = tuple[float, torch.Tensor]  # of the first x, and of each update [clients, UPDATES]


def clients(run: Run) -> range:
    """Return the ranks of the clients."""
    return range(1, run.case.n)


def increments_of(run: Run, k: int) -> torch.Tensor:
    """Return the increments of a client [UPDATES, P]."""
    return run.inputs[k]["increments"].view(UPDATES, run.case.length)


def history(run: Run, k: int) -> tuple[list[tuple[range, int]], list[tuple[int, int]]]:
    """Return for each push of a client which of its updates it is to hold, and how many fetches came before.

    And for each fetch how many of its updates were pushed, and how many were made.
    """
    pushes: list[tuple[range, int]] = []
    fetches: list[tuple[int, int]] = []
    pushed = made = 0
    for action in run.inputs[k]["actions"].tolist():
        if action == STEP:
            made += 1
        elif action == PUSH:
            pushes.append((range(pushed, made), len(fetches)))
            pushed = made
        else:
            fetches.append((pushed, made))
    return pushes, fetches


def amounts(run: Run, vector: torch.Tensor) -> Amounts:
    """Return how often the first x, and each update, is in a vector [P]; NaN if that cannot be told."""
    parts = [run.inputs[SERVER]["x"], *(increment for k in clients(run) for increment in increments_of(run, k))]
    found = torch.tensor(coefficients(vector, parts) or [torch.nan] * len(parts))
    return float(found[0]), found[1:].view(-1, UPDATES)


def count_lost(run: Run) -> str:
    """Return how many updates are not in the server's x at the end, or more than once; "" if that cannot be told."""
    _, updates = amounts(run, run.results[SERVER]["x"])
    lost, more = int((updates.abs() < _LOOK).sum()), int((updates > 1 + _LOOK).sum())
    counted = [f"lost: {lost}"] * bool(lost) + [f"more than once: {more}"] * bool(more)
    return f". In the server's x, of {updates.numel()} updates, {', '.join(counted)}" if counted else ""


def explain(run: Run) -> Iterator[str]:
    """Yield the faults in the pushes, in the server's x at the end, and in the fetched vectors."""
    total = run.inputs[SERVER]["x"] + sum(increments_of(run, k).sum(0) for k in clients(run))
    fetched = [text for k in clients(run) for text in _explain_fetches(run, k)]
    if fetched or not is_close(run.results[SERVER]["x"], total):
        for look in (_explain_minus, _explain_pushes):
            yield from (text for k in clients(run) for text in look(run, k))
        yield from _explain_server(run)
        yield from fetched
        yield "the server has lost updates"


def _pushed(run: Run, k: int) -> list[torch.Tensor]:
    return [message.vector for message in run.of_rank(k) if message.tag == "push" and message.vector is not None]


def apply_is_right(run: Run) -> bool:
    """Whether the server's x has had what was pushed added to it."""
    pushed = [vector for k in clients(run) for vector in _pushed(run, k)]
    x = run.inputs[SERVER]["x"]
    return bool(pushed) and is_close(run.results[SERVER]["x"], x + torch.stack(pushed).sum(0))


def push_is_right(run: Run) -> bool:
    """Whether clients push each of their updates once, and nothing else."""
    are_whole = all(vector.numel() == run.case.length for k in clients(run) for vector in _pushed(run, k))
    return are_whole and _is_right(run, _explain_minus) and _is_right(run, _explain_pushes)


def fetch_is_right(run: Run) -> bool:
    """Whether the x of each client is right after each fetch."""
    return _is_right(run, _explain_fetches)


def _is_right(run: Run, explain: Callable[[Run, int], Iterator[str]]) -> bool:
    is_used = {"push", "fetch"} <= {message.tag for message in run.sent}
    return is_used and not any(first(explain(run, k)) for k in clients(run))


def _explain_minus(run: Run, k: int) -> Iterator[str]:
    """Yield the pushes that subtract updates of other clients."""
    for i, vector in enumerate(_pushed(run, k)):
        _, updates = amounts(run, vector)
        for j in clients(run):
            if j != k and bool((updates[j - 1] < -_LOOK).any()):
                yield (f"push {i + 1} of rank {k} holds updates of rank {j} with a minus: a fetch has put them into "
                       "base, and not into x (`x = ...` names a new tensor)")  # fmt: skip


def _explain_pushes(run: Run, k: int) -> Iterator[str]:
    """Yield the faults in a client's pushes, the one that causes others first."""
    (expected, _), sent = history(run, k), _pushed(run, k)
    if len(sent) != len(expected):
        yield f"rank {k} pushed {len(sent)} times; expected {len(expected)}: one vector in each call of push"
        return
    held = [amounts(run, vector) for vector in sent]
    texts = [first(_explain_push(*pushed, wanted, k)) for pushed, (wanted, _) in zip(held, expected, strict=True)]
    wrong = [(text.startswith(_NOTHING), i, text) for i, text in enumerate(texts) if text]
    for is_missing, i, text in sorted(wrong):  # a missing push may have been replaced by a repeated one
        text += _explain_again(held, expected, k) if text.endswith("; ") else ""
        text += _explain_missing(run, k, i, held[i][1][k - 1]) if is_missing else ""
        yield f"push {i + 1} of rank {k} holds {text}"


def _explain_push(of_x: float, updates: torch.Tensor, wanted: range, k: int) -> Iterator[str]:
    mine, share = updates[k - 1], 1 / len(updates)
    if abs(of_x) > _LOOK:
        yield f"x itself, a value, and not what rank {k} has added to it"
    if again := [j for j in range(wanted.start) if mine[j] > _LOOK]:
        yield f"{_named(again)} again, already pushed; "
    others = [j + 1 for j in range(len(updates)) if j != k - 1 and bool((updates[j].abs() > _LOOK).any())]
    if others:
        yield f"updates of rank {others[0]} as well, which came with a fetch: base is to take them in ({_REBOUND})"
    if missing := [j for j in wanted if mine[j] < _LOOK]:
        yield f"{_NOTHING} {_named(missing)}, "
    if wanted and share < 1 and all(abs(mine[j] - share) < _LOOK for j in wanted):
        yield (f"{_named(list(wanted))} divided by the {len(updates)} clients: gradients of one step have a mean, "
               "steps that were taken add up")  # fmt: skip
    if any(abs(mine[j] - 1) > _LOOK for j in wanted):
        yield f"{describe(mine.tolist(), 'update', range(1, UPDATES + 1))}; expected each once"


def _explain_again(held: Sequence[Amounts], expected: Sequence[tuple[range, int]], k: int) -> str:
    """Return why pushes hold what was pushed before."""
    fetches = {j: fetched for wanted, fetched in expected for j in wanted}  # how many came before an update's push
    across = {fetches[j] < fetched  # whether updates are there again although a fetch was between
              for (_, updates), (wanted, fetched) in zip(held, expected, strict=True)
              for j in range(wanted.start) if updates[k - 1][j] > _LOOK}  # fmt: skip
    if len(across) == 2:
        return f"base never moves, neither by a push nor a fetch ({_REBOUND})"
    if True in across:
        return "they came back with a fetch: the server has them already; base is to take in what was fetched, too"
    return f"what is pushed is to be taken off: a push is to move base, and not only a fetch ({_REBOUND})"


def _explain_missing(run: Run, k: int, i: int, mine: torch.Tensor) -> str:
    """Return what became of updates that push i lacks: a fetch has thrown them away, or base has them too early."""
    all_pushes, all_fetches = history(run, k)
    wanted, fetches = all_pushes[i]
    last = max(j for j in wanted if mine[j] < _LOOK)
    made = all_fetches[fetches - 1][1] if fetches else 0  # before the last fetch that came before the push
    if last >= made:
        return "though no fetch has come since: where base is moved first, x - base is 0"
    _, updates = amounts(run, run.results[k]["fetched"].view(-1, run.case.length)[fetches - 1])
    if updates[k - 1][last] > 1 - _LOOK:
        return "made before a fetch: x still has it after that fetch, but base has it too, as if the server did"
    return "made before a fetch: that fetch has thrown away what was not pushed yet"


def _explain_server(run: Run) -> Iterator[str]:
    """Yield the faults in the server's x at the end if all pushes are right."""
    of_x, updates = amounts(run, run.results[SERVER]["x"])
    if abs(of_x) < _LOOK and bool((updates.abs() < 1 + _LOOK).all()):
        yield "the x that the server began with is gone: apply writes what was pushed over it"
    if abs(of_x - 1) > _LOOK:
        yield f"the server's first x counts {of_x:.2g} in the end: apply takes a mean of x and what was pushed"
    if bool((updates - 1).abs().max() >= _LOOK):
        yield "apply has not added each push once: an increment is a step that was taken, and steps add up"


def _explain_fetches(run: Run, k: int) -> Iterator[str]:
    """Yield the faults in a client's x after a fetch, which must be the server's x plus its own unpushed updates."""
    replies = [message.vector for message in run.of_rank(SERVER) if message.dst == k]
    xs = run.results[k]["fetched"].view(-1, run.case.length)
    before, done = run.inputs[k]["x"], 0  # x as the client has made it by itself since the last fetch
    for i, (x, (pushed, made)) in enumerate(zip(xs, history(run, k)[1], strict=True)):
        before = before + increments_of(run, k)[done:made].sum(0)
        begin = f"after fetch {i + 1} of rank {k} its x"
        mine = amounts(run, x)[1][k - 1]
        if twice := [j for j in range(made) if mine[j] > 1 + _LOOK]:
            yield (f"{begin} holds {_named(twice)} of its own twice: the server's x has what was pushed; only what was "
                   "not pushed yet is to be added to it")  # fmt: skip
        if missing := [j for j in range(made) if mine[j] < 1 - _LOOK]:
            lack = "of its own, not pushed yet: the client goes on without its own work"
            yield f"{begin} lacks {_named(missing)} {lack}"
        unpushed = increments_of(run, k)[pushed:made].sum(0)
        if len(replies) == len(xs) and (reply := replies[i]) is not None and not is_close(x, reply + unpushed):
            if is_close(x, before):
                yield f"{begin} is as before: `x = ...` names a new tensor; write into x (copy_, add_)"
            yield f"{begin} is not the sum of the x that the server sent and its own updates that are not pushed yet"
        before, done = x, made


def _named(numbers: list[int]) -> str:
    """Return updates by their numbers, from 1."""
    return f"update{'s' * (len(numbers) > 1)} {', '.join(str(j + 1) for j in numbers)}"
