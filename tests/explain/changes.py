"""Single changes, one of each kind that a key is made of, and what must be said about each.

Every change makes the recorded factors of a real trace look as if they came from another start. What is
said must name the change, its factor, and what to type to have the recorded value again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.explain.recorded import (
    Edit,
    architecture,
    constant,
    device,
    dtype,
    method,
    op,
    ranks,
    setting,
    target,
    torch_version,
    transformers_version,
)

MODULE = "graphkiln.core.models.backbone"
FUNCTION = "Backbone.forward"


@dataclass(frozen=True)
class Change:
    """One change, and what must come of it.

    `name` is the cause with its factor as it is shown; `remedy` what its remedy must hold; `filter` an
    expression that selects the changed entry and not the unchanged one; `traced` says that only a
    trace can see it; `relevant` whether it can change generated code.
    """

    title: str
    edit: Edit
    name: str
    remedy: str
    filter: str | None = None
    traced: bool = False
    relevant: bool = True

    @property
    def factor(self) -> str:
        return re.split(r"[.:]", self.name)[0]


FAST_MATH = "GRAPHKILN_CPP_FAST_MATH"
OPTION = "compilation/inductor_compile_config"
CHANGES = (
    Change(
        "fast math",
        setting("env", FAST_MATH, True),
        f"env.{FAST_MATH}",
        f"set {FAST_MATH}=1",
        f"env.{FAST_MATH}=1",
    ),
    Change("dtype", dtype, "config.dtype", "--dtype bfloat16", "config.dtype=bfloat16"),
    Change(
        "tokens",
        setting("config", "max_num_batched_tokens", 512),
        "config.max_num_batched_tokens",
        "--max-num-batched-tokens 512",
        "config.max_num_batched_tokens<600",
    ),
    Change(
        "requests",
        setting("config", "max_num_seqs", 64),
        "config.max_num_seqs",
        "--max-num-seqs 64",
        "config.max_num_seqs=64",
        relevant=False,
    ),
    Change(
        "length",
        setting("config", "max_model_len", 512),
        "config.max_model_len",
        "--max-model-len 512",
        "config.max_model_len=512",
    ),
    Change(
        "block size",
        setting("config", "block_size", 32),
        "config.block_size",
        "--block-size 32",
        "config.block_size=32",
        relevant=False,
    ),
    Change(
        "mode",
        setting("config", "compilation/mode", "DYNAMO_TRACE_ONCE"),
        "config.compilation.mode",
        "-cc.mode=DYNAMO_TRACE_ONCE",
        "config.compilation.mode~trace",
    ),
    Change(
        "splitting ops",
        setting("config", "compilation/splitting_ops", ["my::op"]),
        "config.compilation.splitting_ops",
        """-cc.splitting_ops='["my::op"]'""",
        "config.compilation.splitting_ops=my::op",
    ),
    Change(
        "a pass flag",
        setting("config", OPTION, {"reorder_for_locality": False}),
        f"config.{OPTION.replace('/', '.')}.reorder_for_locality",
        "-cc.inductor_compile_config.reorder_for_locality=false",
        "config.compilation.inductor_compile_config.reorder_for_locality=false",
    ),
    Change(
        "inductor option",
        setting("compiler", "inductor/changed", {"epilogue_fusion": False}),
        "compiler.inductor.changed.epilogue_fusion",
        "set torch._inductor.config.epilogue_fusion = False",
        "compiler.inductor.changed.epilogue_fusion=false",
    ),
    Change(
        "inductor variable",
        setting("compiler", "inductor/environment", {"TORCHINDUCTOR_FREEZING": "1"}),
        "compiler.inductor.environment.TORCHINDUCTOR_FREEZING",
        "set TORCHINDUCTOR_FREEZING=1",
        "compiler.inductor.environment.TORCHINDUCTOR_FREEZING=1",
    ),
    Change(
        "functorch variable",
        setting("compiler", "functorch/environment", {"TORCH_FUNCTORCH_X": "1"}),
        "compiler.functorch.environment.TORCH_FUNCTORCH_X",
        "set TORCH_FUNCTORCH_X=1",
        "compiler.functorch.environment.TORCH_FUNCTORCH_X=1",
    ),
    Change(
        "torch",
        torch_version,
        "compiler.torch",
        "pip install torch==2.10.1 --index-url https://download.pytorch.org/whl/cpu",
        "compiler.torch<2.11",
    ),
    Change(
        "torch's sources",
        setting("compiler", "torch_sources", "0" * 64),
        "compiler.torch_sources",
        "reinstall torch",
        "compiler.torch_sources=" + "0" * 64,
    ),
    Change(
        "python",
        setting("compiler", "python", "3.14"),
        "compiler.python",
        "run Python 3.14",
        "compiler.python=3.14",
    ),
    Change(
        "our own passes",
        setting("compiler", "pipeline/compile.split", "0" * 16),
        "compiler.pipeline.compile.split",
        "the graphkiln that the entry was compiled with",
        "compiler.pipeline.compile.split=" + "0" * 16,
    ),
    Change(
        "instruction set", target, "compiler.target.isa", "--target cpu:scalar", "compiler.target.isa=scalar"
    ),
    Change(
        "device",
        device,
        "compiler.target.device",
        "--target cuda",
        "compiler.target.device=cuda",
    ),
    Change(
        "a field of the model",
        setting("config", "model/rms_norm_eps", 0.5),
        "config.model.rms_norm_eps",
        "config.json has rms_norm_eps = 0.5",
        "config.model.rms_norm_eps=0.5",
    ),
    Change(
        "another model",
        architecture,
        "config.model.architectures[0]",
        '"Qwen3ForCausalLM"',
        "config.model.model_type=qwen3",
    ),
    Change(
        "rank count",
        ranks,
        "config.tensor_parallel_size",
        "deploy with tensor_parallel_size=2",
        "config.tensor_parallel_size=2",
    ),
    Change(
        "replicas",
        setting("config", "data_parallel_size", 4),
        "config.data_parallel_size",
        "deploy with data_parallel_size=4",
        "config.data_parallel_size>1",
    ),
    Change(
        "adapters",
        setting("config", "enable_lora", True),
        "config.enable_lora",
        "deploy with enable_lora=True",
        "config.enable_lora=true",
    ),
    Change(
        "speculation",
        setting("config", "num_speculative_tokens", 3),
        "config.num_speculative_tokens",
        "deploy with num_speculative_tokens=3",
        "config.num_speculative_tokens=3",
    ),
    Change(
        "a source line",
        lambda recorded: recorded.rewrite(
            MODULE, "return ", "assert self is not None\n        return ", FUNCTION
        ),
        f"code: {MODULE}:{FUNCTION}",
        f"restore {FUNCTION} in ",
        None,
    ),
    Change(
        "a default argument",
        lambda recorded: recorded.rewrite(
            MODULE, "positions: torch.Tensor)", "positions: torch.Tensor = None)", FUNCTION
        ),
        f"code: {MODULE}:{FUNCTION}",
        f"restore {FUNCTION} in ",
        None,
    ),
    Change(
        "a variable that the model reads",
        lambda recorded: recorded.code["environment"].update(MY_KERNEL="fast"),
        "code: environment MY_KERNEL",
        "set MY_KERNEL=fast",
        "code.backbone.environment.MY_KERNEL=fast",
    ),
    Change(
        "transformers",
        transformers_version,
        "code: package transformers",
        "pip install transformers==5.4.0",
        None,
    ),
    Change("a constant of the model", constant, "code: ", "back, or compile again", None, traced=True),
    Change(
        "a patched method",
        method,
        "code: transformers.activations.SiLUActivation.forward",
        "put the original forward back",
        "code.backbone.classes~liger",
        traced=True,
    ),
    Change(
        "an op's schema",
        op,
        "code: op graphkiln::unified_kv_cache_update.default",
        "register the op",
        None,
        traced=True,
    ),
    Change(
        "torch's state",
        setting("code", "backbone/ambient/allow_tf32", True),
        "code: torch state allow_tf32",
        "restore torch's allow_tf32",
        "code.backbone.ambient.allow_tf32=true",
        traced=True,
    ),
)
