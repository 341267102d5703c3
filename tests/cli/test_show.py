"""Numbers and tables as a person reads them."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest

from graphkiln.cli.show.numbers import age_text, bytes_text, count_text
from graphkiln.cli.show.table import below, facts, table
from graphkiln.cli.show.terminal import Style, style_of

PLAIN = Style()


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1024 * 999 + 600, "0.98 MiB"),
        (1310720, "1.25 MiB"),
        (25 * 1024**3, "25.0 GiB"),
        (300 * 1024**4, "300 TiB"),
        (3000 * 1024**4, "3000 TiB"),
    ],
)
def test_a_size_has_three_digits(count: int, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("then", "text"),
    [
        ("2026-01-01T11:59:30+00:00", "just now"),
        ("2026-01-01T11:00:00", "1 h ago"),
        ("2025-12-25T12:00:00+00:00", "7 d ago"),
        ("2026-01-01T13:00:00+02:00", "1 h ago"),
        ("2027-01-01T00:00:00+00:00", "just now"),
        ("some day", "some day"),
    ],
)
def test_an_age_is_in_the_largest_unit_that_fits(then: str, text: str) -> None:
    assert age_text(then, datetime(2026, 1, 1, 12, tzinfo=UTC)) == text


def test_a_count_agrees_with_its_noun() -> None:
    assert [count_text(n, "entry", "entries") for n in (0, 1)] == ["0 entries", "1 entry"]
    assert count_text(2, "value") == "2 values"


def test_columns_are_aligned_and_numbers_flush_right() -> None:
    assert table(("phase", ">seconds"), [("plan", "0.10"), ("compile", "12.00")], PLAIN) == [
        "phase    seconds",
        "plan        0.10",
        "compile    12.00",
    ]


def test_the_last_column_goes_on_below_where_the_width_ends() -> None:
    lines = table(("a", "because"), [("x", "one two three four five six seven")], Style(width=24))
    assert lines == ["a  because", "x  one two three four", "   five six seven"]


def test_a_word_longer_than_the_width_is_not_cut() -> None:
    path = "/a/very/long/path/that/does/not/fit/into/the/line"
    assert facts([("entry", path)], Style(width=20)) == [f"entry  {path}"]


def test_facts_without_a_value_are_left_out() -> None:
    assert facts([("key", "1"), ("size", ""), ("pieces", "3")], PLAIN) == ["key     1", "pieces  3"]


def test_a_part_without_lines_has_no_title() -> None:
    assert below([], "title") == []
    assert below(["x"], "title") == ["", "title", "x"]


def test_a_pipe_has_no_width_and_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert style_of(io.StringIO()) == Style(None, False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colour_is_off_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert style_of(Terminal()).color
    monkeypatch.setenv(name, value)
    assert not style_of(Terminal()).color
