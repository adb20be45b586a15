"""Bandwidths and times as people write them: 10gbit, 1.5GB/s, 50us."""

import re

PAYLOAD = 1448 / 1514
"""The part of a bandwidth that messages get: of a full Ethernet frame, 66 bytes are headers (Ethernet, IP, TCP)."""
ACKNOWLEDGED = 66 / (2 * 1514)
"""What of a message's time on a card its acknowledgements take of the card the other way: a frame of 66 bytes for two
full frames, as TCP delays them. As in `PAYLOAD`, preambles and gaps do not count."""
_BITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
_BYTES = {"B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12}
_MOST = 1e18  # far from where numbers get inexact
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def bytes_per_second(text: str) -> float:
    """Return a bandwidth in bytes a second. Raises ValueError, whose message says how it is written."""
    number, unit = _parts(text)
    bits = _BITS.get(unit.lower().removesuffix("/s"))
    factor = bits / 8 if bits else _BYTES.get(unit)
    if number is None or factor is None or not 1e-3 <= number * factor <= _MOST:
        raise ValueError("write a bandwidth such as 1gbit, 100mbit or 1.5GB/s")
    return number * factor


def seconds(text: str) -> float:
    """Return a time in seconds. Raises ValueError, whose message says how it is written."""
    number, unit = _parts(text)
    if number is None or unit not in _SECONDS or number * _SECONDS[unit] > _MOST:
        raise ValueError("write a time such as 50us, 3ms or 1.5s")
    return number * _SECONDS[unit]


def _parts(text: str) -> tuple[float | None, str]:
    found = re.fullmatch(r"([0-9]+\.?[0-9]*(?:e[+-]?[0-9]{1,2})?)\s*([A-Za-z/]+)", text.strip())
    return (float(found[1]), found[2]) if found else (None, "")
