"""Filter expressions: which entries `ls`, `verify` and `prune` are about.

An expression is terms joined by `and`: NAME OPERATOR VALUE. A name is a column (`size`, `model`) or a
dotted path into a factor (`compiler.torch`). `~` means "holds this text", case apart. What an entry does
not know never matches, with any operator: a filter that selects for deletion must not reach what it
cannot judge. A factor path that no entry knows is an error, because it is most likely a slip.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from graphkiln.cache.errors import BadFilter
from graphkiln.cache.factors.key import FACTOR_NAMES
from graphkiln.cache.inspect.factor_paths import factor_values, names_near
from graphkiln.cache.inspect.quantities import parse_count, parse_duration, parse_size

_PART = re.compile(r"""(?:"[^"]*"|'[^']*'|(?!\s+and\s).)+""", re.DOTALL)
_TERM = re.compile(r"\s*([^\s=<>!~]+)\s*(!=|!~|>=|<=|==|=|>|<|~)\s*(.*?)\s*", re.DOTALL)
_VERSION = re.compile(r"\d+(?:\.\d+)*")

_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
_NUMBERS: dict[str, Callable[[str], float]] = {
    "size": parse_size, "files": parse_count, "hits": parse_count,
    "age": parse_duration, "unused": parse_duration,
}  # fmt: skip
_TEXTS = ("id", "key", "lookup", "label", "model", "target", "dtype", "status")
# Of these the beginning is enough, as everywhere on the command line.
_PREFIXES = ("id", "key", "lookup")
NAMES = (*_TEXTS, *_NUMBERS, *(f"{factor}.NAME" for factor in FACTOR_NAMES))
STATUSES = ("sound", "partial", "broken", "pinned", "superseded", "litter", "unknown")


