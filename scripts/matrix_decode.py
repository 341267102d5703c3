"""Decodes greedily after a fixed prompt, for `matrix.py`, as a process of its own; prints the tokens as JSON.

    matrix_decode.py transformers|graphkiln MODEL LARGEST CACHE_ROOT [OPTION ...]

OPTIONs are those of a command line that say how to compile.
"""

from __future__ import annotations

import json
import sys

PROMPT = [1, 4093, 198, 2683, 314, 260, 3575, 282, 4649, 47, 1, 198, 504, 3575, 314, 1691, 28, 284, 357]
NEW_TOKENS = 16


def main() -> None:
    """Runs what the arguments name."""
    how, model, largest, root, *words = sys.argv[1:]
    tokens = transformers(model) if how == "transformers" else graphkiln(model, int(largest), root, words)
    print(json.dumps(tokens))


def transformers(model: str) -> list[int]:
    """Returns what transformers makes of it, with its own attention and cache."""
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager").eval()
    prompt = torch.tensor([PROMPT])
    made = loaded.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW_TOKENS, do_sample=False
    )
    tokens: list[int] = made[0, len(PROMPT) :].tolist()
    return tokens


def graphkiln(model: str, largest: int, root: str, words: list[str]) -> list[int]:
    """Returns what a runner makes of it, one request over a paged cache, a token at a time."""
    from graphkiln.cli.argv import CONFIG, LEVEL, rewrite
    from graphkiln.core import CompilationConfig, Deployment, load_model

    given = iter(rewrite(words))
    asked = {word: next(given) for word in given}
    config = {**json.loads(asked.get(CONFIG, "{}")), "optimization_level": asked.get(LEVEL, 2)}
    deployment = Deployment(model, max_num_batched_tokens=largest)
    runner = load_model(deployment, CompilationConfig.from_user(config), cache_root=root)
    return runner.generate_greedy(PROMPT, NEW_TOKENS)


if __name__ == "__main__":
    main()
