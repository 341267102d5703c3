"""Which of transformers' ways to compute a mixture of experts a model is traced with.

Tried on transformers 5.24. Its own choice depends on the machine, so it is never left to it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

# The only way without numbers that decide shapes and without an op of transformers' own, which a
# start that does not import transformers could not call. Its price: the weights of the experts that
# a token chose are copied for that token.
TRACEABLE = "batched_mm"
# One expert after the other, as the models were published.
EAGER = "eager"


def use_experts(model: Any, implementation: str) -> None:
    """Makes `model` compute its experts in one way; a model without experts is left as it is."""
    if model._can_set_experts_implementation():
        model.set_experts_implementation(implementation)


@contextlib.contextmanager
def experts_used(model: Any, implementation: str) -> Iterator[None]:
    """Inside, `model` computes its experts in one way, and afterwards as before."""
    before = model.config._experts_implementation
    use_experts(model, implementation)
    try:
        yield
    finally:
        if before is not None:
            use_experts(model, before)
