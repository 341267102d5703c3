"""The configuration in effect: every field decided, split into what can change code and what cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graphkiln.core.config.compilation import shown
from graphkiln.core.config.custom_ops import normal_form
from graphkiln.core.config.dynamic_shapes import DynamicShapesConfig
from graphkiln.core.config.modes import CompilationMode, CUDAGraphMode
from graphkiln.core.config.normalise import normalise
from graphkiln.core.config.passes_config import PassConfig, pass_values
from graphkiln.core.config.ranges import CompileRange, CompileRanges


@dataclass(frozen=True)
class EffectiveConfig:
    """What a start does.

    `capture_sizes` may be filled though the CUDA graph mode ended as NONE: the mode is asked first.
    `single_size_options` are the Inductor options of a compile for one token count only; what the user
    set wins over them.
    """

    mode: CompilationMode
    backend: str
    custom_ops: tuple[str, ...]
    splitting_ops: tuple[str, ...]
    use_inductor_graph_partition: bool
    ir_enable_torch_wrap: bool
    passes: PassConfig
    dynamic_shapes: DynamicShapesConfig
    ranges: CompileRanges
    inductor_compile_config: Mapping[str, Any]
    single_size_options: Mapping[str, Any]
    breakable: bool
    cudagraph_mode: CUDAGraphMode
    capture_sizes: tuple[int, ...]
    warmups: int
    copy_inputs: bool

    @property
    def compiles(self) -> bool:
        """Whether anything is compiled at all."""
        return self.mode is not CompilationMode.NONE

    @property
    def cutting_ops(self) -> tuple[str, ...]:
        """The ops at which the traced graph is cut; none where Inductor partitions it."""
        return () if self.use_inductor_graph_partition else self.splitting_ops

    @property
    def partition_ops(self) -> tuple[str, ...]:
        """The ops at which Inductor partitions a piece; none where the traced graph was cut."""
        return self.splitting_ops if self.use_inductor_graph_partition else ()

    def inductor_options(self, compiled: CompileRange) -> dict[str, Any]:
        """Returns the Inductor options under which a range is compiled."""
        extra = self.single_size_options if compiled.single else {}
        return {**extra, **self.inductor_compile_config}

    def code_values(self) -> dict[str, Any]:
        """Returns what can change generated code, in one form for one meaning: the config factor's part.

        CUDA graphs replay the code that there is, so that neither their mode nor their sizes are here;
        sizes that `compile_sizes` took from them are. Raises NotCanonical for an option without a
        canonical form.
        """
        options = {**self.inductor_compile_config}
        single = {**self.single_size_options} if self.ranges.single_sizes else {}
        return {
            "mode": self.mode.name,
            "backend": self.backend,
            "custom_ops": normal_form(self.custom_ops),
            "splitting_ops": sorted(set(self.splitting_ops)),
            "use_inductor_graph_partition": self.use_inductor_graph_partition,
            "ir_enable_torch_wrap": self.ir_enable_torch_wrap,
            "passes": pass_values(self.passes),
            "dynamic_shapes": self.dynamic_shapes.as_json(),
            "ranges": [[found.start, found.end] for found in self.ranges.ranges],
            "single_sizes": list(self.ranges.single_sizes),
            "single_size_options": {
                name: normalise(value, f"config.single_size_options.{name}") for name, value in single.items()
            },
            "inductor_compile_config": {
                name: normalise(value, f"config.inductor_compile_config.{name}")
                for name, value in options.items()
            },
        }

    def cudagraph_plan(self) -> dict[str, Any]:
        """Returns what is captured: of an entry's header, and never of its key."""
        on = self.cudagraph_mode is not CUDAGraphMode.NONE
        sizes = self.capture_sizes if on else ()
        return {
            "mode": self.cudagraph_mode.name,
            "capture_sizes": list(sizes),
            "max_capture_size": max(sizes, default=0),
            "num_of_warmups": self.warmups,
            "copy_inputs": self.copy_inputs,
            "breakable": self.breakable,
        }

    def as_json(self) -> dict[str, Any]:
        """Returns all of it for people and programs to read."""
        return {
            "mode": self.mode.name,
            "backend": self.backend,
            "custom_ops": list(self.custom_ops),
            "splitting_ops": list(self.splitting_ops),
            "use_inductor_graph_partition": self.use_inductor_graph_partition,
            "ir_enable_torch_wrap": self.ir_enable_torch_wrap,
            "passes": list(self.passes.on),
            "dynamic_shapes_config": self.dynamic_shapes.as_json(),
            "compile_ranges": [str(found) for found in self.ranges.ranges],
            "compile_sizes": list(self.ranges.sizes),
            "inductor_compile_config": {
                name: shown(value) for name, value in self.inductor_compile_config.items()
            },
            "cudagraphs": self.cudagraph_plan(),
        }
