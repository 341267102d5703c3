"""Breakable CUDA graphs: the code of a model marks where a capture breaks, instead of compiled pieces."""

from __future__ import annotations

from graphkiln.core.config.facts import Facts

# Their attention does not let itself be cut out by a compiler, so that they bring breaks of their own.
BREAKABLE_ARCHITECTURES = frozenset(
    {
        "DeepSeekV4MTPModel", "DeepseekV32ForCausalLM", "DeepseekV32MTPModel", "DeepseekV41ForCausalLM",
        "DeepseekV4ForCausalLM", "DeepseekV4ForConditionalGeneration", "Dots3NoteForCausalLM",
        "Dots3NoteMTPModel", "Glm5NextForCausalLM", "Glm5NextForConditionalGeneration", "Glm5NextMTPModel",
        "GlmMoeDsaForCausalLM", "HYV4ForCausalLM", "HYV4MTPModel", "InklingForCausalLM",
        "InklingForConditionalGeneration", "KimiK3ForConditionalGeneration", "KimiK3MTPModel",
        "KimiLinearForCausalLM", "MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration",
        "Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration", "Qwen4ExpMTP",
    }
)  # fmt: skip


def uses_breakable_graphs(facts: Facts) -> bool:
    """Whether graphs are broken at marked calls: the user's word, else the model's habit."""
    if not facts.static_graphs:
        return False
    return facts.architecture in BREAKABLE_ARCHITECTURES if facts.breakable is None else facts.breakable
