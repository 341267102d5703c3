"""Reports are added where that is possible, and belong to no digest."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.reports import CAPTURE_REPORT, read_report, write_report
from graphkiln.cache.store.root import CacheRoot


def test_a_report_is_read_as_it_was_written_and_changes_no_digest(root: CacheRoot, entry: Entry) -> None:
    before = entry.build_digest
    assert read_report(entry.path, CAPTURE_REPORT) is None
    assert write_report(root, entry.path, CAPTURE_REPORT, {"ok": True})
    assert write_report(root, entry.path, CAPTURE_REPORT, {"ok": False})
    assert read_report(entry.path, CAPTURE_REPORT) == {"ok": False}
    assert Entry(entry.path).build_digest == before
    assert entry.verify() == []
    assert list(root.staging.iterdir()) == []


def test_where_nothing_can_be_staged_there_is_no_report(root: CacheRoot, entry: Entry) -> None:
    root.staging.rmdir()
    root.staging.write_text("a file in the way")
    assert not write_report(root, entry.path, CAPTURE_REPORT, {})
    assert not (entry.path / "reports").exists()


def test_an_entry_that_is_gone_does_not_come_back(root: CacheRoot, entry: Entry, tmp_path: Path) -> None:
    entry.path.rename(tmp_path / "removed")
    assert not write_report(root, entry.path, CAPTURE_REPORT, {})
    assert not entry.path.exists()
    assert list(root.staging.iterdir()) == []


def test_a_link_is_neither_written_through_nor_read(root: CacheRoot, entry: Entry, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / CAPTURE_REPORT).write_text('{"ok": true}')
    (entry.path / "reports").symlink_to(tmp_path / "elsewhere")
    assert read_report(entry.path, CAPTURE_REPORT) is None
    assert not write_report(root, entry.path, CAPTURE_REPORT, {"ok": False})
    assert (tmp_path / "elsewhere" / CAPTURE_REPORT).read_text() == '{"ok": true}'


@pytest.mark.parametrize("text", ["", "[]", "{", "{" * 100_000, '{"a": NaN}'])
def test_what_is_no_json_object_is_no_report(entry: Entry, text: str) -> None:
    (entry.path / "reports").mkdir()
    (entry.path / "reports" / CAPTURE_REPORT).write_text(text)
    assert read_report(entry.path, CAPTURE_REPORT) is None
