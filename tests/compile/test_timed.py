"""What Inductor would choose by running kernels while it compiles: not done for a GPU, here or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch._inductor import config as inductor_config

from graphkiln.core.compile.inductor import _pass_manager
from graphkiln.core.compile.inductor_environment import inductor_environment
from graphkiln.core.compile.settings import InductorSettings
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import CompileError
from graphkiln.core.plan import make_plan


def settings(target: str, scratch: Path, **options: Any) -> InductorSettings:
    config = CompilationConfig(inductor_compile_config=options)
    return make_plan(Deployment("preset:llama", target=target), config).settings(2, scratch)[-1]


@pytest.mark.parametrize(("target", "pads"), [("h200", False), ("cpu", True)])
def test_products_are_not_padded_by_what_was_faster(target: str, pads: bool, tmp_path: Path) -> None:
    wanted = settings(target, tmp_path)
    with inductor_environment(wanted, _pass_manager(wanted, None)):
        assert inductor_config.shape_padding is pads


@pytest.mark.parametrize("name", ["shape_padding", "max_autotune", "coordinate_descent_tuning"])
def test_asking_for_it_is_refused_by_name(name: str, tmp_path: Path) -> None:
    wanted = settings("h200", tmp_path, **{name: True})
    with (
        pytest.raises(CompileError, match=rf"inductor_compile_config\.{name}: it chooses by timing kernels"),
        inductor_environment(wanted, _pass_manager(wanted, None)),
    ):
        pass
