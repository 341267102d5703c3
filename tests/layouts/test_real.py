"""Every real tree lists, inspects and verifies as its maker described it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from graphkiln.cache.layouts.found import ForeignRow
from graphkiln.cache.layouts.vllm.reader import VllmReader

READER = VllmReader()
MEGA = "mega AOT"
# By tree: each short name, its form, its status, the beginning of its AOT folder's name.
TREES: dict[str, dict[str, tuple[str, str, str]]] = {
    "s01-base": {"74f21e6911": (MEGA, "sound", "c1be8a0cc9")},
    "m01-env": {"4a8c89dcd1": (MEGA, "sound", "f6212bb6a5")},
    "m02-max-batched-tokens": {"db02db82f9": (MEGA, "sound", "d89b98745f")},
    "m03-max-num-seqs": {"710873fd9b": (MEGA, "sound", "11d5741a00")},
    "m04-bfloat16": {"0cde887539": (MEGA, "sound", "e71cb9d75c")},
    "m07-mega-off": {"a41f1c5c53": ("AOT", "sound", "269c9bf478")},
    "m08-aot-off": {"e224206a4f": ("pieces", "sound", "")},
    "m09-standalone-off": {"0972669850": ("adaptor", "sound", "")},
    "m12-source-edit": {
        "74f21e6911": ("nothing to load", "litter", ""),
        "b6acb3a111": (MEGA, "sound", "c1be8a0cc9"),
    },
    "m14-cache-disabled": {"665b70ae84": ("nothing to load", "litter", "")},
    "m16-model-moved": {"4ee45268a9": (MEGA, "sound", "a5e5d584b9")},
    "m17-tp2": {"e516484649": (MEGA, "sound", "f719b23f1f")},
    "k01-killed": {"74f21e6911": ("nothing to load", "litter", "c1be8a0cc9")},
    "multi": {
        "0cde887539": (MEGA, "sound", "e71cb9d75c"),
        "4a8c89dcd1": (MEGA, "sound", "f6212bb6a5"),
        "4ee45268a9": (MEGA, "sound", "a5e5d584b9"),
        "74f21e6911": (MEGA, "sound", "c1be8a0cc9"),
        "a41f1c5c53": ("AOT", "sound", "269c9bf478"),
        "db02db82f9": (MEGA, "sound", "d89b98745f"),
        "e224206a4f": ("pieces", "sound", ""),
    },
}


@pytest.mark.parametrize("name", TREES)
def test_a_real_tree_lists_inspects_and_verifies(name: str, unpacked: Callable[[str], Path]) -> None:
    rows = [row for row in READER.scan(unpacked(name)).rows if isinstance(row, ForeignRow)]
    aots = {row.id: row.unit.aot.name[:10] if row.unit.aot else "" for row in rows}
    assert {row.id: (row.form, row.health, aots[row.id]) for row in rows} == TREES[name]
    for row in rows:
        verdict, found = READER.verify(row), READER.account(row)
        assert (verdict.faults == ()) is (row.health == "sound" or row.superseded)
        assert found.hashes == row.hashes
        assert row.key.startswith(row.id)
        if row.form == MEGA:
            assert row.model == "LlamaModel"
            assert found.versions["torch"] == "2.13.0+cpu"
            assert len(found.factors["code"]["backbone"]["functions"]) > 20
        if row.health == "sound":
            assert {piece.range for piece in found.pieces} <= {(1, 512), (1, 256)}
            assert len(found.pieces) == 3 * (2 if name == "m17-tp2" else 1)
            assert found.factors["compiler"]["settings"]


def test_what_a_real_model_says(unpacked: Callable[[str], Path]) -> None:
    [row] = READER.scan(unpacked("m04-bfloat16")).rows
    found = READER.account(row)  # type: ignore[arg-type]
    assert (row.dtype, row.target) == ("bfloat16", "cpu")
    assert found.factors["config"]["model"]["layers"] == 2
    assert dict(found.about)["graph"] == "5 pieces, split at vllm.unified_attention_with_output, 2 layers"
    assert "LlamaModel.forward, line 406" in dict(found.about)["traced"]
    assert any(note.startswith("of the config only a hash is stored") for note in found.notes)
