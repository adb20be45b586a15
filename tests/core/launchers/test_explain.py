"""Which rank is named as the cause, of several that failed."""

import pytest

from gradwire.core.launchers.explanation import explain
from gradwire.core.launchers.failures import Failure

BUSY, KILLED = Failure("busy"), Failure("died", "was killed by SIGKILL")
KEPT = "kept others waiting"
CHAIN = "meanwhile rank 0 (server) waited for 'x' from rank 1, rank 1 (worker) waited for 'x' from rank 2"


def waited(kind: str, *peers: int) -> Failure:
    return Failure(kind, f"waited for {peers[0]}", f"'x' from rank {peers[0]}", peers)


@pytest.mark.parametrize(
    ("failures", "death", "begin", "end"),
    [
        ({0: waited("timeout", 1), 1: waited("lost_peer", 2), 2: BUSY}, None, f"rank 2 (worker) {KEPT}", CHAIN),
        ({0: waited("timeout", 1), 1: BUSY, 2: BUSY}, None, f"rank 1 (worker) {KEPT}", ""),
        ({0: waited("timeout", 1, 2), 1: waited("lost_peer", 0), 2: BUSY}, None, f"rank 2 (worker) {KEPT}", ""),
        ({0: waited("timeout", 1), 1: waited("timeout", 0)}, None, "rank 0 (server) waited 5 s for 'x'", ""),
        ({0: waited("lost_peer", 1), 1: BUSY}, KILLED, "rank 1 (worker) was killed by SIGKILL; meanwhile rank 0", ""),
        ({0: waited("timeout", 1), 1: BUSY}, KILLED, f"rank 1 (worker) {KEPT}", ""),
        ({0: waited("timeout", 2), 2: BUSY}, KILLED, f"rank 2 (worker) {KEPT}", ""),
    ],
    ids=["waits for nobody", "is waited for", "a wait for any", "a circle", "a death", "started again", "not missed"],
)
def test_the_cause_is_named(failures: dict[int, Failure], death: Failure | None, begin: str, end: str) -> None:
    said = str(explain(failures, ["server", "worker", "worker"], 5.0, {1: death} if death else None))
    assert said.startswith(begin)
    assert said.endswith(end)
