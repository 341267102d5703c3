"""What a start may differ in and still hit, and what such a hit does not do."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from graphkiln.core.deployment import Deployment
from graphkiln.core.models.load import build
from graphkiln.core.models.source import identify
from graphkiln.core.ops.forward_context import set_forward_context
from graphkiln.core.runner import dummy_context
from graphkiln.core.start import load_model
from tests.start.children import Child, environment, listing, other_installation, start
from tests.start.conftest import HELPER, TOY, Compiled, CompiledToy, write_toy

# No account has it: a user without a name, a home or a group.
STRANGER = 54321


def assert_compiled_nothing(child: Child) -> None:
    assert (child.outcome, child.reasons) == ("hit", [])
    assert child.answer["frames"] == 0
    assert child.answer["spawned"] == []
    counts = child.report["counts"]
    assert counts.pop("artifacts_loaded") > 0
    assert set(counts.values()) == {0}
    assert "torch._inductor.compile_fx" not in child.answer["imported"]


def test_a_cold_start_says_what_it_did(llama: Compiled) -> None:
    report = llama.child.report
    assert report["outcome"] == "compiled"
    assert report["pieces"] == {"total": 5, "distinct": 3, "compiled": 3, "reused": 2}
    assert report["counts"]["frames_converted"] == llama.child.answer["frames"] == 1
    assert report["counts"]["kernels_compiled"] > 0
    assert [row["num_tokens"] for row in report["check"]["rows"]] == [1, 2, 7, 64, 256]


def test_an_entry_hits_elsewhere_without_home_compiler_or_path(llama: Compiled, tmp_path: Path) -> None:
    moved = tmp_path / "another" / "root"
    shutil.copytree(llama.entry, moved / "torch_compile_cache" / llama.entry.name)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    child = start(
        "warm",
        "preset:llama",
        environ={
            "PATH": "",
            "CXX": "/bin/false",
            "HOME": str(tmp_path / "missing"),
            "GRAPHKILN_LOG_LEVEL": "DEBUG",
            "GRAPHKILN_HOST_LABEL": "another",
            "TORCH_LOGS": "recompiles",
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "MASTER_PORT": "29501",
            "VLLM_PORT": "8001",
            "OMP_NUM_THREADS": "1",
            "LC_ALL": "C",
        },
        cwd=elsewhere,
        options={"require_hit": True, "cache_root": str(moved)},
    )
    assert_compiled_nothing(child)
    assert not (tmp_path / "inductor").exists()
    assert not (tmp_path / "missing").exists()
    assert list(elsewhere.iterdir()) == []


def test_another_user_hits_in_another_environment_on_a_read_only_root_and_writes_nothing(
    llama: Compiled, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    installed = tmp_path_factory.mktemp("installed")
    root = tmp_path / "root"
    shutil.copytree(llama.root, root)
    for path in [root, *root.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    user = {"TEST_UID": str(STRANGER)} if os.getuid() == 0 else {}
    before = listing(root)
    options = {"cache_root": str(root)}
    refused = start("precompile", "preset:qwen3", environ=environment(**user), options=options)
    assert refused.answer["error"] == "RootUnusable"
    child = start(
        "warm",
        "preset:llama",
        python=other_installation(installed),
        environ={
            "PATH": "",
            "CXX": "/bin/false",
            "HOME": str(tmp_path / "home"),
            "TMPDIR": str(tmp_path / "no"),
            "USER": "somebody",
            "TZ": "Asia/Tokyo",
            **user,
        },
        cwd=tmp_path,
        options={"require_hit": True, "force_aot_load": True, **options},
    )
    assert_compiled_nothing(child)
    assert all(place.startswith(f"{installed}/") for place in child.answer["ran"])
    assert any(note.startswith("model restored, not built") for note in child.report["notes"])
    assert listing(root) == before
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


@pytest.mark.slow
def test_one_compile_serves_every_token_count(llama: Compiled) -> None:
    deployment = Deployment("preset:llama")
    runner = load_model(deployment, cache_root=llama.root)
    assert runner.report is not None
    assert runner.report.outcome == "hit"
    served = build(identify(deployment), deployment)
    for count in (1, 2, 3, 7, 8, 16, 17, 64, 2048):
        inputs = served.example_inputs(count)
        with torch.no_grad(), set_forward_context(dummy_context(served, deployment, count)):
            wanted = served.backbone.forward(*inputs)
        with set_forward_context(dummy_context(served, deployment, count)):
            got = runner(*inputs)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4, msg=f"{count} tokens")


def test_greedy_tokens_are_those_of_eager(llama: Compiled) -> None:
    greedy = ([5, 17, 250, 3, 99], 12)
    eager = start("load_model", "preset:llama", config={"optimization_level": 0}, greedy=greedy)
    compiled = start("load_model", "preset:llama", options={"cache_root": str(llama.root)}, greedy=greedy)
    assert eager.outcome != "hit"
    assert_compiled_nothing(compiled)
    assert compiled.answer["tokens"] == eager.answer["tokens"]


def test_comments_docstrings_and_unrelated_functions_may_change_and_code_may_move(
    toy: CompiledToy, tmp_path: Path
) -> None:
    assert toy.child.outcome == "compiled"
    model = TOY.replace("A toy.", "Still a toy.").replace("# one kernel", "# a kernel\n\n        # and")
    helper = HELPER.replace('    """Shifts."""\n', "").replace("return 1", "return 2")
    assert model != TOY
    assert helper.count("\n") != HELPER.count("\n")
    code = write_toy(tmp_path / "another place", model=model, helper=helper)
    assert_compiled_nothing(warm_toy(toy, code))


@pytest.mark.parametrize(
    ("model", "helper", "named"),
    [
        (TOY.replace("* 3.0", "* 3.5"), HELPER, "toy_model:Toy.forward"),
        (TOY, HELPER.replace("0.5", "0.25"), "toy_helper:shift"),
        (TOY.replace("nn.Linear(4, 4)", "nn.Linear(4, 4, bias=False)"), HELPER, "parameter linear.bias"),
        (TOY + "\nnn.Linear.forward = lambda self, x: x\n", HELPER, "torch.nn.modules.linear.Linear.forward"),
    ],
    ids=["constant in the model", "constant in a module that it calls", "parameter", "patched class"],
)
def test_changed_code_is_a_miss_that_names_it(
    toy: CompiledToy, tmp_path: Path, model: str, helper: str, named: str
) -> None:
    child = warm_toy(toy, write_toy(tmp_path / "code", model=model, helper=helper))
    assert (child.outcome, child.reasons) == ("miss", [named])
    assert child.answer["frames"] == 0


def warm_toy(toy: CompiledToy, code: Path) -> Child:
    return start(
        "warm",
        "toy_model:make",
        environ=environment(PYTHONPATH=str(code)),
        options={"require_hit": True, "cache_root": str(toy.root)},
    )
