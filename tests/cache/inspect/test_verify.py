"""Every kind of file in an entry, damaged in every way: verify names exactly that file and that fault."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphkiln.cache.factors.key import Factors
from graphkiln.cache.inspect.verify import Verdict, verify_entries
from graphkiln.cache.store.documents import seal, unseal
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.manifest import artifact_id
from graphkiln.cache.store.store import Store
from tests.cache.inspect.made import cache_at, make_entry, note_use, reheaded

# Files with a digest of their own, files that another one lists, and files that nobody vouches for.
SEALED = ("entry.json", "manifest")
LISTED = ("factors.json", "source", "kernel", "wrapper", "graph", "wiring")
LOOSE = ("state.json", "report")
KINDS = (*SEALED, *LISTED, *LOOSE)
ELSEWHERE = 12345


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(cache_at(tmp_path_factory.mktemp("template")), "one").path


@pytest.fixture
def entry(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / template.name))


def made(store: Store, code: str, **texts: Any) -> Entry:
    entry = make_entry(store, code, **texts)
    note_use(entry, 1)
    (entry.path / "reports").mkdir(mode=0o700)
    (entry.path / "reports" / "check.json").write_text('{"ok": true}')
    return entry


def place(entry: Path, kind: str) -> Path:
    """The file of a kind; globs, because artifacts and sources are named by content."""
    patterns = {
        "manifest": "rank_0_0/manifest.json",
        "source": "source/*.py",
        "kernel": "artifacts/*/kernels/k.so",
        "wrapper": "artifacts/*/wrapper.py",
        "graph": "rank_0_0/backbone/graph.py",
        "wiring": "rank_0_0/backbone/wiring.json",
        "report": "reports/check.json",
    }
    [path] = entry.glob(patterns.get(kind, kind))
    return path


def verdict(entry: Path) -> Verdict:
    [found] = verify_entries([entry])
    return found


def faults(entry: Path) -> list[tuple[str, str]]:
    return [(fault.file, fault.kind) for fault in verdict(entry).faults]


def missing(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def half(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    # The first byte of what nobody vouches for: another letter in it would be another text.
    data[0 if path.name in ("state.json", "check.json") else len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, tuple[Callable[[Path], None], dict[str, str | None]]] = {
    "missing": (missing, {**dict.fromkeys(KINDS, "missing"), **dict.fromkeys(LOOSE)}),
    "empty": (
        empty,
        {
            **dict.fromkeys(SEALED, "unreadable"),
            **dict.fromkeys(LISTED, "size"),
            **dict.fromkeys(LOOSE, "schema"),
        },
    ),
    "cut in half": (
        half,
        {
            **dict.fromkeys(SEALED, "unreadable"),
            **dict.fromkeys(LISTED, "size"),
            **dict.fromkeys(LOOSE, "schema"),
        },
    ),
    "one bit flipped": (flipped, {**dict.fromkeys(KINDS, "digest"), **dict.fromkeys(LOOSE, "schema")}),
}


def test_a_whole_entry_is_sound(entry: Path) -> None:
    found = verdict(entry)
    assert (found.status, found.faults, found.damaged) == ("sound", (), False)
    assert found.size == sum(path.stat().st_size for path in entry.rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_told_by_file_and_fault(entry: Path, kind: str, name: str) -> None:
    damage, expected = DAMAGE[name]
    path = place(entry, kind)
    damage(path)
    wanted = expected[kind]
    assert faults(entry) == ([] if wanted is None else [(str(path.relative_to(entry)), wanted)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_link_is_told_even_where_it_leads_to_the_right_bytes(
    entry: Path, kind: str, tmp_path: Path
) -> None:
    path = place(entry, kind)
    os.rename(path, tmp_path / "moved")
    os.symlink(tmp_path / "moved", path)
    assert faults(entry) == [(str(path.relative_to(entry)), "symlink")]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "report"])
def test_a_file_that_nothing_lists_is_told(entry: Path, kind: str) -> None:
    path = place(entry, kind)
    (path.parent / f"{path.name}.bak").write_bytes(path.read_bytes())
    assert faults(entry) == [(f"{path.relative_to(entry)}.bak", "extra")]


@pytest.mark.parametrize("folder", ["artifacts", "rank_0_0", "rank_0_0/backbone", "source"])
def test_a_folder_that_is_a_link_is_one_fault(entry: Path, folder: str, tmp_path: Path) -> None:
    os.rename(entry / folder, tmp_path / "moved")
    os.symlink(tmp_path / "moved", entry / folder)
    assert faults(entry) == [(folder, "symlink")]


def test_an_entry_that_is_a_link_a_file_or_nothing(entry: Path, tmp_path: Path) -> None:
    os.symlink(entry, tmp_path / "link")
    (tmp_path / "file").write_text("")
    assert faults(tmp_path / "link") == [(".", "symlink")]
    assert faults(tmp_path / "file") == [(".", "unreadable")]
    assert faults(tmp_path / "none") == [(".", "missing")]


def test_a_pipe_in_the_place_of_a_file_holds_nobody(entry: Path) -> None:
    path = place(entry, "kernel")
    path.unlink()
    os.mkfifo(path)
    assert faults(entry) == [(str(path.relative_to(entry)), "unreadable")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_told(tmp_path: Path, child: Callable[..., Any], kind: str) -> None:
    """Looked at by a user without rights, who owns all but one file."""
    from tests.cache.child import UNPRIVILEGED

    entry = made(cache_at(tmp_path / "root"), "one").path
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.chown(path, UNPRIVILEGED, UNPRIVILEGED)
    outer = Path(tempfile.gettempdir()).resolve()
    for parent in tmp_path.resolve().parents:
        if parent != outer and parent.is_relative_to(outer):
            os.chmod(parent, 0o755)
    path = place(entry, kind)
    os.chown(path, ELSEWHERE, ELSEWHERE)
    out, err = child("verify", entry).communicate(timeout=60)
    assert json.loads(out) == [[str(path.relative_to(entry)), "owner"]], err


PATH = "/home/ci/cache/kernel.so"


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        ("entry.json", {"header": {"note": PATH}}),
        ("factors.json", {"config": {"tokenizer": PATH}}),
        ("manifest", {"specific": {"libraries": [PATH]}}),
        ("wrapper", {"wrapper": f"load({PATH!r})\n"}),
        ("graph", {"graph": f"# from {PATH}\n"}),
        ("wiring", {"wiring": {"library": PATH}}),
        ("source", {"source": f"PATH = {PATH!r}\n"}),
        ("kernel", {"kernel": b"\x7fELF\0" + PATH.encode() + b"\0"}),
    ],
)
def test_an_absolute_path_is_told_where_a_load_could_follow_it(
    tmp_path: Path, kind: str, texts: dict[str, Any]
) -> None:
    entry = made(cache_at(tmp_path), "one", **texts).path
    found = verdict(entry)
    # The text of a source is a copy that no load opens; a library's own strings are not ours to read.
    followed = kind not in ("source", "kernel")
    told = [(fault.file, fault.kind, fault.detail) for fault in found.faults]
    assert told == ([(str(place(entry, kind).relative_to(entry)), "absolute path", PATH)] if followed else [])
    assert not found.damaged


@pytest.mark.parametrize(
    "text",
    [
        "</s>",
        "https://host/a/b",
        "a/b/c",
        "// a/b",
        "/* a/b */",
        "x / y / z",
        "application/json",
        "../a/b",
        "/a",
    ],
)
def test_what_only_looks_like_a_path_is_none(tmp_path: Path, text: str) -> None:
    entry = made(cache_at(tmp_path), "one", graph=f"# {text}\n", wiring={"text": text}).path
    assert faults(entry) == []


def test_a_path_out_of_the_entry_in_a_manifest_is_a_wrong_schema(entry: Path) -> None:
    path = place(entry, "manifest")
    body = unseal(path.read_bytes())
    body["files"]["/etc/passwd"] = {"size": 1, "sha256": "0" * 64}
    path.write_bytes(seal(body, ""))
    assert faults(entry) == [("rank_0_0/manifest.json", "schema")]


def test_factors_that_do_not_give_the_hashes_are_a_wrong_schema(entry: Path) -> None:
    """Someone edited the factors and signed them again: every digest agrees but the key's."""
    from hashlib import sha256

    from graphkiln.cache.factors.canonical import canonical_json

    values = json.loads((entry / "factors.json").read_bytes())
    values["compiler"]["torch"] = "2.14.0"
    data = canonical_json(Factors.from_json(values).as_json())
    (entry / "factors.json").write_bytes(data)
    reheaded(Entry(entry), factors={"size": len(data), "sha256": sha256(data).hexdigest()})
    assert faults(entry) == [("factors.json", "schema")]


