"""Restoring a model in a process that never imports transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from graphkiln.core.deployment import Deployment
from graphkiln.core.models import load
from graphkiln.core.models.light import describe, restore
from graphkiln.core.models.provenance import difference, untouched
from graphkiln.core.models.source import identify
from tests.models.conftest import MakeFolder

# One process builds and describes, others restore: what is compared is written as JSON.
COMMON = """
import json, sys
from graphkiln.core.deployment import Deployment
from graphkiln.core.models.source import identify
deployment = Deployment(sys.argv[1], dtype=sys.argv[3])
source = identify(deployment)

def facts(served):
    import torch
    backbone = served.backbone
    tensors = [*backbone.named_parameters(remove_duplicate=False), *backbone.named_buffers()]
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(1)).to(served.dtype)
    with torch.no_grad():
        logits = served.compute_logits(hidden)
    return {
        "tensors": {n: [str(t.dtype), list(t.shape), t.double().sum().item()] for n, t in tensors},
        "parameters": [n for n, _ in tensors],
        "distinct": len({t.data_ptr() for _, t in tensors}),
        "ops": hasattr(torch.ops.graphkiln, "unified_attention_with_output"),
        "state": sorted(backbone.state_dict()),
        "logits": logits.double().flatten().tolist(),
        "layers": repr(served.layers),
        "rest": repr([type(backbone).__name__, served.vocab_size, served.max_model_len, served.dtype,
                      served.stop_ids, backbone.training, [t.tolist() for t in served.example_inputs(9)]]),
    }
"""
WRITE = (
    COMMON
    + """
from graphkiln.core.models.light import describe
from graphkiln.core.models.load import build
served = build(source, deployment)
json.dump({"description": describe(served), "facts": facts(served)}, open(sys.argv[2], "w"))
"""
)
READ = (
    COMMON
    + """
from graphkiln.core.models.light import restore
written = json.load(open(sys.argv[2]))
served = restore(source, deployment, written["description"])
if isinstance(served, str):
    print(served)
else:
    now = facts(served)
    print("restored" if served.restored and "transformers" not in sys.modules else "built")
    print([name for name in now if now[name] != written["facts"][name]])
"""
)


class Pair:
    """A description on disk, written by one process, and processes that read it."""

    def __init__(self, tmp_path: Path, model: str) -> None:
        self.file, self.model = tmp_path / "description.json", model
        self.run(WRITE)

    def run(self, code: str, *, dtype: str = "auto") -> list[str]:
        command = [sys.executable, "-c", code, self.model, str(self.file), dtype]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def edit(self, change: Callable[[Any], None]) -> None:
        written = json.loads(self.file.read_text())
        change(written["description"])
        self.file.write_text(json.dumps(written))


@pytest.fixture(scope="module")
def preset(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("preset"), "preset:llama")


def test_a_restored_preset_is_the_built_one(preset: Pair) -> None:
    assert preset.run(READ) == ["restored", "[]"]


@pytest.mark.parametrize("tied", [True, False])
def test_a_restored_folder_is_the_built_one(make_folder: MakeFolder, tmp_path: Path, tied: bool) -> None:
    pair = Pair(tmp_path, str(make_folder(tie_word_embeddings=tied, eos_token_id=7)))
    assert pair.run(READ) == ["restored", "[]"]
    assert pair.run(READ, dtype="bfloat16") == ["it was described in float32"]
    pair.edit(lambda d: d["parameters"].update({"norm.weight": ["model.norm.weight", [3]]}))
    assert pair.run(READ) == ["model.norm.weight is not in the weights as it was"]


def test_a_restored_softcap_is_the_built_one(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "preset:gemma3")
    assert pair.run(READ) == ["restored", "[]"]
    pair.edit(lambda d: d["head"].update(after=[]))
    assert pair.run(READ) == ["restored", "['logits']"]


@pytest.fixture
def recorded(preset: Pair, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The provenance of the preset, compared in this process as if it had just begun."""
    for name in ("transformers", "huggingface_hub"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    found: dict[str, Any] = json.loads(preset.file.read_text())["description"]["provenance"]
    finders = untouched()
    assert finders is not None
    return {**found, "finders": list(finders)}


def test_a_process_like_the_one_that_built_has_no_difference(
    recorded: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSFORMERS_CACHE", "/elsewhere")
    monkeypatch.setenv("HOME", "/elsewhere")
    assert difference(recorded) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda then: then["distributions"].append("gone-1.0"), "distributions differ: gone-1.0"),
        (lambda then: then["distributions"].pop(0), "distributions differ: "),
        (lambda then: then.update(python=[3, 0]), "python differ"),
        (lambda then: then["finders"].append("other.Finder"), "finders differ: other.Finder"),
        (lambda then: then["variables"].update(USE_X="1"), "variables differ: ('USE_X', '1')"),
        (
            lambda then: then["files"]["transformers"].update({"modeling_utils.py": "0" * 64}),
            "transformers/modeling_utils.py has changed",
        ),
        (
            lambda then: then["files"]["graphkiln.core"].update({"models/gone.py": "0" * 64}),
            "graphkiln.core/models/gone.py has changed",
        ),
    ],
)
def test_what_changed_since_is_named(
    recorded: dict[str, Any], change: Callable[[Any], None], reason: str
) -> None:
    change(recorded)
    assert (difference(recorded) or "").startswith(reason)


