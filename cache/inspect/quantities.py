"""Sizes and durations as people type them: 1GB, 512KiB, 7d, 90m."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")
_DECIMAL = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BINARY = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SHORT = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
SIZES = {**_DECIMAL, **_BINARY, **_SHORT}
DURATIONS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

SIZE_WORDS = "a number and B, KB, MB, GB, TB, KiB, MiB, GiB or TiB"
DURATION_WORDS = "a number and s, m, h, d or w"
COUNT_WORDS = "a whole number"


def parse_size(text: str) -> int:
    """Return bytes; ValueError, saying what is taken, for anything else. Case does not matter."""
    return round(_quantity(text, SIZES, SIZE_WORDS))


def parse_duration(text: str) -> float:
    """Return seconds; ValueError, saying what is taken, for anything else."""
    return _quantity(text, DURATIONS, DURATION_WORDS)


def parse_count(text: str) -> int:
    """Return a count; ValueError, saying what is taken, for anything else."""
    if not re.fullmatch(r"[0-9]{1,18}", text.strip()):
        raise ValueError(COUNT_WORDS)
    return int(text)


def _quantity(text: str, units: dict[str, int], words: str) -> float:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2].lower() not in units or len(match[1]) > 18:
        raise ValueError(words)
    return float(match[1]) * units[match[2].lower()]
