"""The compilation configuration as a user gives it."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from graphkiln.core.passes.config import PassConfig, user_passes

DEFAULT_SPLITTING_OPS = ("graphkiln::unified_kv_cache_update", "graphkiln::unified_attention_with_output")


class CompilationMode(enum.IntEnum):
    """How a decorated module is run. Values and names are those that vLLM users know."""

    NONE = 0
    VLLM_COMPILE = 3


@dataclass(frozen=True)
class CompilationConfig:
    """What to compile and how.

    `optimization_level` is -O0 to -O3 (O0 runs eager); `mode` wins over it. `splitting_ops` None means the
    attention ops. `inductor_compile_config` holds Inductor options by their dotted names.
    `pass_config` switches our passes; `inductor_passes` adds the user's own, `module:Class` or
    `module:function` each.
    `cache_dir` is a folder that keeps the entries instead of the cache root; keys are stored and
    checked there all the same.
    """

    optimization_level: int = 2
    mode: CompilationMode | None = None
    backend: str = "inductor"
    splitting_ops: tuple[str, ...] | None = None
    inductor_compile_config: Mapping[str, Any] = field(default_factory=dict)
    pass_config: PassConfig = field(default_factory=PassConfig)
    inductor_passes: tuple[str, ...] = ()
    cache_dir: str | None = None

    def __post_init__(self) -> None:
        if type(self.optimization_level) is not int or not 0 <= self.optimization_level <= 3:
            raise ValueError(f"optimization_level: {self.optimization_level!r} is not one of 0, 1, 2, 3")
        if self.backend != "inductor":
            raise ValueError(f"backend: {self.backend!r} is not one of inductor")
        if self.splitting_ops is not None:
            _check_ops(self.splitting_ops)
        if not isinstance(self.inductor_compile_config, Mapping):
            raise ValueError("inductor_compile_config: not a mapping of option names to values")
        if "post_grad_custom_post_pass" in self.inductor_compile_config:
            raise ValueError("post_grad_custom_post_pass: name the pass in inductor_passes, as module:name")
        object.__setattr__(self, "pass_config", PassConfig.from_user(self.pass_config))
        object.__setattr__(self, "inductor_passes", user_passes(self.inductor_passes))

    @property
    def compiles(self) -> bool:
        """Whether decorated modules are compiled at all."""
        return self.effective_mode is CompilationMode.VLLM_COMPILE

    @property
    def effective_mode(self) -> CompilationMode:
        """The mode, from the level where none was given."""
        if self.mode is not None:
            return self.mode
        return CompilationMode.NONE if self.optimization_level == 0 else CompilationMode.VLLM_COMPILE

    @property
    def effective_splitting_ops(self) -> tuple[str, ...]:
        """The ops at which the graph is cut."""
        return DEFAULT_SPLITTING_OPS if self.splitting_ops is None else self.splitting_ops

    @classmethod
    def from_user(cls, values: Mapping[str, Any]) -> CompilationConfig:
        """Returns the configuration that a user wrote as `{field: value}`.

        Raises ValueError, in one line, for an unknown field (with the nearest name) or a bad value.
        """
        known = [item.name for item in fields(cls)]
        given = dict(values)
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else "fields are " + ", ".join(known)
                raise ValueError(f"compilation config has no field {name!r}: {hint}")
        if "mode" in given:
            given["mode"] = _mode(given["mode"])
        if isinstance(given.get("splitting_ops"), (list, tuple)):
            given["splitting_ops"] = tuple(given["splitting_ops"])
        return cls(**given)


def _mode(value: Any) -> CompilationMode | None:
    if value is None or isinstance(value, CompilationMode):
        return value
    names = ", ".join(f"{mode.name} ({mode.value})" for mode in CompilationMode)
    try:
        if isinstance(value, str) and not value.isdigit():
            return CompilationMode[value.upper()]
        return CompilationMode(int(value))
    except (KeyError, ValueError, TypeError):
        raise ValueError(f"mode: {value!r} is not one of {names}") from None


def _check_ops(names: Any) -> None:
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError("splitting_ops: not a list of op names")
    for name in names:
        if name.count("::") != 1:
            raise ValueError(f"splitting_ops: {name!r} is not namespace::op")