class Selectable(Protocol):
    """What a filter asks of an entry's row; times are ISO texts in UTC."""

    @property
    def id(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def lookup(self) -> str: ...
    @property
    def label(self) -> str | None: ...
    @property
    def model(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def files(self) -> int: ...
    @property
    def hits(self) -> int | None: ...
    @property
    def created(self) -> str: ...
    @property
    def idle_since(self) -> str | None: ...
    @property
    def statuses(self) -> tuple[str, ...]: ...
    def factors(self) -> Mapping[str, Any] | None: ...


RowT = TypeVar("RowT", bound=Selectable)


@dataclass(frozen=True)
class Term:
    """One comparison of an expression, `text` as it was typed; `by_factor` where it needs the factors."""

    text: str
    name: str
    operator: str
    value: str

    @property
    def by_factor(self) -> bool:
        return "." in self.name

    def matches(self, row: Selectable, now: datetime) -> bool:
        """Say whether the columns of a row are as the term says; what it does not know is no match."""
        if self.name in _NUMBERS:
            found = _number(row, self.name, now)
            return found is not None and _in_order(found, self.operator, _NUMBERS[self.name](self.value))
        if self.name == "status":
            return _compared(row.statuses, self)
        text = str(getattr(row, self.name) or "")
        if self.name in _PREFIXES and self.operator in ("=", "!="):
            return bool(text) and text.startswith(self.value.lower()) is (self.operator == "=")
        return _compared([text], self)


def parse_filter(expression: str) -> tuple[Term, ...]:
    """Return the terms of one expression; `BadFilter` naming the part that is not understood."""
    parts = [part.strip() for part in _PART.findall(expression) if part.strip()]
    if not parts:
        raise BadFilter(expression, "it is empty", NAMES)
    return tuple(_term(re.sub(r"^and\s+", "", part)) for part in parts)


def select(entries: Iterable[RowT], expressions: Sequence[str], now: datetime | None = None) -> list[RowT]:
    """Return the entries that all expressions hold for, in their order; `BadFilter` for a bad one."""
    terms = [term for expression in expressions for term in parse_filter(expression)]
    # Columns first: they cost nothing, a factor is a file to read.
    moment = now or datetime.now(UTC)
    rows = [row for row in entries if all(term.matches(row, moment) for term in terms if not term.by_factor)]
    return _by_factor(rows, [term for term in terms if term.by_factor])


def seconds_since(then: str | None, now: datetime) -> float | None:
    """Return the seconds from an ISO time to `now`, None where it is none."""
    try:
        moment = datetime.fromisoformat(then or "")
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (now - moment).total_seconds()


def _term(part: str) -> Term:
    match = _TERM.fullmatch(part)
    if match is None:
        raise BadFilter(part, "it is not NAME OPERATOR VALUE, with = != ~ !~ > >= < or <=", NAMES)
    name, sign, value = match[1], match[2].replace("==", "="), _unquoted(match[3])
    factor, dot, rest = name.partition(".")
    if dot and (factor not in FACTOR_NAMES or not all(rest.split("."))):
        raise BadFilter(part, f"no factor path {name!r}", NAMES)
    if not dot and name not in (*_TEXTS, *_NUMBERS):
        raise BadFilter(part, f"no name {name!r}", NAMES)
    if name in _NUMBERS:
        _check_number(part, name, sign, value)
    elif name in _TEXTS and sign in _ORDER:
        raise BadFilter(part, f"{name} is a text: it takes = != ~ or !~", NAMES)
    elif name == "status" and sign in ("=", "!=") and value not in STATUSES:
        raise BadFilter(part, f"no status {value!r}", STATUSES)
    elif dot and sign in _ORDER and _version(value) is None:
        raise BadFilter(part, f"{sign} compares numbers and versions, not {value!r}", ())
    return Term(part, name, sign, value)


def _check_number(part: str, name: str, sign: str, value: str) -> None:
    if "~" in sign:
        raise BadFilter(part, f"{name} is a number: it takes = != > >= < or <=", NAMES)
    try:
        _NUMBERS[name](value)
    except ValueError as error:
        raise BadFilter(part, f"{name} takes {error}, not {value!r}", ()) from None


def _by_factor(rows: Sequence[RowT], terms: Sequence[Term]) -> list[RowT]:
    """Return the rows whose factors are as all terms say, reading each row's factors once."""
    if not terms:
        return list(rows)
    unknown = {term.name: term for term in terms}
    found, example = [], None
    for row in rows:
        factors = row.factors()
        if factors is None:
            continue
        example = example or factors
        values = [(term, factor_values(factors, term.name)) for term in terms]
        for term, there in values:
            if there:
                unknown.pop(term.name, None)
        if all(_compared(there, term) for term, there in values):
            found.append(row)
    for term in unknown.values():
        if example is not None:
            raise BadFilter(term.text, f"no entry knows {term.name}", names_near(example, term.name))
    return found


def _number(row: Selectable, name: str, now: datetime) -> float | None:
    match name:
        case "age":
            return seconds_since(row.created, now)
        case "unused":
            return seconds_since(row.idle_since, now)
        case _:
            found = getattr(row, name)
            return None if found is None else float(found)


def _in_order(found: float, sign: str, wanted: float) -> bool:
    if sign in _ORDER:
        return _ORDER[sign](found, wanted)
    return (found == wanted) is (sign == "=")


def _compared(found: Sequence[Any], term: Term) -> bool:
    """Compare what is known with the term: one equal value is enough for =, none may be for !=."""
    if not found:
        return False
    match term.operator:
        case "=":
            return any(_equal(value, term.value) for value in found)
        case "!=":
            return not any(_equal(value, term.value) for value in found)
        case "~":
            return any(term.value.lower() in _text(value).lower() for value in found)
        case "!~":
            return not any(term.value.lower() in _text(value).lower() for value in found)
        case sign:
            return any(_ordered(value, sign, term.value) for value in found)


def _ordered(value: Any, sign: str, typed: str) -> bool:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return _ORDER[sign](float(value), float(typed))
        except (ValueError, OverflowError):
            return False
    one, other = _version(_text(value)), _version(typed)
    return one is not None and other is not None and _ORDER[sign](one, other)


def _equal(value: Any, typed: str) -> bool:
    if isinstance(value, bool):
        return typed.lower() in (("1", "true", "yes", "on") if value else ("0", "false", "no", "off"))
    if value is None:
        return typed.lower() in ("", "none", "null")
    if isinstance(value, (int, float)):
        try:
            return float(value) == float(typed)
        except (ValueError, OverflowError):
            return False
    text = str(value)
    # As requirements do: 2.13.0 means 2.13.0+cpu too, unless the local part is named.
    return text == typed or (_VERSION.fullmatch(typed) is not None and text.split("+")[0] == typed)


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _version(text: str) -> tuple[int, ...] | None:
    """Return 2.13.0 of `2.13.0+cpu`, padded so that 2.13 equals 2.13.0; None for what is no number."""
    match = _VERSION.match(text.removeprefix("v"))
    if match is None or len(match[0]) > 100:
        return None
    numbers = [int(part) for part in match[0].split(".")]
    return tuple((numbers + [0] * 8)[:8])


def _unquoted(value: str) -> str:
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if quoted else value
