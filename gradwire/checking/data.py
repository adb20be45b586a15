"""Which samples the ranks take: the indices that loaders hand out, and checksums of rows.

Only where ranks share their gradients. Silent: with sampling with replacement, where the samples of one index differ
between ranks (own files), and about what a script takes by hand, and random numbers (notes).
"""

from collections.abc import Sequence
from itertools import pairwise

from gradwire.checking.findings import Finding
from gradwire.checking.replicas import shared
from gradwire.checking.seen import Epoch, Run, common, ranks

KIND, MISSING = "samples overlap", "samples are missing"


def judge(run: Run) -> list[Finding]:
    """Return what is wrong with the samples that ranks train on, and notes."""
    if run.parallel or run.in_teams or not _is_data_parallel(run):
        return []
    loaders: dict[int, list[list[Epoch]]] = {}
    for epoch in run.epochs:
        if not epoch.indices:
            continue
        loaders.setdefault(epoch.loader, [[] for _ in range(run.n)])[epoch.rank].append(epoch)
    found: list[Finding] = []
    for of_all in loaders.values():
        of_ranks = [of_all[rank] for rank in run.members]
        if not all(of_ranks):
            continue
        if any(epoch.trains for epochs in of_ranks for epoch in epochs):
            training = next(
                filter(None, (_judge_training(n, epochs) for n, epochs in enumerate(zip(*of_ranks, strict=False), 1))),
                [],
            )
            found += training or _judge_order(of_ranks[0]) or _judge_cut(run, [epochs[0] for epochs in of_ranks])
        else:
            found += _judge_validation(run, [epochs[0] for epochs in of_ranks])
    return found or ([] if loaders else _judge_rows(run)) or _judge_draws(run)


def _is_data_parallel(run: Run) -> bool:
    """Return whether ranks share their gradients in most steps."""
    groups = list(run.groups())
    sharing = 0
    for group in groups:
        sharing += all(step.shares for step in group) or any(shared(each) for _, each in common(group))
    return 2 * sharing > len(groups) > 0


