"""Network namespaces of Linux, one a rank, joined by a bridge; the kernel shapes each link in both directions.

A rank sends through the `tbf` of its own device and receives through the `htb` of its port of the bridge. There each
sender has a queue, and the queues take turns, as in `fq_codel`, which most Linux distributions set: in a single queue
of all, connections that start while others fill it lose most of their frames, and shares differ from run to run. Both
count whole Ethernet frames: TCP carries 1448 of 1514 bytes. A bucket (`burst`) holds what the rate fills in a
millisecond, at least two frames. So many bytes of a message pass for free (125 kB at 1 Gbit/s, 12.5 kB at 100 Mbit/s);
with fewer, the kernel's timer is often too late, and a link of 1 Gbit/s carries a tenth less. The kernel hands over at
once what passes in half a millisecond, at least 4 frames (`gso_max_segs`): with fewer, frames are what the cores are
busy with. A connection has at most two milliseconds of its bytes in the queue of its own machine
(`tcp_limit_output_bytes`), as cards with byte queue limits do: else short messages, such as those by which a receiver
allows a long one, wait behind megabytes. A queue (`limit`) holds 50 milliseconds. TCP's congestion control is cubic.

What a killed run has left is removed by the next one.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gradwire.core.records.atomic import locked
from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.core.transports.timing import sleep

_PREFIX, _SWITCH = "gradwire-", "gradwire-switch"
_LOCK = Path("/run/gradwire-namespaces")
_FRAME = 1514
_BURST_S, _QUEUE_S = 1e-3, 50e-3
_AT_ONCE_S, _OWN_QUEUE_S = 0.5e-3, 2e-3
_FEWEST = 4  # frames
_TURN = 2 * _FRAME
_OTHERS = "9"  # the queue of frames that are not IP
DEVICE = "eth0"


@dataclass(frozen=True)
class Namespaces:
    """The namespaces of `N` ranks."""

    N: int

    def address(self, rank: int) -> str:
        """Return the IPv4 address of a rank."""
        return f"10.77.0.{rank + 1}"

    def shape(self, bandwidth: float) -> None:
        """Let each rank send, and receive, `bandwidth` bytes a second at most."""
        burst = max(2 * _FRAME, round(bandwidth * _BURST_S))
        frames = max(_FEWEST, round(bandwidth * _AT_ONCE_S / _FRAME))
        own = max(_FEWEST * _FRAME, round(bandwidth * _OWN_QUEUE_S))
        limit = burst + round(bandwidth * _QUEUE_S)
        rate, part = f"{bandwidth * 8:.0f}bit", f"{bandwidth * 8 / self.N:.0f}bit"
        filled = f"ceil {rate} burst {burst} cburst {burst} quantum {_TURN}"
        for rank in range(self.N):
            own_device = f"{DEVICE} root tbf rate {rate} burst {burst} limit {limit}"
            _call(f"ip netns exec {_PREFIX}{rank} sysctl -q -w net.ipv4.tcp_limit_output_bytes={own}")
            _call(f"ip -n {_PREFIX}{rank} link set {DEVICE} gso_max_segs {frames}")
            _call(f"tc -n {_PREFIX}{rank} qdisc replace dev {own_device}")
            port = f"dev port{rank}"
            _call(f"ip -n {_SWITCH} link set {port} gso_max_segs {frames}")
            _call(f"tc -n {_SWITCH} qdisc replace {port} root handle 1: htb default {_OTHERS}")
            _call(f"tc -n {_SWITCH} class replace {port} parent 1: classid 1:1 htb rate {rate} {filled}")
            for queue in (_OTHERS, *(_queue(sender) for sender in range(self.N))):
                _call(f"tc -n {_SWITCH} class replace {port} parent 1:1 classid 1:{queue} htb rate {part} {filled}")
                _call(f"tc -n {_SWITCH} qdisc replace {port} parent 1:{queue} bfifo limit {limit}")

    def run(self, commands: Sequence[Sequence[str]], timeout: float) -> list[str]:
        """Run the command of each rank in its namespace; return what each has written to its standard output.

        Raises RunFailed if one fails, or does not end in `timeout` seconds.
        """
        pipe, started = subprocess.PIPE, list[subprocess.Popen[str]]()
        with ThreadPoolExecutor(self.N) as readers:
            try:
                for rank, command in enumerate(commands):
                    whole = ["ip", "netns", "exec", f"{_PREFIX}{rank}", *command]
                    started.append(subprocess.Popen(whole, stdout=pipe, stderr=pipe, text=True, start_new_session=True))
                said = {
                    readers.submit(process.communicate, timeout=timeout): rank for rank, process in enumerate(started)
                }
                for done in as_completed(said):
                    (_, errors), code = done.result(), started[said[done]].returncode
                    if code:
                        raise RunFailed(f"rank {said[done]} ended with exit code {code}:\n{errors}")
                return [done.result()[0] for done in said]
            except subprocess.TimeoutExpired as error:
                raise RunFailed(f"the ranks in namespaces did not end in {timeout:g} s") from error
            finally:
                for rank, process in enumerate(started):
                    process.kill()  # it may not have reached its namespace yet
                    _kill(f"{_PREFIX}{rank}")


@contextmanager
def namespaces(N: int) -> Iterator[Namespaces]:
    """In the block, there are namespaces for `N` ranks, without a limit until they are shaped; then all is removed.

    Raises UsageError if this process may not make them, or another run has them.
    """
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "nft"))):
        raise UsageError(
            "network namespaces need root, and the commands ip, tc and nft: run as root, install iproute2 and nftables"
        )
    with locked(_LOCK, "another run has the network namespaces: wait until it has ended"):
        _remove()
        try:
            _make(N)
            yield Namespaces(N)
        finally:
            _remove()


def _queue(sender: int) -> str:
    """Return the number of a sender's queue at each port, as tc and nft write it."""
    return f"{16 + sender:x}"


def _make(N: int) -> None:
    _call(f"ip netns add {_SWITCH}")
    _call(f"ip -n {_SWITCH} link add bridge type bridge")
    _call(f"ip -n {_SWITCH} link set bridge up")
    nft = f"ip netns exec {_SWITCH} nft add"
    _call(f"{nft} table bridge gradwire")
    _call(f"{nft} chain bridge gradwire ports {{ type filter hook forward priority 0 ; }}")
    for rank in range(N):
        name = f"{_PREFIX}{rank}"
        queue = f'"1:{_queue(rank)}"'
        _call(f"{nft} rule bridge gradwire ports ip saddr {Namespaces(N).address(rank)} meta priority set {queue}")
        _call(f"ip netns add {name}")
        _call(f"ip -n {_SWITCH} link add port{rank} type veth peer name {DEVICE} netns {name}")
        _call(f"ip -n {_SWITCH} link set port{rank} master bridge up")
        _call(f"ip -n {name} address add {Namespaces(N).address(rank)}/24 dev {DEVICE}")
        _call(f"ip -n {name} link set {DEVICE} up")
        _call(f"ip -n {name} link set lo up")
        _call(f"ip -n {name} route replace 10.77.0.0/24 dev {DEVICE} congctl cubic")


def _remove() -> None:
    for line in _call("ip netns list").splitlines():
        if (name := line.split()[0]).startswith(_PREFIX):
            _kill(name)
            _call(f"ip netns delete {name}")


def _kill(name: str) -> None:
    while pids := _call(f"ip netns pids {name}").split():
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        sleep(0.01)


def _call(command: str) -> str:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False, start_new_session=True)
    if done.returncode:
        raise RunFailed(f"{command}: {done.stderr.strip()}")
    return done.stdout
