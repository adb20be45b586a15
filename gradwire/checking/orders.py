"""What does not hold in an order of a script's messages, as a finding."""

import re
from collections.abc import Sequence

from gradwire.checking.findings import Finding

WAITS, FITS, READ, SAME = (
    "no rank waits for ever", "calls of ranks fit together", "every message is received", "all orders have one result",
)  # fmt: skip
_CAUSES = {
    WAITS: ("ranks wait for ever", "give each call a partner in every order"),
    FITS: ("calls do not fit", "let all ranks make the same calls in one order"),
    READ: ("message is lost", "receive it, or do not send it"),
    SAME: ("result depends on the order", "name the rank to receive from, or wait() instead of looking"),
}


def finding_of(says: str, why: str, departures: Sequence[str]) -> Finding:
    """Return the finding for a property that an order breaks, at the first line that `why` names.

    `says`: the property. `departures`: the choices in which the order differs from the plain one.
    """
    kind, cure = _CAUSES[says]
    if says == SAME:
        why = f"it is another where {departures[0].partition('   ')[0]}"
    line = re.search(r" at (\S+:\d+)", why)
    return Finding(kind, why, cure, line[1] if line else "")
