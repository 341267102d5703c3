"""Code that no trace goes through: everything that it names is recorded, and what cannot be is refused."""

from __future__ import annotations

import importlib
import linecache
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphkiln.core.errors import Bypass
from graphkiln.core.trace import functions
from graphkiln.core.trace.functions import CodeDigests
from graphkiln.core.trace.kernel_objects import kernel_name
from graphkiln.core.trace.kernels import check_kernels
from graphkiln.core.trace.reach import function_reach, kernel_reach
from tests.trace.reached import MODULE, STAND_IN


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., types.ModuleType]:
    """Returns what imports `MODULE`, each time from the text with the given replacement."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    (tmp_path / "weird.py").write_text("anything = 1\n")
    for name in ("stand_in", "weird", "reached"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def load(old: str = "", new: str = "") -> types.ModuleType:
        assert old in MODULE
        (tmp_path / "reached.py").write_text(MODULE.replace(old, new, 1) if old else MODULE)
        sys.modules.pop("reached", None)
        importlib.invalidate_caches()
        # As many modules as before, and another one among them.
        monkeypatch.setattr(functions, "_by_file", (0, {}))
        linecache.clearcache()
        return importlib.import_module("reached")

    return load


EDITS = [
    ("return x * 2", "return x * 3"),
    ("return inner(x) + SIZE", "return inner(x) - SIZE"),
    ("value=8", "value=9"),
    ("LIMIT = 3", "LIMIT = 4"),
    ("math.sqrt(x)", "math.exp(x)"),
    ("scale=2.0", "scale=2.5"),
    ("x + 5", "x + 6"),
    ("factor=6", "factor=7"),
    ("x * factor", "x - factor"),
    ("ROUND = 11", "ROUND = 12"),
    ("@jit\ndef inner", "@lambda fn: jit(fn, noinline=True)\ndef inner"),
]


@pytest.mark.parametrize(("old", "new"), EDITS)
def test_an_edit_of_anything_that_is_reached_shows(
    loaded: Callable[..., types.ModuleType], old: str, new: str
) -> None:
    before = function_reach(loaded().op, CodeDigests())
    assert function_reach(loaded().op, CodeDigests()) == before
    assert function_reach(loaded(old, new).op, CodeDigests()) != before


def test_what_changes_no_code_does_not_show(loaded: Callable[..., types.ModuleType]) -> None:
    before = function_reach(loaded().op, CodeDigests())
    assert function_reach(loaded("# a remark", "# another\n    # and more").op, CodeDigests()) == before
    assert function_reach(loaded("class Odd:", "OTHER = 5\n\n\nclass Odd:").op, CodeDigests()) == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"BLOCK": 32', '"BLOCK": 64'),
        ("num_warps=8", "num_warps=2"),
        ("num_warps=8)]", "num_warps=8)], keys=[]"),
    ],
)
def test_configurations_are_part_of_a_kernel(
    loaded: Callable[..., types.ModuleType], old: str, new: str
) -> None:
    before = kernel_reach(loaded().tuned, CodeDigests())
    assert kernel_reach(loaded(old, new).tuned, CodeDigests()) != before


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("reads_a_module", "reads from the module weird"),
        ("reads_the_environment", "reads from the module os"),
        ("uses_a_class", "uses the class reached.Odd"),
        ("sets_a_global", "changes or imports LIMIT"),
        ("evaluates", "uses eval"),
        ("uses_a_layer", "uses an instance of torch.nn"),
        ("uses_a_method_of_a_dict", "uses an instance of builtins.builtin_function_or_method"),
        ("uses_a_method", "uses an instance of builtins.method"),
        ("uses_an_enum", "uses an instance of reached.Mode"),
        ("uses_a_namespace", "reads from the module torch.ops.reached"),
        ("hides_the_ops", "reads a value.ops.reached.op"),
        ("spells_the_ops", "has the text 'ops'"),
        ("calls_no_op", "reads torch.ops.reached.op, which is no op"),
    ],
)
def test_what_nobody_can_compare_is_refused_by_name(
    loaded: Callable[..., types.ModuleType], name: str, why: str
) -> None:
    with pytest.raises(Bypass, match=why):
        function_reach(getattr(loaded(), name), CodeDigests())


def test_a_function_may_call_itself(loaded: Callable[..., types.ModuleType]) -> None:
    module = loaded()
    assert "seen" in str(function_reach(module.recursive, CodeDigests()))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: vars(m.tuned).update(user_defined_pre_hook=True), "functions of its own choose"),
        (lambda m: vars(m.tuned).update(early_config_prune=lambda configs: configs), "functions of its own"),
        (lambda m: vars(m.tuned.configs[0]).update(pre_hook=print), "has a hook"),
        (lambda m: vars(m.tuned).update(fn=m.Heuristics(m.tuned.fn)), "triton.heuristics"),
        (lambda m: vars(m.tuned.fn).update(src="def tuned(x, n): return 7"), "its text was replaced"),
    ],
)
def test_a_kernel_with_code_that_is_not_in_its_function_is_refused(
    loaded: Callable[..., types.ModuleType], change: Callable[[Any], None], why: str
) -> None:
    module = loaded()
    change(module)
    with pytest.raises(Bypass, match=why):
        kernel_reach(module.tuned, CodeDigests())


def test_a_kernel_is_found_again_by_its_name_and_compared(loaded: Callable[..., types.ModuleType]) -> None:
    module = loaded()
    assert kernel_name(module.tuned) == "reached:tuned"
    recorded = {"reached:kernel": kernel_reach(module.kernel, CodeDigests())}
    assert check_kernels(recorded, CodeDigests()) == []

    loaded("return x * 2", "return x * 3")
    (changed,) = check_kernels(recorded, CodeDigests())
    assert changed.name == "kernel reached:kernel"
    assert changed.remedy is not None
    assert "restore the Triton kernel reached:kernel" in changed.remedy

    loaded("def kernel", "def renamed")
    (gone,) = check_kernels(recorded, CodeDigests())
    assert gone.now is None
