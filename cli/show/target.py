"""How descriptions of devices are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from graphkiln.cli.show.numbers import bytes_text
from graphkiln.cli.show.table import below, facts, table
from graphkiln.cli.show.terminal import Style

if TYPE_CHECKING:
    from graphkiln.core.target.cpu import CpuTarget
    from graphkiln.core.target.description import Description


def list_lines(described: Sequence[Description], cpus: Sequence[CpuTarget], style: Style) -> list[str]:
    """Returns a table of GPUs and one of CPUs."""
    rows = [
        (
            one.title,
            one.device.name,
            f"{one.device.major}.{one.device.minor}",
            str(one.device.multi_processor_count),
            bytes_text(one.device.total_memory),
            one.versions.torch,
            one.origin,
        )
        for one in described
    ]
    head = ("target", "device", ">capability", ">SMs", ">memory", "torch", "origin")
    on_cpu = [(one.name, one.arch, one.march) for one in cpus]
    return [*table(head, rows, style), *below(table(("target", "machine", "compiled for"), on_cpu, style))]


def description_lines(found: Description, style: Style) -> list[str]:
    """Returns one description, a line a fact."""
    device, versions = found.device, found.versions
    return facts(
        [
            ("target", found.title),
            ("device", device.name),
            ("capability", f"{device.major}.{device.minor}"),
            ("SMs", str(device.multi_processor_count)),
            ("memory", bytes_text(device.total_memory)),
            ("L2", bytes_text(device.L2_cache_size)),
            ("shared memory", f"{bytes_text(device.shared_memory_per_block_optin)} a block"),
            ("registers", f"{device.regs_per_multiprocessor} an SM"),
            ("threads", f"{device.max_threads_per_multi_processor} an SM"),
            ("torch", versions.torch),
            ("torch files", (versions.torch_sources or "not recorded")[:12]),
            ("CUDA", versions.cuda),
            ("triton", versions.triton or "none"),
            ("ptxas", versions.ptxas or "none"),
            ("python", versions.python),
            ("attention", attention_text(found.attention)),
            ("origin", found.origin),
            ("note", found.note),
        ],
        style,
    )


def attention_text(rows: Mapping[str, str] | None) -> str:
    """Returns the kernels that torch takes for attention, those of one dtype together."""
    if rows is None:
        return "not recorded"
    kernels: dict[str, set[str]] = {}
    for kind, kernel in rows.items():
        kernels.setdefault(kind.partition(" ")[0], set()).add(kernel)
    return "; ".join(f"{dtype}: {', '.join(sorted(found))}" for dtype, found in kernels.items())
