"""Limits for code that is not trusted: the kernel of Linux enforces them on this process and all that it starts.

It forbids root, too. `forbid_processes` is by seccomp, `forbid_files` by Landlock. Neither can be taken back.
"""

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_SET_NO_NEW_PRIVS = 38  # <linux/prctl.h>: else the kernel forbids only what root forbids


def _call(number: int, *arguments: object) -> int:
    """Call the kernel. Raises OSError."""
    if (result := _LIBC.syscall(number, *arguments)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


# Processes

# By machine: what <linux/audit.h> calls it; the numbers of seccomp, of clone, of what else makes a process, and of what
# sends a signal and has the receiver first.
_MACHINES = {
    "x86_64": (0xC000003E, 317, 56, (57, 58), (62, 129, 200, 234, 297)),
    "aarch64": (0xC00000B7, 277, 220, (), (129, 130, 131, 138, 240)),
}
_CLONE3, _PIDFD_SEND_SIGNAL = 435, 424  # on every machine
_CLONE_THREAD = 0x10000
_SET_FILTER, _ALL_THREADS = 1, 1
_LOAD, _EQUAL, _AT_LEAST, _HAS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # <linux/bpf_common.h>
_NUMBER, _MACHINE, _ARGUMENT = 0, 4, 16  # where a filter finds them
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def forbid_processes() -> bool:
    """Forbid this process to start another one, and to signal any but itself: PermissionError.

    Threads stay allowed. Returns False where that is not possible: not Linux, or no machine that is known here.
    """
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return False
    machine, seccomp, clone, fork, kill = _MACHINES[platform.machine()]
    refuse, absent, allow = ((_RETURN, 0, 0, value) for value in (_ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS, _ALLOW))
    program = [(_LOAD, 0, 0, _MACHINE), (_EQUAL, 1, 0, machine), refuse, (_LOAD, 0, 0, _NUMBER)]
    program += [(_AT_LEAST, 0, 1, 1 << 30), refuse]  # those of 32 bits on x86_64
    program += [(_EQUAL, 0, 1, _CLONE3), absent]  # whose flags no filter sees: the C library takes clone then
    for number in (*fork, _PIDFD_SEND_SIGNAL):
        program += [(_EQUAL, 0, 1, number), refuse]
    program += [(_EQUAL, 0, 4, clone), (_LOAD, 0, 0, _ARGUMENT), (_HAS, 1, 0, _CLONE_THREAD), refuse, allow]
    for number in kill:
        program += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, _ARGUMENT), (_EQUAL, 1, 0, os.getpid()), refuse, allow]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in [*program, allow]))
    _LIBC.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    filter_ = struct.pack("HxxxxxxQ", len(program) + 1, ctypes.addressof(code))
    try:
        _call(seccomp, _SET_FILTER, _ALL_THREADS, filter_)
    except OSError:
        return False
    return True


# Files

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on every machine
_VERSION = 1  # asked for in place of a ruleset
_BELOW = 1  # a rule for a file, or for all below a folder
_READ_FILE, _WRITE_FILE, _TRUNCATE = 1 << 2, 1 << 1, 1 << 14  # <linux/landlock.h>
_MAKE_AND_REMOVE = 0b1_1111_1111_0000  # all kinds of files and folders
_SCOPE_SIGNAL = 2


def landlock_version() -> int:
    """Return the version of the kernel's Landlock; 0 if it has none."""
    try:
        return _call(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION) if sys.platform == "linux" else 0
    except OSError:
        return 0


def forbid_files(hidden: Collection[Path], shown: Collection[Path], writable: Collection[Path] | None = None) -> None:
    """Forbid this thread, and what it starts from here on, to read files below `hidden` but not below `shown`.

    Also to write, make and remove files, but for those below `writable`, unless it is None; and to reach into processes
    outside, and from version 6 of Landlock to signal them. Raises OSError.
    """
    version = landlock_version()
    write = 0 if writable is None else _WRITE_FILE | _MAKE_AND_REMOVE | (_TRUNCATE if version > 2 else 0)
    scope = struct.pack("QQ", 0, _SCOPE_SIGNAL) if version > 5 else b""
    attributes = struct.pack("Q", _READ_FILE | write) + scope
    rules = _call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    try:
        for path in (*_beside({path.resolve() for path in hidden}), *shown):
            _allow(rules, path, _READ_FILE)
        for path in writable or ():
            _allow(rules, path, _READ_FILE | write)
        _LIBC.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _call(_RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _beside(hidden: Collection[Path]) -> Iterator[Path]:
    """Yield what together holds all files of the machine but those below `hidden`: rules can only allow."""
    above = {parent for path in hidden for parent in path.parents}
    for folder in above:
        with suppress(OSError):  # it may not be listed: nothing below it can be read
            yield from (path for path in folder.iterdir() if path not in above and path not in hidden)


def _allow(rules: int, path: Path, access: int) -> None:
    with suppress(FileNotFoundError):  # it may go at this moment
        file = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)  # what a link names is elsewhere
        try:
            if not path.is_dir():
                access &= _READ_FILE | _WRITE_FILE | _TRUNCATE
            _call(_ADD_RULE, rules, _BELOW, struct.pack("=Qi", access, file), 0)
        finally:
            os.close(file)
