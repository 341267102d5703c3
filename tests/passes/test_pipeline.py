"""Which passes run in what order, and what of them is in the key; nothing is compiled here."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphkiln.cache.factors.canonical import digest
from graphkiln.cache.factors.difference import differences
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import CompileError
from graphkiln.core.passes.pipeline import Pipeline
from graphkiln.core.start import key

PASS = "import pp_helper\n\ndef mine(graph):\n    return pp_helper.nothing()\n"
HELPER = "def nothing():\n    return 0\n"


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with a pass of the user's and a helper that it imports."""
    (tmp_path / "pp_passes.py").write_text(PASS)
    (tmp_path / "pp_helper.py").write_text(HELPER)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def factors(**config: Any) -> dict[str, Any]:
    found = key(Deployment("preset:llama"), CompilationConfig.from_user(config), trace=False)
    return {**found.factors, "lookup": found.lookup}


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Returns the names of what differs; a lookup differs exactly when something does."""
    found = [
        f"{row.factor} {row.name}"
        for factor in ("env", "config", "compiler")
        for row in differences(factor, before[factor], after[factor])
    ]
    assert (before["lookup"] != after["lookup"]) is bool(found)
    return found


def test_the_order_is_fixed_and_the_users_passes_stand_before_what_always_runs() -> None:
    pipeline = Pipeline(("eliminate_noops",), ("a:one", "a:two"))
    assert list(pipeline.steps()) == [
        "eliminate_noops", "a:one", "a:two", "cleanup", "fix_functionalization",
    ]  # fmt: skip
    assert list(Pipeline().steps()) == ["cleanup", "fix_functionalization"]


def test_switching_a_pass_is_one_difference_that_names_it() -> None:
    before, after = factors(), factors(pass_config={"eliminate_noops": False})
    assert changed(before, after) == ["config compilation.passes.on"]
    assert before["lookup"] == factors(pass_config={"eliminate_noops": True})["lookup"]


def test_a_pass_of_the_users_is_in_the_key_with_all_that_it_imports(code: Path) -> None:
    assert changed(factors(), factors(inductor_passes=["pp_passes:mine"])) == [
        "compiler passes.order",
        "compiler passes.sources.pp_helper",
        "compiler passes.sources.pp_passes",
    ]


@pytest.mark.parametrize("module", ["pp_passes", "pp_helper"])
def test_a_line_in_a_pass_or_in_what_it_imports_is_a_difference_that_names_the_module(
    code: Path, module: str
) -> None:
    before = factors(inductor_passes=["pp_passes:mine"])
    file = code / f"{module}.py"
    file.write_text(
        "# a comment\n" + file.read_text().replace("\n    return", '\n    """Doc."""\n    return')
    )
    assert changed(before, factors(inductor_passes=["pp_passes:mine"])) == []
    file.write_text(file.read_text().replace("return ", "return 1 + "))
    assert changed(before, factors(inductor_passes=["pp_passes:mine"])) == [
        f"compiler passes.sources.{module}"
    ]


def test_the_order_of_the_users_passes_is_in_the_key(code: Path) -> None:
    (code / "pp_passes.py").write_text(PASS + "\nother = mine\n")
    one = factors(inductor_passes=["pp_passes:mine", "pp_passes:other"])
    other = factors(inductor_passes=["pp_passes:other", "pp_passes:mine"])
    assert changed(one, other) == ["compiler passes.order[1]", "compiler passes.order[2]"]


def test_our_own_passes_are_in_the_key_by_their_sources() -> None:
    sources = Pipeline().factor()["sources"]
    assert {f"graphkiln.core.passes.{name}" for name in ("manager", "noops", "cleanup", "graphs")} <= set(
        sources
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pp_absent:mine", "pass pp_absent:mine: no Python source of a module pp_absent"),
        ("math:sqrt", "pass math:sqrt: no Python source of a module math"),
        ("pp_passes:yours", "pass pp_passes:yours: pp_passes defines no yours"),
        ("pp_broken:mine", "pass pp_broken:mine: .*does not parse"),
    ],
)
def test_a_pass_that_is_not_there_as_source_is_refused_by_name(code: Path, name: str, message: str) -> None:
    (code / "pp_broken.py").write_text("def (:\n")
    with pytest.raises(CompileError, match=message):
        factors(inductor_passes=[name])


def test_range_and_switches_are_in_what_inductor_keys_on() -> None:
    pipeline = Pipeline(("eliminate_noops",))
    assert pipeline.identity(1, 8) == pipeline.identity(1, 8)
    assert len({pipeline.identity(1, 8), pipeline.identity(1, 9), Pipeline().identity(1, 8)}) == 3


def test_a_source_that_changed_since_the_key_was_made_ends_the_compile(code: Path) -> None:
    pipeline = Pipeline((), ("pp_passes:mine",))
    planned = replace(pipeline, planned=digest(pipeline.factor()))
    assert planned.identity(1, 8) == pipeline.identity(1, 8)
    (code / "pp_helper.py").write_text("def nothing():\n    return 1\n")
    with pytest.raises(CompileError, match="changed while the model was traced"):
        planned.identity(1, 8)


def test_the_factor_imports_no_pass_and_no_torch(code: Path) -> None:
    script = (
        "import sys; from graphkiln.core.passes.pipeline import Pipeline;"
        "Pipeline(('eliminate_noops',), ('pp_passes:mine',)).factor();"
        "slow = {'torch', 'sympy', 'pp_passes', 'pp_helper', 'graphkiln.core.passes.manager'};"
        "print(sorted(slow & set(sys.modules)))"
    )
    environ = {"PYTHONPATH": str(code), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environ
    )
    assert done.stdout.strip() == "[]"
