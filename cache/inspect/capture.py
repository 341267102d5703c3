"""The report of a capture check, as an entry holds it: its form, because nobody vouches for what is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphkiln.cache.factors.difference import Difference
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.reports import CAPTURE_REPORT, read_report

_NUMBER = (int, float)
# By mode or way of running a step: one number each.
_NUMBERS = {str: _NUMBER}
_ROW = {
    "num_tokens": int, "ms": _NUMBERS, "launches": _NUMBERS, "bytes": _NUMBERS, "error": _NUMBERS,
    "allowed": _NUMBERS, "unequal": [str],
}  # fmt: skip
_FORM: dict[Any, Any] = {
    "at": str, "device": str, "mode": str, "sizes": [int], "ok": bool, "graphs": {str: int},
    "seconds": _NUMBER, "bytes": int, "free": int, "leaked": int, "kept": int, "rows": [_ROW],
    "estimates": [{"mode": str, "graphs": int, "first": int, "each": int, "bytes": int}],
    "fitting": [int],
    "padding": [
        {"way": str, "size": int, "first": int, "last": int, "graph_ms": _NUMBER, "plain_ms": _NUMBER}
    ],
    "never_win": [{"way": str, "size": int, "reason": str}],
}  # fmt: skip
# Each is None where there is nothing to say.
_FORMS_OR_NONE: dict[str, Any] = {
    "suggestion": {
        "sizes": [int], "ratio": _NUMBER, "interpolated": [int], "counted": bool, "larger": _NUMBER,
    },
    "shortage": {
        "mode": str, "num_tokens": int, "detail": str, "captured": int, "planned": int, "sizes": [int],
        "measured": bool,
    },
}  # fmt: skip
_COMPARED = ("device", "mode", "sizes", "ok", "graphs", "bytes", "seconds")


def capture_of(entry: Entry) -> dict[str, Any] | None:
    """Return the capture check of an entry; None where none was made, or its report has another form."""
    found = read_report(entry.path, CAPTURE_REPORT)
    return found if found is not None and is_capture(found) else None


def is_capture(found: Mapping[str, Any]) -> bool:
    """Whether a document has the form of a capture report, so that it can be shown without further care."""
    return _conforms(found, _FORM) and all(
        found.get(name) is None or _conforms(found[name], form) for name, form in _FORMS_OR_NONE.items()
    )


def capture_differences(a: Entry, b: Entry) -> tuple[Difference, ...]:
    """Return what the capture checks of two entries differ in: the graphs, and the time of each step.

    Nothing where neither entry was checked. Times differ a little between any two checks.
    """
    found = [_values(capture_of(entry)) for entry in (a, b)]
    return tuple(
        Difference("reports", name, found[0].get(name), found[1].get(name), relevant=False)
        for name in dict.fromkeys([*found[0], *found[1]])
        if found[0].get(name) != found[1].get(name)
    )


def _values(report: Mapping[str, Any] | None) -> dict[str, Any]:
    if report is None:
        return {}
    steps = {f"ms.{row['num_tokens']}.{way}": row["ms"][way] for row in report["rows"] for way in row["ms"]}
    return {**{name: report[name] for name in _COMPARED}, **steps}


def _conforms(value: Any, form: Any) -> bool:
    """Whether a value has a form: a type or several, a list of one form, a mapping by name or of one form."""
    if isinstance(form, dict):
        if not isinstance(value, Mapping):
            return False
        if str in form:
            return all(_conforms(inner, form[str]) for inner in value.values())
        return all(name in value and _conforms(value[name], inner) for name, inner in form.items())
    if isinstance(form, list):
        return isinstance(value, list) and all(_conforms(inner, form[0]) for inner in value)
    # bool is an int to Python.
    return isinstance(value, form) and (form is bool or not isinstance(value, bool))
