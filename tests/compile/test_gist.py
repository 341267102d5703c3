"""What of a compiler's report becomes the one line that a person reads."""

from __future__ import annotations

import pytest

from graphkiln.core.compile.inductor import _gist

ASSEMBLER = """NoTritonConfigsError: No valid configs. PTXASError: PTXAS error: Internal PTX codegen error
`ptxas` stderr:
ptxas fatal   : Value 'sm_97a' is not defined for option 'gpu-name'

Repro command: ptxas -v a.ptx
"""
FRONT_END = """CompilationError: at 4:24:
def scale(given, BLOCK: tl.constexpr):
    tl.store(given, twisted(given))
                    ^
AttributeError("'NoneType' object has no attribute 'type'")
"""
REPORTS = [
    (ASSEMBLER, "ptxas fatal   : Value 'sm_97a' is not defined for option 'gpu-name'"),
    (FRONT_END, "CompilationError: at 4:24: AttributeError(\"'NoneType' object has no attribute 'type'\")"),
    ("C++ compile error\n\nCommand: g++", "C++ compile error"),
    ("", "RuntimeError"),
]


@pytest.mark.parametrize(("report", "line"), REPORTS, ids=["assembler", "front end", "other", "nothing"])
def test_the_line_says_why(report: str, line: str) -> None:
    assert _gist(RuntimeError(report)) == line
