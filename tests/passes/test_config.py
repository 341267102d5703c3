"""What a user may say about passes, and how a mistake reads."""

from __future__ import annotations

from typing import Any

import pytest

from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.passes.config import user_passes


def test_no_ops_are_eliminated_unless_said_otherwise() -> None:
    assert CompilationConfig().pass_config.eliminate_noops
    asked = CompilationConfig.from_user({"pass_config": {"eliminate_noops": False}})
    assert asked.pass_config.on == ()


def test_passes_of_the_user_keep_their_order() -> None:
    assert user_passes(["b.c:Two", "a:one"]) == ("b.c:Two", "a:one")
    assert user_passes("a:one") == ("a:one",)
    assert CompilationConfig.from_user({"inductor_passes": ["a:one"]}).inductor_passes == ("a:one",)


@pytest.mark.parametrize(
    "given", [3, ["os.path.join"], ["a:b.c"], ["a:"], [":b"], ["a b:c"], ["a:one", "a:one"], [None]]
)
def test_a_pass_that_is_no_importable_name_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"^inductor_passes: "):
        user_passes(given)


def test_a_pass_as_an_object_is_sent_to_its_name() -> None:
    with pytest.raises(ValueError, match="name the pass in inductor_passes"):
        CompilationConfig(inductor_compile_config={"post_grad_custom_post_pass": print})
