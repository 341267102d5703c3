"""What is in the digest of a pass: its module, and every module that it imports, by what they do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from graphkiln.cache.errors import SourceUnreadable
from graphkiln.core.passes.sources import import_closure, read_module, syntax_digest

Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Gives `write(name, text)`, which writes a module that can be imported; none of them ever is."""
    monkeypatch.syspath_prepend(tmp_path)

    def written(name: str, text: str = "", *, package: bool = False) -> None:
        parts = name.split(".")
        folder = tmp_path.joinpath(*(parts if package else parts[:-1]))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ("__init__.py" if package else f"{parts[-1]}.py")).write_text(text)

    return written


def closure(name: str) -> dict[str, str]:
    return import_closure([name], {name.partition(".")[0]})


def test_imports_are_followed_from_module_to_module(write: Write) -> None:
    write("px_one", "import px_two\nfrom px_three import thing\nimport torch, os.path\n")
    write("px_two", "def later():\n    import px_four\n")
    write("px_three", "thing = 1\nif TYPE_CHECKING:\n    import px_five\n")
    write("px_four")
    write("px_five")
    assert list(closure("px_one")) == ["px_four", "px_one", "px_three", "px_two"]


def test_relative_imports_and_submodules_are_found(write: Write) -> None:
    write("px_pack", "", package=True)
    write("px_pack.deep", "from . import near\n", package=True)
    write("px_pack.deep.near")
    write("px_pack.far")
    write("px_pack.mine", "from .deep import near\nfrom px_pack import far\nfrom ..px_pack import lost\n")
    assert list(closure("px_pack.mine")) == [
        "px_pack",
        "px_pack.deep",
        "px_pack.deep.near",
        "px_pack.far",
        "px_pack.mine",
    ]


def test_a_package_around_a_module_counts_with_what_it_runs_at_import(write: Write) -> None:
    write("px_around", "import px_early\ndef lazy():\n    import px_late\n", package=True)
    write("px_around.mine")
    write("px_early")
    write("px_late")
    assert list(closure("px_around.mine")) == ["px_around", "px_around.mine", "px_early"]


def test_an_installed_package_is_one_version(write: Write) -> None:
    write("px_with", "import sympy.core, filelock\n")
    found = closure("px_with")
    assert {name: value.partition(" ")[0] for name, value in found.items() if name != "px_with"} == {
        "filelock": "version",
        "sympy": "version",
    }


def test_imports_in_a_circle_end(write: Write) -> None:
    write("px_a", "import px_b\n")
    write("px_b", "import px_a\n")
    assert list(closure("px_a")) == ["px_a", "px_b"]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("# a comment\ndef f(x):\n    return x + 1\n", True),
        ('"""Doc."""\n\ndef f(x):\n    """Doc."""\n    return (x + 1)\n', True),
        ("def f(x):\n    return x + 2\n", False),
        ("def f(x):\n    return x + True\n", False),
        ("def f(y):\n    return y + 1\n", False),
    ],
    ids=["comment", "docstrings", "constant", "type of a constant", "name"],
)
def test_a_comment_is_no_change_and_a_line_is(write: Write, text: str, same: bool) -> None:
    write("px_text", "def f(x):\n    return x + 1\n")
    before = closure("px_text")
    write("px_text", text)
    assert (closure("px_text") == before) is same


PAIRS = [
    ("if a:\n    b\nc\n", "if a:\n    b\n    c\n"),
    ("if a:\n    b\nelse:\n    c\n", "if a:\n    b\n    c\n"),
    ("f([a], b)\n", "f([a, b])\n"),
    ("f(a, *b)\n", "f(*a, b)\n"),
    ("(a, b)\n", "[a, b]\n"),
    ("x = 'a'\n", "x = a\n"),
    ("x = 'None'\n", "x = None\n"),
    ("x = b'a'\n", "x = 'a'\n"),
    ("x = 1\n", "x = 1.0\n"),
    ("x = 'a\\0b'\n", "x = 'a', 'b'\n"),
    ("a - (b - c)\n", "a - b - c\n"),
    ("@d\ndef f(): pass\n", "def f(): d\n"),
    ("def f(a=1): pass\n", "def f(a, b=1): pass\n"),
    ("def f(a, /): pass\n", "def f(a): pass\n"),
    ("class A(b): c\n", "class A: b; c\n"),
    ("x: int = 1\n", "x = 1\n"),
    ("f'{a!r}'\n", "f'{a}'\n"),
    ("{**a, b: c}\n", "{a: b, **c}\n"),
    ("async def f(): pass\n", "def f(): pass\n"),
    ("x = '\\ud800'\n", "x = '\\ud801'\n"),
]


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=[repr(one) for one, _ in PAIRS])
def test_what_is_written_otherwise_has_another_digest(one: str, other: str) -> None:
    digests = [syntax_digest(text.encode()) for text in (one, other, f"# said\n\n{one}")]
    assert digests[0] == digests[2]
    assert digests[0] != digests[1]


def test_a_deep_tree_has_a_digest() -> None:
    chain = " + ".join(["a"] * 900)
    assert syntax_digest(f"x = {chain}\n".encode()) != syntax_digest(f"x = {chain} + a\n".encode())


def test_a_file_that_does_not_parse_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def (:\n")
    with pytest.raises(SourceUnreadable, match=r"broken\.py"):
        read_module("broken", path)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a = 1\nb: int = 2\nc, (d, *e) = x\ntry:\n    import f.g\nexcept E:\n    f = None\n", "abcdef"),
        ("class A:\n    hidden = 1\ndef b():\n    hidden = 2\nif x:\n    from c import y as d\n", "Abd"),
    ],
)
def test_the_names_of_a_module_are_those_of_its_top_level(tmp_path: Path, text: str, names: str) -> None:
    path = tmp_path / "names.py"
    path.write_text(text)
    assert sorted(read_module(f"names_{names}", path).names or ()) == sorted(names)


def test_names_that_cannot_be_known_are_not_claimed(tmp_path: Path) -> None:
    path = tmp_path / "star.py"
    path.write_text("from os import *\n")
    assert read_module("star", path).names is None
