"""What an entry records, to be changed, and the changes that touch more than one value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graphkiln.cache.factors.functions import index_source
from graphkiln.core.compile.compiler_factor import pipeline_digest, triton_factor

Record = dict[str, Any]
Edit = Callable[["Recorded"], None]


@dataclass
class Recorded:
    """What an entry holds, to be changed: factors, the wiring's sources, texts, versions, ranks."""

    factors: Record
    sources: Record
    texts: dict[str, str]
    versions: dict[str, str]
    ranks: list[str]

    @property
    def code(self) -> Record:
        """The code factor of the one part."""
        code: Record = self.factors["code"]["backbone"]
        return code

    def rewrite(self, module: str, old: str, new: str, function: str) -> None:
        """Changes a module's text, with the digests that its new text gives."""
        text = self.texts[module]
        assert old in text
        self.texts[module] = text.replace(old, new, 1)
        digest = index_source(self.texts[module])[function]
        before = self.code["functions"][module][function]
        assert digest != before
        self.code["functions"][module][function] = digest
        self.sources[module]["functions"][function] = digest
        self.sources[module]["file_sha256"] = "0" * 64
        replace_text(self.code["classes"], before, digest)


def replace_text(value: Any, old: str, new: str) -> None:
    """Puts `new` in the place of every text `old` inside lists and mappings."""
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        if inner == old:
            value[key] = new
        elif isinstance(inner, (dict, list)):
            replace_text(inner, old, new)


def setting(factor: str, path: str, value: Any) -> Edit:
    """Returns the edit that puts `value` at a path of names joined by `/` in a factor."""

    def edit(recorded: Recorded) -> None:
        *outer, last = path.split("/")
        place = recorded.factors[factor]
        for name in outer:
            place = place[name]
        assert place.get(last) != value
        place[last] = value

    return edit


def dtype(recorded: Recorded) -> None:
    recorded.factors["config"]["dtype"] = "bfloat16"
    replace_text(recorded.code["parameters"], "torch.float32", "torch.bfloat16")
    replace_text(recorded.code["values"], "torch.float32", "torch.bfloat16")


def torch_version(recorded: Recorded) -> None:
    compiler = recorded.factors["compiler"]
    compiler["torch"], compiler["torch_sources"] = "2.10.1+cpu", "0" * 64
    recorded.code["ambient"]["allow_tf32"] = "none"
    recorded.versions["torch"] = "2.10.1+cpu"


def target(recorded: Recorded) -> None:
    recorded.factors["compiler"]["target"].update(isa="scalar", march="x86-64")


def device(recorded: Recorded) -> None:
    compiler = recorded.factors["compiler"]
    compiler["target"]["device"] = "cuda"
    compiler["pipeline"] = pipeline_digest("cuda")
    compiler["triton"] = triton_factor()


def architecture(recorded: Recorded) -> None:
    recorded.factors["config"]["model"].update(
        architectures=["Qwen3ForCausalLM"], model_type="qwen3", hidden_size=96, num_hidden_layers=7
    )
    recorded.code["parameters"].append(["parameter", "q_norm", "torch.float32", [16], [1], 0, None, None])
    recorded.code["functions"]["transformers.models.llama.modeling_llama"] = {}


def ranks(recorded: Recorded) -> None:
    recorded.factors["config"]["tensor_parallel_size"] = 2
    for row in recorded.code["parameters"]:
        row[3] = [max(1, size // 2) for size in row[3]]


def transformers_version(recorded: Recorded) -> None:
    recorded.versions["transformers"] = "5.4.0"
    for module, functions in recorded.code["functions"].items():
        if module.startswith("transformers."):
            recorded.sources[module]["file_sha256"] = "1" * 64
            for name in functions:
                functions[name] = recorded.sources[module]["functions"][name] = "1" * 64


def constant(recorded: Recorded) -> None:
    record = next(
        row for row in recorded.code["values"] if row["kind"] == "constant" and row["value"][0] in "fi"
    )
    record["value"] = ["f", (7.25).hex()]


def method(recorded: Recorded) -> None:
    methods = recorded.code["classes"]["transformers.activations.SiLUActivation"]
    methods["forward"] = ["function", "liger_kernel.nn", "swiglu", "0" * 64]


def op(recorded: Recorded) -> None:
    ops = recorded.code["ops"]
    ops["graphkiln::unified_kv_cache_update.default"]["schema"] += " "
