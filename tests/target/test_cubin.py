"""What a cubin says of its kernel."""

from __future__ import annotations

import pytest

from graphkiln.core.errors import CompileError
from graphkiln.core.target.cubin import kernel_name, registers
from tests.target.elf import cubin


def test_the_registers_are_those_that_the_assembler_wrote() -> None:
    assert registers(cubin("triton_red_0", 30)) == 30
    assert kernel_name(cubin("triton_red_0", 30)) == "triton_red_0"


def test_a_cubin_without_a_count_is_refused_and_not_guessed() -> None:
    with pytest.raises(CompileError, match="does not say how many registers"):
        registers(cubin("triton_red_0", None))