def test_an_expected_rank_that_is_not_there_makes_it_partial(tmp_path: Path) -> None:
    entry = made(cache_at(tmp_path), "one", header={"ranks_expected": ["0_0", "1_0", "2_0"]}).path
    found = verdict(entry)
    assert (found.status, found.missing_ranks, found.faults, found.damaged) == (
        "partial",
        ("1_0", "2_0"),
        (),
        False,
    )


@pytest.mark.parametrize(
    ("texts", "detail"),
    [
        ({"wiring": {"pieces": []}}, "its 0 pieces are not the 1 artifacts of the manifest"),
        (
            {"wiring": {"attention": {"artifact": "f" * 64}}},
            "its 2 pieces with attention are not the 1 artifacts of the manifest",
        ),
        ({"header": {"pieces": {"total": 3, "distinct": 2}}}, "1 of 2 distinct pieces"),
    ],
)
def test_pieces_that_do_not_add_up_are_told(tmp_path: Path, texts: dict[str, Any], detail: str) -> None:
    entry = made(cache_at(tmp_path), "one", **texts).path
    [fault] = verdict(entry).faults
    assert (fault.file, fault.kind, fault.detail) == ("rank_0_0/backbone/wiring.json", "pieces", detail)


def test_an_artifact_under_another_name_is_told(entry: Path) -> None:
    [artifact] = (entry / "artifacts").iterdir()
    os.rename(artifact, entry / "artifacts" / artifact_id({}))
    kinds = {fault.kind for fault in verdict(entry).faults}
    assert kinds == {"missing", "extra"}


