"""CPU targets: an instruction set that kernels are built for, and what a machine must have to run them."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from graphkiln.core.errors import BadTarget

if TYPE_CHECKING:
    import torch

# The micro-architecture levels of the x86-64 psABI, by the names that the Linux kernel prints.
_V3 = ("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")


@dataclass(frozen=True)
class CpuTarget:
    """A CPU target: `isa` is Inductor's vector set, `march` the compiler's name, `features` what it needs."""

    arch: str
    isa: str
    march: str
    features: tuple[str, ...]

    @property
    def kind(self) -> Literal["cpu"]:
        """The kind of device."""
        return "cpu"

    @property
    def torch_device(self) -> torch.device:
        """Where a model for it lies in this process."""
        import torch

        return torch.device("cpu")

    @property
    def name(self) -> str:
        """How a person writes it."""
        return f"cpu:{self.isa}"

    def as_factor(self) -> dict[str, Any]:
        """What of it belongs to the compiler factor."""
        return {"device": "cpu", "arch": self.arch, "isa": self.isa, "march": self.march}

    def missing(self, present: frozenset[str]) -> tuple[str, ...]:
        """Returns the features that code for this target needs and a machine with `present` lacks."""
        return tuple(feature for feature in self.features if feature not in present)

    def missing_here(self) -> tuple[str, ...]:
        """Returns what code for this target needs and this CPU lacks."""
        return self.missing(cpu_features())


_X86 = {
    "avx512": CpuTarget("x86_64", "avx512", "x86-64-v4", _V4),
    "avx2": CpuTarget("x86_64", "avx2", "x86-64-v3", _V3),
    "scalar": CpuTarget("x86_64", "scalar", "x86-64", ()),
}
_ARM = {
    "neon": CpuTarget("aarch64", "neon", "armv8-a", ("asimd",)),
    "scalar": CpuTarget("aarch64", "scalar", "armv8-a", ()),
}


def cpu_targets() -> tuple[CpuTarget, ...]:
    """Returns the targets that this machine's compiler can build for, the richest first."""
    return tuple((_ARM if platform.machine() in ("aarch64", "arm64") else _X86).values())


def cpu_target(name: str | None = None) -> CpuTarget:
    """Returns the target called `cpu` or `cpu:ISA`; `cpu` is the richest set that this machine runs.

    Raises BadTarget, listing the good names, for another name.
    """
    table = {one.isa: one for one in cpu_targets()}
    _, colon, wanted = (name or "cpu").partition(":")
    if colon:
        if wanted not in table:
            raise BadTarget(
                f"target {name}",
                "unknown instruction set",
                "use one of " + ", ".join(f"cpu:{isa}" for isa in table),
            )
        return table[wanted]
    present = cpu_features()
    return next(target for target in table.values() if not target.missing(present))


def cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Returns the instruction-set flags of this machine, as the Linux kernel names them.

    Where the kernel does not print them, what torch reports of itself stands in.
    """
    try:
        text = cpuinfo.read_text(encoding="ascii", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    if found:
        return frozenset(found.group(1).split())
    import torch

    capability = torch.backends.cpu.get_cpu_capability().lower()
    return frozenset({"avx512": _V4, "avx2": _V3}.get(capability, ()))
