"""What is wrong with the codes of lab 7, and with their means: the first fault of a run, in the lab's words."""

import torch

from lessons.lab import Run, is_close
from lessons.sums import coefficients, describe

STEPS = 3
COMPRESS, DECOMPRESS, EXCHANGE = "compress", "decompress", "exchange"


def first_fault(run: Run) -> str:
    """Return what is wrong first, in one line; "" if nothing is."""
    case, k = run.case, int(run.inputs[0]["k"])
    begin = f"{case}, k = {k}"
    for s in range(1, STEPS + 1):
        for rank in range(case.n):
            if fault := _wrong_code(run, rank, s, min(k, case.length)):
                return f"{begin}, step {s}: rank {rank}: {fault}"
    for s in range(1, 1 if case.until else STEPS + 1):
        for rank in range(case.n):
            if fault := _wrong_mean(run, rank, s):
                return f"{begin}, step {s}: rank {rank}: {fault}"
        first = run.results[0][f"mean{s}"]
        for rank in range(1, case.n):
            if len(different := (run.results[rank][f"mean{s}"] != first).nonzero()):
                return (f"{begin}, step {s}: ranks 0 and {rank} hold different bits in element {int(different[0])}, "
                        "for they added the codes in different orders: add in the order of ranks, so that replicas "
                        "stay alike")  # fmt: skip
    return ""


def _wrong_code(run: Run, rank: int, s: int, k: int) -> str:
    """Return what is wrong with the code of a step, and with what was kept."""
    result, g = run.results[rank], run.inputs[rank][f"g{s}"]
    before = result[f"kept{s - 1}"] if s > 1 else run.inputs[rank]["kept0"]
    after, indices, values = result[f"kept{s}"], result[f"indices{s}"], result[f"values{s}"]
    came = before + g
    if len(indices) != k:
        return f"compress chose {len(indices)} elements; expected {k}"
    if len(indices.unique()) < k:
        return "compress chose an element twice"
    return (
        _wrong_values(values, indices, came, g)
        or _wrong_choice(indices, came, g)
        or _wrong_rest(before, g, after, indices, values)
        or (run.case.until != COMPRESS and _wrong_decoded(result[f"decoded{s}"], indices, values))
        or ""
    )


def _wrong_values(values: torch.Tensor, indices: torch.Tensor, came: torch.Tensor, g: torch.Tensor) -> str:
    """Return what was sent in place of the elements of residual + g."""
    if is_close(values, came[indices]):
        return ""
    if is_close(values, came[indices].abs()):
        return "compress sends magnitudes, without their signs"
    i = int((values - came[indices]).abs().argmax())
    element = int(indices[i])
    of_g = ", which is g alone" if is_close(values, g[indices]) else ""
    return (f"compress sends {float(values[i]):.4g} for element {element}{of_g}; residual + g is "
            f"{float(came[element]):.4g} there: choose and send from the sum")  # fmt: skip


def _wrong_choice(indices: torch.Tensor, came: torch.Tensor, g: torch.Tensor) -> str:
    """Return by what else than by the magnitude of residual + g the elements were chosen."""
    if _are_largest(indices, came.abs()):
        return ""
    chosen = torch.zeros(len(came), dtype=torch.bool).index_fill_(0, indices, True)
    least = int(came.abs().masked_fill(~chosen, torch.inf).argmin())
    most = int(came.abs().masked_fill(chosen, -torch.inf).argmax())
    seen = (f"of residual + g compress chose element {least} ({float(came[least]):.4g}) and left out element {most} "
            f"({float(came[most]):.4g})")  # fmt: skip
    if _are_largest(indices, came):
        return f"{seen}: it chooses the largest values; expected the largest magnitudes, of either sign"
    if _are_largest(indices, g.abs()):
        return f"{seen}: it chooses by g alone, without what was kept; add the residual first"
    return f"{seen}; expected the largest magnitudes"


def _are_largest(indices: torch.Tensor, keys: torch.Tensor) -> bool:
    """Whether no element that is left out has a larger key than one of these."""
    left_out = torch.ones(len(keys), dtype=torch.bool).index_fill_(0, indices, False)
    return not bool(left_out.any()) or not len(indices) or bool(keys[indices].min() >= keys[left_out].max())