def test_an_entry_under_another_name_is_broken_and_can_be_removed(tmp_path: Path) -> None:
    store = cache_at(tmp_path)
    entry = make_entry(store)
    moved = entry.path.rename(entry.path.with_name("0" * 10))
    assert [(fault.file, fault.kind) for fault in verdict(moved).faults] == [("entry.json", "schema")]
    (listed,) = store.entries()
    assert store.discard(listed) is not None
    assert not moved.exists()


def test_an_entry_under_the_name_of_another_is_replaced_by_it(tmp_path: Path) -> None:
    store, other = cache_at(tmp_path / "one"), cache_at(tmp_path / "two")
    place = make_entry(store, "one").path
    shutil.rmtree(place)
    shutil.copytree(make_entry(other, "two").path, place)
    again = make_entry(store, "one")
    assert (again.path, verdict(place).faults) == (place, ())


def test_progress_is_in_bytes_and_ends_at_all_of_them(entry: Path) -> None:
    told: list[tuple[int, int]] = []
    verify_entries([entry], lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == told[-1][1] > 0


def test_nothing_is_written_and_no_lock_taken(entry: Path, snapshot: Callable[[Path], object]) -> None:
    before = snapshot(entry.parent)
    verify_entries([entry])
    assert snapshot(entry.parent) == before
