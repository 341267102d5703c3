"""The compilation configuration as a user gives it: what he set, and None where he left it to us."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from graphkiln.core.config import capture_sizes, custom_ops, ranges, splitting
from graphkiln.core.config.dynamic_shapes import DynamicShapesConfig, dynamic_shapes_of
from graphkiln.core.config.fields import flag, integer, mapping, member, refuse_unknown, text
from graphkiln.core.config.levels import level_mode
from graphkiln.core.config.modes import CompilationMode, CUDAGraphMode, PerformanceMode, level_of, mode_of
from graphkiln.core.config.passes_config import PassConfig, passes_of
from graphkiln.core.passes.config import user_passes

# No sizes, or the default ones? Both could be meant, and they are far apart.
_NULL_IS_UNCLEAR = ("cudagraph_capture_sizes", "max_cudagraph_capture_size")


@dataclass(frozen=True)
class CompilationConfig:
    """What to compile and how, as asked. `resolve` makes of it what is in effect; what is set here wins.

    `optimization_level` is O0 to O3. `splitting_ops` None means attention and the writes of the KV
    cache, an empty list that nothing cuts. `compile_sizes` may hold the word cudagraph_capture_sizes.
    `inductor_compile_config` holds Inductor options by their dotted names, `inductor_passes` the
    user's own passes, `module:Class` or `module:function` each. `cache_dir` is a folder that keeps the
    entries instead of the cache root; keys are stored and checked there all the same.

    Names of modes and lists are taken as well as enumerations and tuples. Raises ValueError, in one
    line that names the field.
    """

    optimization_level: int = 2
    performance_mode: PerformanceMode = PerformanceMode.BALANCED
    enforce_eager: bool = False
    mode: CompilationMode | None = None
    backend: str = "inductor"
    custom_ops: tuple[str, ...] = ()
    splitting_ops: tuple[str, ...] | None = None
    use_inductor_graph_partition: bool | None = None
    ir_enable_torch_wrap: bool | None = None
    pass_config: PassConfig = field(default_factory=PassConfig)
    dynamic_shapes_config: DynamicShapesConfig = field(default_factory=DynamicShapesConfig)
    inductor_compile_config: Mapping[str, Any] = field(default_factory=dict)
    inductor_passes: tuple[str, ...] = ()
    compile_sizes: tuple[int | str, ...] | None = None
    compile_ranges_endpoints: tuple[int, ...] | None = None
    cudagraph_mode: CUDAGraphMode | None = None
    cudagraph_capture_sizes: tuple[int, ...] | None = None
    max_cudagraph_capture_size: int | None = None
    cudagraph_num_of_warmups: int | None = None
    cudagraph_copy_inputs: bool = False
    cache_dir: str | None = None

    def __post_init__(self) -> None:
        for name, read in _READERS.items():
            value = getattr(self, name)
            if value is not None or name not in _MAY_BE_NONE:
                object.__setattr__(self, name, read(value))

    @property
    def asked_mode(self) -> CompilationMode:
        """The mode by what the user wrote, before anything lowers it."""
        if self.enforce_eager:
            return CompilationMode.NONE
        return level_mode(self.optimization_level) if self.mode is None else self.mode

    @property
    def compiles(self) -> bool:
        """Whether decorated modules are to be compiled at all."""
        return self.asked_mode is not CompilationMode.NONE

    @classmethod
    def from_user(cls, values: Mapping[str, Any]) -> CompilationConfig:
        """Returns the configuration that a user wrote as `{field: value}`.

        An explicit null says the same as leaving the field out, where a field can be left to us.
        Raises ValueError, in one line, for an unknown field (with the nearest name) or a bad value.
        """
        refuse_unknown("compilation config", values, [item.name for item in fields(cls)])
        for name, value in values.items():
            if value is None and (name in _NULL_IS_UNCLEAR or name not in _MAY_BE_NONE):
                raise ValueError(f"{name}: null is no value; leave the field out for its default")
        return cls(**values)

    def as_asked(self) -> dict[str, Any]:
        """Returns the level, and the fields that differ from their defaults, as plain data without paths."""
        plain = CompilationConfig(optimization_level=self.optimization_level)
        changed = {
            name: _plain(value)
            for name, value in vars(self).items()
            if value != getattr(plain, name) and name != "cache_dir"
        }
        return {"optimization_level": self.optimization_level, **changed}


_MAY_BE_NONE = {item.name for item in fields(CompilationConfig) if item.default is None}


def _inductor_options(value: object) -> Mapping[str, Any]:
    given = mapping("inductor_compile_config", value)
    if "post_grad_custom_post_pass" in given:
        raise ValueError("post_grad_custom_post_pass: name the pass in inductor_passes, as module:name")
    return given


_READERS: dict[str, Callable[[Any], Any]] = {
    "inductor_passes": user_passes,
    "optimization_level": level_of,
    "performance_mode": lambda value: member("performance_mode", value, PerformanceMode),
    "enforce_eager": lambda value: flag("enforce_eager", value),
    "mode": mode_of,
    # An empty name is how vLLM writes its default.
    "backend": lambda value: text("backend", value) or "inductor",
    "custom_ops": custom_ops.checked_ops,
    "splitting_ops": splitting.checked_ops,
    "use_inductor_graph_partition": lambda value: flag("use_inductor_graph_partition", value),
    "ir_enable_torch_wrap": lambda value: flag("ir_enable_torch_wrap", value),
    "pass_config": passes_of,
    "dynamic_shapes_config": dynamic_shapes_of,
    "inductor_compile_config": lambda value: _inductor_options(value),
    "compile_sizes": ranges.checked_sizes,
    "compile_ranges_endpoints": ranges.checked_endpoints,
    "cudagraph_mode": lambda value: member("cudagraph_mode", value, CUDAGraphMode),
    "cudagraph_capture_sizes": capture_sizes.checked_sizes,
    # How small a maximum may be depends on whether graphs are captured at all.
    "max_cudagraph_capture_size": lambda value: integer("max_cudagraph_capture_size", value, least=-(2**31)),
    "cudagraph_num_of_warmups": lambda value: integer("cudagraph_num_of_warmups", value, least=0),
    "cudagraph_copy_inputs": lambda value: flag("cudagraph_copy_inputs", value),
    "cache_dir": lambda value: text("cache_dir", value),
}


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, PassConfig):
        return {name: inner for name, inner in vars(value).items() if inner != getattr(PassConfig(), name)}
    if isinstance(value, DynamicShapesConfig):
        return value.as_json()
    if isinstance(value, tuple):
        return list(value)
    return {str(name): shown(inner) for name, inner in value.items()} if isinstance(value, Mapping) else value


def shown(value: object) -> Any:
    """Returns an Inductor option for people to read; it is the factor that must be exact."""
    return value if value is None or type(value) in (bool, int, float, str) else str(value)
