"""A function's digest changes when its code can change, and only then."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from graphkiln.cache.errors import SourceUnreadable
from graphkiln.cache.factors.difference import Difference
from graphkiln.cache.factors.functions import check_functions, file_digest, index_file, index_source

SOURCE = '''
"""Module text."""
import math

SCALE = 2.0


def helper(x, scale=SCALE, *, bias: float = 0.5):
    """Scale x."""
    return x * scale + bias


@math.decorator
def decorated(x: int) -> int:
    return (lambda y: y + 1)(x)


class Block:
    """A block."""

    def forward(self, x):
        def inner(y):
            return y - 1

        rows = [inner(row) for row in x]
        return sum(row for row in rows)


if SCALE:
    def chosen(x):
        return x
else:
    def chosen(x):
        return -x
'''


def changed_by(old: str, new: str) -> set[str]:
    """Return the names whose digests differ, appear or go when `old` becomes `new` in the source."""
    assert SOURCE.count(old) == 1
    before, after = index_source(SOURCE), index_source(SOURCE.replace(old, new))
    return {name for name in {*before, *after} if before.get(name) != after.get(name)}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""Module text."""', '"""Other text."""'),
        ('    """Scale x."""\n', ""),
        ('    """Scale x."""\n', '    """Say\n    more."""\n'),
        ('    """A block."""\n', ""),
        ("return x * scale + bias", "return x * scale + bias  # a comment"),
        ("return x * scale + bias", "\n\n    return ((x * scale)) + (bias)"),
        ("SCALE = 2.0", "SCALE = 3.0"),
        ("import math", "import math\nimport os\n\n\ndef unrelated():\n    return os"),
    ],
)
def test_edits_that_change_no_code_change_no_digest(old: str, new: str) -> None:
    assert changed_by(old, new) <= {"unrelated"}


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("x * scale", "x / scale", {"helper"}),
        ("bias: float = 0.5", "bias: float = 0.25", {"helper"}),
        ("bias: float = 0.5", "bias: int = 0.5", {"helper"}),
        ("+ bias", "+ offset", {"helper"}),
        ("@math.decorator\n", "", {"decorated"}),
        ("-> int", "-> float", {"decorated"}),
        ("y + 1", "y + 1.0", {"decorated", "decorated.<locals>.<lambda>"}),
        ("y + 1", "y + True", {"decorated", "decorated.<locals>.<lambda>"}),
        ("y - 1", "y - 2", {"Block.forward", "Block.forward.<locals>.inner"}),
        ("inner(row) for row", "inner(-row) for row", {"Block.forward", "Block.forward.<locals>.<listcomp>"}),
        ("return -x", "return +x", {"chosen"}),
        ("def inner(y)", "async def inner(y)", {"Block.forward", "Block.forward.<locals>.inner"}),
    ],
)
def test_edits_of_code_change_that_function_and_what_contains_it(old: str, new: str, names: set[str]) -> None:
    assert changed_by(old, new) == names


def test_a_docstring_is_only_what_stands_first() -> None:
    assert (
        index_source("def f():\n    x = 1\n    'a'")["f"] != index_source("def f():\n    x = 1\n    'b'")["f"]
    )


def test_nodes_that_could_be_mistaken_for_each_other_differ() -> None:
    texts = [
        "x",
        "'x'",
        "b'x'",
        "[x]",
        "{**x}",
        "{x: x}",
        "x.x",
        "x[x]",
        "(x,)",
        "None",
        "...",
        "f'{x}'",
        "f'{x!r}'",
    ]
    digests = [index_source(f"def f(): return {text}")["f"] for text in texts]
    assert len(set(digests)) == len(texts)


def test_optional_fields_of_one_statement_are_not_confused() -> None:
    texts = [
        "def f(a, b=1): pass",
        "def f(a, *, b=1): pass",
        "def f(a=1, b=1): pass",
        "def f(a, b, /): pass",
        "def f(*a): pass",
        "def f(**a): pass",
        "def f(a, *, b): pass",
        "def f(*, a=1, b): pass",
        "def f(*, a, b=1): pass",
    ]
    assert len({index_source(text)["f"] for text in texts}) == len(texts)


