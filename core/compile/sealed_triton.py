"""Running sealed Triton kernels: machine code and a launch, no Triton and no compiler.

Private torch calls: `torch._C._StaticCudaLauncher`, torch's own launcher for Inductor's kernels; tried
on torch 2.11.0. `_load_kernel` gives three values there and four since 2.13, where nothing ran yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

# As Inductor decides: code that spills more registers than this is not tried against code that does not.
_SPILLS = 16
_WARMUPS, _ROUNDS = 3, 10

# A launch of one configuration: `launch(*arguments, stream=...)`.
Launch = Callable[..., None]


class SealedTriton:
    """One kernel. With several configurations the first call tries them on its arguments and keeps one."""

    def __init__(
        self, name: str, described: Mapping[str, Any], path: Callable[[str], Path], device: int
    ) -> None:
        self.name = name
        self.title = str(described["name"])
        self.configs = [dict(variant["config"]) for variant in described["variants"]]
        self.chosen: int | None = None
        self._parameters: Sequence[str] = described["parameters"]
        self._mutated = frozenset(described["mutated"])
        self._zeroed = frozenset(described["zeroed"])
        self._variants = [load_variant(variant, described, path, device) for variant in described["variants"]]
        self.run: Launch = self._first
        if len(self._variants) == 1:
            self._keep(0)

    def _keep(self, index: int) -> None:
        # In the place of the method: a kernel's launch is what a step's host time is made of.
        self.chosen, self.run = index, self._variants[index][0]

    def _first(self, *args: Any, stream: int) -> None:
        if torch.cuda.is_current_stream_capturing():
            # Nothing can be timed inside a capture, and the choice stays open.
            self._variants[0][0](*args, stream=stream)
            return
        self._keep(self._fastest(args, stream))
        self.run(*args, stream=stream)

    def _fastest(self, args: Sequence[Any], stream: int) -> int:
        seconds = self.timed(args, stream)
        return min(seconds, key=lambda index: seconds[index])

    def timed(self, args: Sequence[Any], stream: int) -> dict[int, float]:
        """Returns the median milliseconds of each configuration on these arguments, by its place.

        Left out are those whose code spills, where there is one whose code does not.
        """
        spills = [spilled for _, spilled in self._variants]
        tried = [index for index, count in enumerate(spills) if count <= _SPILLS] or [*range(len(spills))]
        return {index: self._time(self._variants[index][0], args, stream) for index in tried}

    def launch(self, index: int, args: Sequence[Any], stream: int) -> None:
        """Launches one configuration."""
        self._variants[index][0](*args, stream=stream)

    def _time(self, launch: Launch, args: Sequence[Any], stream: int) -> float:
        # Here and not above: a start on a CPU does not need it, and it takes decimal and fractions along.
        from statistics import median

        values = [
            _copy(value) if name in self._mutated | self._zeroed else value
            for name, value in zip(self._parameters, args, strict=True)
        ]
        times = []
        for round_ in range(_WARMUPS + _ROUNDS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            launch(*values, stream=stream)
            end.record()
            end.synchronize()
            if round_ >= _WARMUPS:
                times.append(float(begin.elapsed_time(end)))
        return median(times)


def _copy(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    copied = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return copied.copy_(value)


def load_variant(
    variant: Mapping[str, Any], described: Mapping[str, Any], path: Callable[[str], Path], device: int
) -> tuple[Launch, int]:
    """Returns the launch of one configuration, and how many registers its code spills."""
    launcher: Any = torch._C._StaticCudaLauncher
    # Since 2.13 the module comes before the three.
    *_, function, _, spills = launcher._load_kernel(
        str(path(variant["cubin"])), described["name"], variant["shared"], device
    )
    return launch_of(variant, described["parameters"], launcher._launch_kernel, function), spills


def launch_of(variant: Mapping[str, Any], parameters: Sequence[str], call: Any, function: int) -> Launch:
    """Returns a function that launches a configuration through `call`, written out for its parameters."""
    arguments = "".join(f"{name}, " for name in [*variant["arguments"], *["None"] * variant["nulls"]])
    types = variant["types"] + "O" * variant["nulls"]
    lines = [
        f"def launch({''.join(f'{name}, ' for name in parameters)}stream):",
        *(f"    {line}" for line in variant["prefix"]),
        f"    _call(_function, {', '.join(variant['grid'])}, {variant['warps']}, {variant['shared']}, "
        f"{types!r}, ({arguments}), stream)",
    ]
    namespace: dict[str, Any] = {"_call": call, "_function": function}
    exec("\n".join(lines), namespace)
    launch: Launch = namespace["launch"]
    return launch
