"""How the attention kernels of an entry are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from graphkiln.cli.show.numbers import bytes_text, count_text
from graphkiln.cli.show.table import table
from graphkiln.cli.show.terminal import Style

if TYPE_CHECKING:
    from graphkiln.cache.inspect.attention import Attention


def attention_text(found: Attention) -> str:
    """Returns how many kernels there are, of which name, for which kinds of step, and what they take."""
    layers = count_text(len(found.layers), "layer")
    if not found.artifact:
        return f"{layers}, whose kernels are not in the entry"
    if not found.kernels:
        return f"kernels for {layers}, {bytes_text(found.size)}, in a form that is not known here"
    names = Counter(one.name for one in found.kernels)
    kinds = ", ".join(f"{count} {name}" for name, count in sorted(names.items()))
    steps = f"{count_text(len(found.steps), 'kind')} of step ({', '.join(found.steps)})"
    kernels = f"{count_text(len(found.kernels), 'kernel')} for {layers} and {steps}"
    return f"{kernels}, {bytes_text(found.size)}: {kinds}"


def attention_lines(found: Sequence[Attention], style: Style) -> list[str]:
    """Returns every kernel with what it serves and what its code takes."""
    rows = [
        (
            kernel.name,
            kernel.step or "every step",
            bytes_text(kernel.size),
            str(kernel.facts.get("registers", "")),
            ", ".join(map(str, dict.fromkeys(kernel.facts.get("pointers") or ()))),
        )
        for one in found
        for kernel in one.kernels
    ]
    return table(("attention", "step", ">size", ">registers", "tensors"), rows, style) if rows else []
