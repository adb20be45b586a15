"""The machine and the sources of a run, and whether these are still the same.

Records name a source file of this project by its path in it, any other by its whole path.
"""

import hashlib
import linecache
import os
import platform
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from gradwire.core.records.atomic import AnyPath

_PROJECT = Path(__file__).resolve().parents[3]


def machine() -> dict[str, Any]:
    """Return the machine of a run: python, torch, platform, cpu, cores (usable ones), memory_gib, gpus (names).

    On a machine with GPUs this starts CUDA in the calling process, so a process that forks must not call it before.
    """
    import torch  # here, because reading results must not wait for it

    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "platform": platform.platform(),
        "cpu": _of_proc("cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": len(usable_cores()),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def usable_cores() -> set[int]:
    """Return the cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def free_memory() -> int:
    """Return how many bytes of this machine's memory are free, caches included."""
    kib = _of_proc("meminfo", "MemAvailable").removesuffix("kB")
    return int(kib) * 1024 if kib else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _of_proc(file: str, field: str) -> str:
    """Return the first value of a field in /proc/FILE; "" if there is none, as on other systems than Linux."""
    path = Path("/proc", file)
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")


def git_commit(directory: AnyPath = _PROJECT) -> str | None:
    """Return the commit checked out in `directory` (by default this project), with "-dirty" if files were changed.

    None without git, or where `directory` is not the root of a repository: a package in a virtual environment does not
    belong to the repository that contains the environment.
    """
    if not (Path(directory) / ".git").exists():
        return None
    command = ["git", "--no-optional-locks", "-C", os.fspath(directory)]
    command += ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


@cache
def name_of(file: str) -> str:
    """Return how records name a source file."""
    path = Path(file).resolve()
    return path.relative_to(_PROJECT).as_posix() if path.is_relative_to(_PROJECT) else str(path)


def text_of(name: str) -> str:
    """Return the text of a source, which may be a cell of this notebook; "" if it is gone."""
    path = str(_PROJECT / name)
    linecache.checkcache(path)
    return "".join(linecache.getlines(path))


def digests(files: Iterable[str]) -> dict[str, str]:
    """Return by the name of each source the digest of its text, by which `unchanged` knows it again."""
    return {name: _digest(text_of(name)) for name in sorted(map(name_of, files))}


def unchanged(name: str, digest: str | None) -> str:
    """Return the text of a source; "" if it is gone, or is not the one with this digest."""
    text = text_of(name)
    return text if _digest(text) == digest else ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
