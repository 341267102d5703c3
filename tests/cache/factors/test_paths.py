"""A recorded path is written in one way, whoever writes it."""

from __future__ import annotations

from typing import Any

import pytest

from graphkiln.cache.factors.paths import path_text
from graphkiln.cache.factors.traced import record_text


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ([["self"], ["attr", "layers"], ["item", ["i", "3"]], ["gattr", "scale"]], "self.layers[3].scale"),
        ([["module", "os"], ["attr", "environ"], ["ditem", ["s", "HOME"]]], "os.environ['HOME']"),
        ([["self"], ["type"], ["mro"], ["item", ["i", "1"]]], "type(self).__mro__[1]"),
        ([["self"], ["type"], ["tdict"], ["ditem", ["s", "forward"]]], "type(self).__dict__['forward']"),
        ([["self"], ["attr", "d"], ["nthkey", 2]], "self.d.keys()[2]"),
        ([["self"], ["attr", "d"], ["nthval", 0]], "self.d.values()[0]"),
        ([["builtins"], ["ditem", ["t", [["i", "1"], ["none"]]]]], "builtins[(1, None)]"),
        ([["self"], ["ditem", ["t", [["f", "0x1.8p+0"]]]]], "self[(1.5,)]"),
        ([["self"], ["ditem", ["torch", "torch.float32"]]], "self[torch.float32]"),
        ([["self"], ["ditem", ["y", "6162"]], ["ditem", ["b", True]]], "self[b'ab'][True]"),
        ([["self"], ["item", ["slice", [["i", "0"], ["none"], ["i", "2"]]]]], "self[slice(0, None, 2)]"),
    ],
)
def test_a_path_reads_as_python(path: list[Any], text: str) -> None:
    assert path_text(path) == text
    assert record_text({"path": path}) == text
    assert record_text({"path": path, "extra": "length"}) == f"{text} length"
