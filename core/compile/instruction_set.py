"""C++ kernels for the target's instruction set and not for this machine's.

Private torch calls: `cpu_vec_isa.Vec*`, `cpp_builder._get_optimization_cflags`; tried on torch
2.11.0, 2.13.0, 2.14.1 and 2.15.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._inductor import cpp_builder, cpu_vec_isa


def vector_sets(name: str) -> list[Any]:
    """Returns Inductor's vector sets for a target's `isa`: one, or none for scalar code."""
    return [_VEC_ISA[name]()] if name in _VEC_ISA else []


def flags_for(march: str) -> Callable[..., tuple[list[str], list[str]]]:
    """Returns Inductor's own choice of compiler flags, but for the target's architecture and not this CPU's.

    An option says so since 2.13; before it, `-march=native` is fixed in the function.
    """
    original = cpp_builder._get_optimization_cflags

    def flags(*args: Any, **kwargs: Any) -> tuple[list[str], list[str]]:
        cflags, ldflags = original(*args, **kwargs)
        return [flag for flag in cflags if not flag.startswith("march=")] + [f"march={march}"], ldflags

    return flags


class _Avx512(cpu_vec_isa.VecAVX512):
    """AVX-512 as the target states it: asking would compile a probe, and answer for this CPU."""

    def __bool__(self) -> bool:  # type: ignore[override]
        return True


class _Avx2(cpu_vec_isa.VecAVX2):
    """AVX2 as the target states it."""

    def __bool__(self) -> bool:
        return True


class _Neon(cpu_vec_isa.VecNEON):
    """NEON as the target states it."""

    def __bool__(self) -> bool:
        return True


_VEC_ISA: dict[str, Callable[[], Any]] = {"avx512": _Avx512, "avx2": _Avx2, "neon": _Neon}
