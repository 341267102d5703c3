"""One start of `bench.py`, as a process of its own: says when its first output was there.

    bench_cases.py CASE MODEL_FOLDER

Prints one line of JSON: `at`, the system's monotonic clock, `sum`, the sum of the output's absolute
values, by which rows are held against each other, and `since`, the seconds since the weights were in
memory, lazy imports included, for the cases that load them first.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOKENS = 16
_loaded: list[float] = []


def main() -> None:
    """Runs the case that the arguments name."""
    case, model = sys.argv[1], sys.argv[2]
    output = {
        "bare": lambda model: bare(model) and None,
        "graphkiln": graphkiln,
        "graphkiln-hit": graphkiln_hit,
        "graphkiln-weights-first": weights_first(graphkiln),
        "graphkiln-aot": weights_first(graphkiln_aot),
        "torch-compile": torch_compile,
    }[case](model)
    at = time.monotonic()
    total = float(output.double().abs().sum()) if output is not None else 0.0
    since = at - _loaded[0] if _loaded else None
    print(json.dumps({"at": at, "sum": total, "since": since}))


def bare(model: str) -> Any:
    """Imports torch and loads the weights, which it returns; nothing runs."""
    import torch  # noqa: F401
    from safetensors.torch import load_file

    return [load_file(file) for file in sorted(Path(model).glob("*.safetensors"))]


def weights_first(case: Callable[[str], Any]) -> Callable[[str], Any]:
    """Returns a case that begins when torch is imported and the weights are in memory, as in `bare`."""

    def run(model: str) -> Any:
        kept = bare(model)
        _loaded.append(time.monotonic())
        output = case(model)
        del kept
        return output

    return run


def graphkiln(model: str, **options: Any) -> Any:
    """Loads the model through the cache, compiling what is missing, and runs 16 tokens."""
    from graphkiln.core import Deployment, load_model
    from graphkiln.core.ops.forward_context import set_forward_context
    from graphkiln.core.runner import dummy_context

    deployment = Deployment(model=model)
    runner = load_model(deployment, **options)
    with set_forward_context(dummy_context(runner.served, deployment, TOKENS)):
        return runner(*runner.served.example_inputs(TOKENS))


def graphkiln_aot(model: str) -> Any:
    """The same from the AOT file, and an error when that cannot be used or anything was compiled."""
    return graphkiln_hit(model, force_aot_load=True)


def graphkiln_hit(model: str, **options: Any) -> Any:
    """The same, and an error when anything was compiled."""
    output = graphkiln(model, **options)
    if "torch._dynamo" in sys.modules or "torch._inductor" in sys.modules:
        raise SystemExit("a warm start imported the compiler")
    return output


def torch_compile(model: str) -> Any:
    """transformers' own model under torch.compile, one graph for all token counts, and the same 16 tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model).eval().base_model
    compiled = torch.compile(base, fullgraph=True)
    at = torch.arange(TOKENS, dtype=torch.int64)
    ids, positions = ((at * 7919 + 13) % base.config.vocab_size)[None], at[None]
    # The token count is dynamic, as it is for the rows that this one is compared with.
    for tensor in (ids, positions):
        torch._dynamo.mark_dynamic(tensor, 1)
    with torch.no_grad():
        return compiled(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state[0]


if __name__ == "__main__":
    main()