def _wrong_rest(
    before: torch.Tensor, g: torch.Tensor, after: torch.Tensor, indices: torch.Tensor, values: torch.Tensor
) -> str:
    """Return where what is sent and what is kept are not what came in."""
    came = before + g
    rest = came.index_fill(0, indices, 0)
    if is_close(after, rest):
        return ""
    if torch.equal(after, before):
        return "the residual is as it was before, so what is not sent is lost: change it in place (add_, copy_)"
    if is_close(after, came):
        i = int(indices[values.abs().argmax()])
        return f"the residual keeps element {i}, though it was sent: it would be sent again; clear it where you send"
    if not after.any():
        i = int(rest.abs().argmax())
        return f"the residual is zero everywhere, so element {i} is lost: clear the residual only where you send"
    if is_close(after, g.index_fill(0, indices, 0)):
        return "the residual has forgotten what it held before the step: add g to it, do not replace it"
    i = int((after - rest).abs().argmax())
    sent = float(came[i] - rest[i])
    return (f"element {i}: {sent:.4g} was sent and {float(after[i]):.4g} is kept, but {float(came[i]):.4g} came in "
            f"({float(before[i]):.4g} kept before, {float(g[i]):.4g} of g): nothing may be lost or added")  # fmt: skip


def _wrong_decoded(decoded: torch.Tensor, indices: torch.Tensor, values: torch.Tensor) -> str:
    """Return where the decoded vector is not that of the code."""
    expected = torch.zeros_like(decoded).index_copy_(0, indices, values)
    if torch.equal(decoded, expected):
        return ""
    i = int((decoded - expected).abs().argmax())
    return f"decompress gives {float(decoded[i]):.4g} for element {i}; the code says {float(expected[i]):.4g}"


def _wrong_mean(run: Run, rank: int, s: int) -> str:
    """Return what the result of an exchange is made of, where it is not the mean of all codes."""
    N, result = run.case.n, run.results[rank]
    codes, senders = _codes(run, s)
    mean, total = result[f"mean{s}"], codes.sum(0)
    if not is_close(result[f"left{s}"], result[f"kept{s}"]):
        return "exchange leaves another residual than compress does: call compress once in a step, with the one given"
    if is_close(mean, total / N):
        return ""
    if is_close(mean, total) and not _divides_by_senders(run, rank):
        return "exchange returns the sum of the codes; expected their mean: divide by N"
    if is_close(mean, total / senders.clamp(min=1)):
        i = int(((senders > 0) & (senders < N)).long().argmax())
        return (f"element {i} was sent by {int(senders[i])} of {N} ranks, and is divided by {int(senders[i])}; "
                f"expected a division by N = {N}: a rank that does not send an element sends 0 for it")  # fmt: skip
    if overwritten := _overwritten(mean * N, codes, senders):
        return overwritten
    found = coefficients(mean, list(codes)) if run.case.length >= N else None
    if found is not None:
        text = describe(found, [f"the code of rank {one}" for one in range(N)])
        return f"exchange returns {text}; expected the mean of all {N}, each rank's own being one of them"
    i = int((mean - total / N).abs().argmax())
    return f"exchange returns {float(mean[i]):.4g} for element {i}; the mean of the codes is {float(total[i] / N):.4g}"


def _codes(run: Run, s: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes of a step as vectors [N, P], and by how many ranks each element was sent [P]."""
    codes = torch.stack([one[f"decoded{s}"] for one in run.results])
    senders = torch.zeros(run.case.length, dtype=codes.dtype)
    for one in run.results:
        senders[one[f"indices{s}"]] += 1
    return codes, senders


def _divides_by_senders(run: Run, rank: int) -> bool:
    """Whether each element is divided by the number of its senders, in a run where that is not 1 for all."""
    several = False
    for s in range(1, STEPS + 1):
        codes, senders = _codes(run, s)
        if not is_close(run.results[rank][f"mean{s}"], codes.sum(0) / senders.clamp(min=1)):
            return False
        several = several or bool((senders > 1).any())
    return several


def _overwritten(total: torch.Tensor, codes: torch.Tensor, senders: torch.Tensor) -> str:
    """Return which element holds the part of one rank only, if that is all that is wrong with a sum of codes."""
    wrong = (total - codes.sum(0)).abs() > 1e-3
    of_one = ((total - codes).abs() < 1e-3) & (codes != 0)
    if not wrong.any() or not (senders > 1)[wrong].all() or not of_one.any(0)[wrong].all():
        return ""
    i = int(wrong.long().argmax())
    return (f"element {i} was sent by {int(senders[i])} ranks, and the result holds the part of one of them: where "
            "codes have an element in common, add")  # fmt: skip
