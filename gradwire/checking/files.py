"""Files that several ranks open.

Silent: where a chain of messages, or a look whether the file exists, orders the two; about files that are appended to.
"""

from gradwire.checking.findings import Finding
from gradwire.checking.seen import FileUse, Run, ranks

KIND = "file"


def judge(run: Run) -> list[Finding]:
    """Return what several ranks write, and what may be read before it is there."""
    findings: list[Finding] = []
    paths: dict[str, list[FileUse]] = {}
    for use in run.files:
        paths.setdefault(use.path, []).append(use)
    for uses in paths.values():
        name = uses[0].path.rpartition("/")[2]
        writes = [use for use in uses if "w" in use.mode or "+" in use.mode]
        clash = next((pair for pair in _pairs(writes, writes) if not _ordered(*pair)), None)
        if clash:
            what = f"{ranks(use.rank for use in writes)} write {name}, and nothing orders them"
            findings.append(Finding(KIND, what, "let one rank write it, or give each a name of its own", clash[0].at,
                                    rank=clash[1].rank))  # fmt: skip
            continue
        reads = [use for use in uses if use not in writes and "a" not in use.mode]
        early = next((pair for pair in _pairs(writes, reads) if not _ordered(*pair)), None)
        if early:
            write, read = early
            what = (
                f"{ranks([read.rank])} reads {name}, which rank {write.rank} writes at {write.at}: nothing orders them"
            )
            findings.append(Finding(KIND, what, "let all ranks meet in a barrier() between", read.at, rank=read.rank))
    return findings


def _pairs(first: list[FileUse], second: list[FileUse]) -> list[tuple[FileUse, FileUse]]:
    return [(a, b) for a in first for b in second if a.rank < b.rank or (a.rank > b.rank and first is not second)]


def _ordered(a: FileUse, b: FileUse) -> bool:
    return a.is_before(b) or b.is_before(a)
