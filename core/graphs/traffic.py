"""How often steps of which size are served: the weights of a suggestion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from graphkiln.cache.store.documents import DocumentFault, parse_object

TRAFFIC_FORM = (
    'a JSON object of step sizes in tokens and how often each was served, such as {"1": 900, "32": 40}'
)

# Counts and sizes are multiplied and added up as floats: what is finite stays so below these.
_DIGITS = 18
_MOST = 10**_DIGITS


def read_traffic(path: Path) -> dict[int, float]:
    """Returns how often each step size, in tokens, was served. Raises ValueError, in one line."""
    try:
        found = parse_object(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    except DocumentFault as fault:
        raise ValueError(f"{path}: {fault.detail}") from None
    counts = {_size(path, size): _count(path, size, count) for size, count in found.items()}
    if not any(counts.values()):
        raise ValueError(f"{path}: no step was counted")
    return dict(sorted(counts.items()))


def assumed_traffic(largest: int) -> dict[int, float]:
    """Returns the weights where nobody counted: steps of 1 to 2 tokens as often as those of 128 to 256."""
    return {size: 1 / size for size in range(1, largest + 1)}


@dataclass(frozen=True)
class Served:
    """How a traffic falls on capture sizes: `steps` counted, and two shares from 0 to 1.

    `padding` is the part of all tokens run that is padding; `larger` the part of the steps that are larger
    than every graph, and run unpadded without one.
    """

    steps: float
    padding: float
    larger: float


def served_by(traffic: Mapping[int, float], sizes: Iterable[int]) -> Served:
    """Returns how a traffic falls on capture sizes, by the dispatch rule: each step runs in the next size."""
    ascending = sorted(sizes)
    steps = tokens = run = larger = 0.0
    for size, count in traffic.items():
        padded = next((captured for captured in ascending if captured >= size), None)
        steps += count
        tokens += count * size
        run += count * (padded or size)
        larger += count if padded is None else 0.0
    return Served(steps, 1 - tokens / run, larger / steps)


def _size(path: Path, text: str) -> int:
    # The digits of other scripts are decimals too, and "007" would hide a second "7".
    if (
        not (text.isascii() and text.isdecimal())
        or len(text) > _DIGITS
        or int(text) < 1
        or text != str(int(text))
    ):
        raise ValueError(f"{path}: {text!r} is not a number of tokens")
    return int(text)


def _count(path: Path, size: str, count: object) -> float:
    if not isinstance(count, (int, float)) or isinstance(count, bool) or count < 0:
        raise ValueError(f"{path}: {count!r}, the count of {size}, is not a number from 0 on")
    if count > _MOST:
        raise ValueError(f"{path}: the count of {size} is larger than {_MOST:.0e}")
    return float(count)
