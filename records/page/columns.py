"""The events of a run as columns of numbers, which a page holds compressed and reads without parsing them."""

import base64
import gzip
from typing import Any

import pandas as pd

from records.events import CODE, OP

TYPES = {
    "t0": "<f8", "t1": "<f8", "bytes": "<f8",
    "message": "<i4", "version": "<i4", "version_read": "<i4", "version_applied": "<i4", "step": "<i4", "peer": "<i4",
    "epoch": "<i4", "chunk": "<i4", "line": "<u2", "tag": "<u2", "rank": "<u2", "phase": "<u1", "op": "<u1",
}  # fmt: skip
"""The columns of a page, the widest first, so that each begins where its type may lie."""


def encode(spans: pd.DataFrame) -> dict[str, Any]:
    """Return the columns of TYPES as text, for JSON, with the names that the numbers of tags and lines stand for."""
    tag, tags = pd.factorize(spans["tag"])
    line, lines = pd.factorize(spans["line"])
    message, _ = pd.factorize(spans["message"].where(spans["message"] >= 0))  # -1 remains what it is
    phase, op = spans["phase"].map(CODE), spans["op"].map(OP)
    numbers = spans.assign(tag=tag, line=line, message=message, phase=phase, op=op)
    raw = b"".join(numbers[name].to_numpy(kind).tobytes() for name, kind in TYPES.items())
    packed = base64.b64encode(gzip.compress(raw, 6, mtime=0)).decode("ascii")
    return {"n": len(spans), "types": TYPES, "tags": list(tags), "lines": list(lines), "packed": packed}
