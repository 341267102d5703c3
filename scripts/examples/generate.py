"""Continues a prompt greedily: the cache is hit, or the model is compiled first.

    python scripts/examples/generate.py MODEL_FOLDER --prompt "The capital of France is"
    python scripts/examples/generate.py preset:llama --tokens 1,2,3

A preset has no tokenizer: its prompt and its continuation are token ids.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from graphkiln.core import Deployment, load_model


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--prompt", help="text; needs tokenizer.json in the model's folder")
    given.add_argument("--tokens", type=_token_ids, help="token ids, separated by commas")
    parser.add_argument("--max-new-tokens", type=int, default=24)
    parser.add_argument("--max-model-len", type=int, default=None)
    arguments = parser.parse_args()

    started = time.perf_counter()
    runner = load_model(Deployment(arguments.model, max_model_len=arguments.max_model_len))
    loaded = time.perf_counter()
    tokenizer = _tokenizer(arguments.model) if arguments.prompt is not None else None
    prompt_ids = tokenizer.encode(arguments.prompt).ids if tokenizer else arguments.tokens
    before = time.perf_counter()
    new_ids = runner.generate_greedy(prompt_ids, arguments.max_new_tokens)
    generated = time.perf_counter()

    print(tokenizer.decode([*prompt_ids, *new_ids]) if tokenizer else ",".join(map(str, new_ids)))
    outcome = runner.report.outcome if runner.report else "eager"
    print(
        f"{outcome}: model ready in {loaded - started:.1f} s, "
        f"{len(new_ids)} tokens in {generated - before:.1f} s",
        file=sys.stderr,
    )
    return 0


def _token_ids(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _tokenizer(model: str) -> Any:
    # The tokenizer alone: transformers would take longer to import than the model takes to start.
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(Path(model).expanduser() / "tokenizer.json"))


if __name__ == "__main__":
    sys.exit(main())