def test_a_process_that_has_imported_transformers_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", ModuleType("transformers"))
    assert untouched() is None
    assert difference({"files": {}}) == "transformers is imported already"


def test_another_format_is_not_read() -> None:
    deployment = Deployment("preset:llama")
    assert "has format 0" in str(restore(identify(deployment), deployment, {"format": 0}))


def test_the_files_that_build_a_model_are_in_its_description(preset: Pair) -> None:
    files = json.loads(preset.file.read_text())["description"]["provenance"]["files"]
    assert "models/llama/modeling_llama.py" in files["transformers"]
    assert "modeling_utils.py" in files["transformers"]
    assert {"models/load.py", "models/bridge.py", "ops/attention.py"} <= set(files["graphkiln.core"])
    assert not any(path.startswith("/") for names in files.values() for path in names)


def described(folder: Path | str, monkeypatch: pytest.MonkeyPatch, **how: Any) -> dict[str, Any] | None:
    """A description made in this process as if it had just begun."""
    monkeypatch.setattr(load, "untouched", lambda: ("a finder",))
    deployment = Deployment(str(folder))
    return describe(load.build(identify(deployment), deployment, **how))


def test_a_plain_model_is_described(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert described(make_folder(), monkeypatch) is not None


def test_a_model_built_after_transformers_was_imported_is_not_described(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load, "untouched", lambda: None)
    deployment = Deployment("preset:llama")
    assert describe(load.build(identify(deployment), deployment)) is None


@pytest.mark.parametrize(
    ("model_type", "config", "after"),
    [
        (
            "gemma2",
            {"head_dim": 16, "final_logit_softcapping": 30.0},
            [["div", 30], ["tanh", None], ["mul", 30]],
        ),
        ("granite", {"logits_scaling": 3.0}, [["div", 3.0]]),
        ("cohere", {"logit_scale": 0.25}, [["mul", 0.25]]),
    ],
)
def test_scales_and_softcaps_of_logits_are_described(
    make_folder: MakeFolder,
    monkeypatch: pytest.MonkeyPatch,
    model_type: str,
    config: dict[str, Any],
    after: Any,
) -> None:
    description = described(make_folder(model_type, **config), monkeypatch)
    assert description is not None
    assert (description["head"]["before"], description["head"]["after"]) == ([], after)


@pytest.mark.parametrize(
    ("model_type", "config"),
    [("phi", {}), ("mixtral", {"num_local_experts": 4})],
    ids=["bias of logits", "converted weights"],
)
def test_what_cannot_be_restored_is_not_described(
    make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch, model_type: str, config: dict[str, Any]
) -> None:
    assert described(make_folder(model_type, **config), monkeypatch) is None


def test_a_model_without_weights_is_described_like_one_with_them(
    make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder("gemma2", head_dim=16, final_logit_softcapping=30.0)
    for model in (folder, "preset:llama"):
        with_weights = described(model, monkeypatch)
        assert with_weights is not None
        assert described(model, monkeypatch, weights="none") == with_weights