def test_long_chains_are_digested() -> None:
    deep = "def f(x):\n    return " + " + ".join(["x"] * 900)
    many = "def f(x):\n    if x == 0: return 0\n" + "".join(
        f"    elif x == {n}: return {n}\n" for n in range(1, 300)
    )
    assert index_source(deep)["f"] != index_source(deep + " + x")["f"]
    assert index_source(many)["f"]


@pytest.mark.parametrize("text", ["def f(:", "\0", "x = " + "(" * 5000 + ")" * 5000])
def test_text_that_does_not_parse_is_named(text: str) -> None:
    with pytest.raises(SourceUnreadable) as caught:
        index_source(text, "model.py")
    assert caught.value.where == "model.py"


def test_a_large_file_is_indexed_quickly() -> None:
    text = SOURCE * (2000 // SOURCE.count("\n"))
    best = min(_seconds(text) for _ in range(5))
    assert best < 0.1


def _seconds(text: str) -> float:
    started = time.process_time()
    index_source(text)
    return time.process_time() - started


class TestCheckFunctions:
    @pytest.fixture
    def source(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.syspath_prepend(str(tmp_path))
        path = tmp_path / "checked_model.py"
        path.write_text(SOURCE)
        return path

    def record(self, path: Path, *names: str) -> dict[str, dict[str, object]]:
        index = index_file(path)
        functions = {name: index.functions[name] for name in names}
        return {"checked_model": {"file_sha256": index.file_sha256, "functions": functions}}

    def test_an_unchanged_file_is_not_parsed(self, source: Path) -> None:
        record = self.record(source, "helper")
        record["checked_model"]["functions"] = {"helper": "f" * 64}
        assert check_functions(record) == []

    def test_a_comment_is_no_difference(self, source: Path) -> None:
        record = self.record(source, "helper", "Block.forward")
        source.write_text(SOURCE + "# more\n")
        assert check_functions(record) == []

    def test_a_changed_and_a_removed_function_are_named(self, source: Path) -> None:
        record = self.record(source, "helper", "decorated", "Block.forward")
        source.write_text(SOURCE.replace("x * scale", "x").replace("def decorated", "def renamed"))
        found = {(item.name, item.kind, item.relevant) for item in check_functions(record)}
        assert found == {
            ("checked_model:helper", "changed", True),
            ("checked_model:decorated", "removed", True),
        }
        assert all(item.remedy for item in check_functions(record))

    def test_without_a_file_digest_the_functions_are_compared(self, source: Path) -> None:
        record = self.record(source, "helper")
        del record["checked_model"]["file_sha256"]
        assert check_functions(record) == []

    def test_a_missing_source_cannot_be_verified(self, source: Path) -> None:
        record = self.record(source, "helper")
        os.unlink(source)
        (difference,) = check_functions(record)
        assert isinstance(difference, Difference)
        assert (difference.name, difference.kind) == ("checked_model", "cannot verify")

    def test_a_source_that_no_longer_parses_cannot_be_verified(self, source: Path) -> None:
        record = self.record(source, "helper")
        source.write_bytes(b"def helper(:\n")
        (difference,) = check_functions(record)
        assert difference.kind == "cannot verify"

    def test_other_encodings_are_read_as_python_reads_them(self, source: Path) -> None:
        source.write_bytes("# -*- coding: latin-1 -*-\ndef helper():\n    return 'é'\n".encode("latin-1"))
        assert index_file(source).functions == index_source("def helper():\n    return 'é'\n")

    def test_the_index_follows_the_file(self, source: Path) -> None:
        first = index_file(source)
        assert index_file(source) is first
        source.write_text("def helper(): pass")
        assert set(index_file(source).functions) == {"helper"}
        assert index_file(source).file_sha256 == file_digest(source)