def _judge_training(number: int, epochs: Sequence[Epoch]) -> list[Finding]:
    first, n = epochs[0], len(epochs)
    samplers = [epoch.sampler for epoch in epochs]
    if len({epoch.size for epoch in epochs}) > 1 or any(getattr(sampler, "replacement", False) for sampler in samplers):
        return []
    if any(len(set(epoch.indices)) < len(epoch.indices) for epoch in epochs):
        return []  # with replacement
    is_own = len({epoch.content for epoch in epochs}) > 1
    is_cut = all(getattr(sampler, "num_replicas", 1) == n for sampler in samplers)
    counts: dict[int, set[int]] = {}
    for epoch in epochs:
        for index in epoch.indices:
            counts.setdefault(index, set()).add(epoch.rank)
    common_ones = [index for index, by in counts.items() if len(by) > 1]
    if is_own or not _are_same(epochs, common_ones):
        if is_own and is_cut:
            what = f"each rank has samples of its own, and a sampler that takes 1/{n} of these"
            return [Finding(MISSING, what, "cut the data once: by the sampler or by hand", first.at)]
        return []
    if len(common_ones) > n:
        a, b = sorted(counts[common_ones[0]])[:2]
        of_a, of_b = (epoch.indices for epoch in epochs if epoch.rank in (a, b))
        both = len(set(of_a) & set(of_b))
        what = f"ranks {a} and {b} both took {both} of the {len(of_a)} samples of rank {a} in epoch {number}"
        return [Finding(KIND, what, _cure(epochs, n), first.at, rank=b)]
    may = set().union(*(epoch.of for epoch in epochs))
    left = len(may) - len(counts)
    most = n * max(getattr(epoch.sampler, "num_replicas", 1) for epoch in epochs)
    if all(epoch.has_ended for epoch in epochs) and left > max(most, len(may) // 4):
        what = f"no rank took {left} of {len(may)} samples in epoch {number}"
        cure = "cut the data once: by the sampler or by hand" if is_cut else "let the ranks' parts cover the data"
        return [Finding(MISSING, what, cure, first.at)]
    return []


def _judge_cut(run: Run, epochs: list[Epoch]) -> list[Finding]:
    """Note samples that no loader takes, of data that is cut by hand."""
    left = epochs[0].size - len({index for epoch in run.epochs for index in epoch.of})
    if len({frozenset(epoch.of) for epoch in epochs}) < len(epochs) or left <= run.n:
        return []
    what = f"no rank takes {left} of {epochs[0].size} samples"
    return [Finding(MISSING, what, "let the ranks' parts cover the data", epochs[0].at, True)]


def _are_same(epochs: Sequence[Epoch], indices: list[int]) -> bool:
    """Return whether an index means one sample on all ranks, as far as it was seen: one part of each is equal."""
    compared = equal = 0
    for index in indices:
        rows = [epoch.rows[index] for epoch in epochs if index in epoch.rows]
        if len(rows) > 1:
            compared += 1
            equal += any(len(set(part)) == 1 for part in zip(*rows, strict=False))
    return 10 * equal >= 9 * compared


def _cure(epochs: Sequence[Epoch], n: int) -> str:
    found = [epoch.sampler for epoch in epochs]
    if not all(hasattr(sampler, "num_replicas") for sampler in found):
        return "give the loader a DistributedSampler"
    if len({sampler.rank for sampler in found}) < n:
        return "give each DistributedSampler the rank of its process"
    if any(sampler.num_replicas != n for sampler in found):
        return f"give DistributedSampler num_replicas={n}"
    if len({getattr(sampler, "seed", 0) for sampler in found}) > 1:
        return "give DistributedSampler the same seed on all ranks"
    return "let all DistributedSamplers have the same epoch and data"


def _judge_order(epochs: list[Epoch]) -> list[Finding]:
    """Find a shuffled order that is the same in each epoch."""
    sampler, whole = epochs[0].sampler, [epoch for epoch in epochs if epoch.has_ended]
    if not (hasattr(sampler, "set_epoch") and getattr(sampler, "shuffle", False)) or len(whole) < 2:
        return []
    if whole[0].indices != whole[1].indices or len(whole[0].indices) < 3:
        return []
    what = f"epochs 1 and 2 have the same order of their {len(whole[0].indices)} samples"
    return [Finding("order repeats", what, "call sampler.set_epoch(epoch) in each epoch", epochs[0].at)]


def _judge_validation(run: Run, epochs: list[Epoch]) -> list[Finding]:
    taken = [index for epoch in epochs for index in epoch.indices]
    twice = len(taken) - len(set(taken))
    if not 0 < twice < len(epochs) or not all(epoch.has_ended for epoch in epochs):
        return []
    what = f"the sampler repeats {twice} of {len(set(taken))} samples, which a sum over ranks counts twice"
    return [Finding("samples counted twice", what, "leave the repeated ones out, or cut the data without padding",
                    epochs[0].at, True)]  # fmt: skip


def _judge_rows(run: Run) -> list[Finding]:
    """Note batches that are the same on all ranks."""
    alike, groups = [], list(run.groups())
    for group in groups:
        rows = [step.rows for step in group]
        if len(rows[0]) > 2 and all(each == rows[0] for each in rows):
            alike.append(group)
    if not alike or 2 * len(alike) < len(groups):
        return []
    what = f"{ranks(run.members)} took the same {len(alike[0][0].rows)} samples in step {alike[0][0].number}"
    cure = "seed each rank by its number: torch begins with the same numbers on all ranks"
    cure = "let each rank take its own part of the IterableDataset" if run.streams else cure
    return [Finding(KIND, what, cure, alike[0][0].at, True, alike[0][0].number)]


def _judge_draws(run: Run) -> list[Finding]:
    """Note ranks that draw the same random numbers in most steps, as dropout and noise do; a loader draws its own."""
    steps = list(zip(*(run.draws[rank] for rank in run.members), strict=False))
    pairs = [
        (before, after)
        for before, after in pairwise(steps)
        if all(a[0] == b[0] for a, b in zip(before, after, strict=True))
    ]
    alike = sum(before[0] != after[0] and len({state for _, state in after}) == 1 for before, after in pairs)
    if not pairs or 2 * alike < len(pairs):
        return []
    what = "dropout or noise draws the same random numbers on all ranks"
    return [Finding("random numbers", what, "seed each rank by its number once the models agree", is_note=True)]
