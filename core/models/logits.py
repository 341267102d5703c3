"""From hidden states to logits: the model's own way, and the same way as data.

Tried on torch 2.13: the calls of a head are seen by a dispatch mode, below which no Python is left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

# One number for one number: all that heads do besides their product. Each takes its operand.
_STEPS: Mapping[str, Callable[[torch.Tensor, Any], torch.Tensor]] = MappingProxyType(
    {
        "div": torch.div,
        "mul": torch.mul,
        "tanh": lambda tensor, _: torch.tanh(tensor),
        "to": lambda tensor, dtype: tensor.to(getattr(torch, dtype)),
    }
)
_SCALED = {torch.ops.aten.div.Tensor: "div", torch.ops.aten.mul.Tensor: "mul"}
_PRODUCTS = frozenset({torch.ops.aten.mm.default, torch.ops.aten.bmm.default})
# They show the same numbers in another shape.
_VIEWS = frozenset({"alias", "detach", "expand", "select", "slice", "t", "transpose", "unsqueeze", "view"})
_RESHAPES = frozenset({"_unsafe_view", "_reshape_alias", "clone"})


@dataclass(frozen=True)
class Step:
    """What is done to each number: "div" and "mul" by a number, "tanh", "to" a dtype."""

    name: str
    operand: float | str | None = None

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor after this step."""
        return _STEPS[self.name](tensor, self.operand)


@dataclass(frozen=True, eq=False)
class MatrixHead:
    """Logits as one matrix product, with steps before and after it."""

    matrix: torch.Tensor
    before: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the logits [N, V] of hidden states [N, H]."""
        for step in self.before:
            hidden = step(hidden)
        logits = nn.functional.linear(hidden, self.matrix)
        for step in self.after:
            logits = step(logits)
        return logits


class LogitsHead:
    """What a causal language model does after its base model: the head's matrix, scales and softcaps.

    The model's own forward is used, with a stand-in for the base model that hands hidden states
    through, so that no architecture's way to logits is repeated here.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.prefix: str = model.base_model_prefix
        # Asked while the base model is there: transformers looks for the input embeddings first.
        self._output_layer = model.get_output_embeddings()
        setattr(model, self.prefix, _GivenHiddenStates())

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the logits [N, V] of hidden states [N, H]."""
        logits: torch.Tensor = self._model(inputs_embeds=hidden[None], use_cache=False).logits[0]
        return logits

    def tensors(self) -> dict[str, torch.Tensor]:
        """Returns the parameters around the base model, by their names in the whole model."""
        return dict(self._model.named_parameters())

    def as_matrix(self, mode: FakeTensorMode | None = None) -> MatrixHead | None:
        """Returns a head that does the same without the model, or None where its calls are of other kinds.

        `mode` is that of fake tensors, whose numbers cannot be compared: their calls are.
        """
        matrix: torch.Tensor | None = getattr(self._output_layer, "weight", None)
        if matrix is None or matrix.dim() != 2:
            return None
        # Large values show what softcaps do, small ones what is done beside them.
        with mode or contextlib.nullcontext():
            examples = [_hidden(5, matrix, 100.0), _hidden(5, matrix, 1.0), _hidden(1, matrix, 1.0)]
            heads = [self._seen(hidden, matrix) for hidden in examples]
        first = heads[0]
        if first is None:
            return None
        for hidden, head in zip(examples, heads, strict=True):
            if head is None or (head.before, head.after) != (first.before, first.after):
                return None
            with torch.no_grad():
                if mode is None and not torch.equal(self(hidden), head(hidden)):
                    return None
        return first

    def _seen(self, hidden: torch.Tensor, matrix: torch.Tensor) -> MatrixHead | None:
        with torch.no_grad(), _Chain(hidden, matrix) as chain:
            logits = self(hidden)
        if chain.broken or not chain.multiplied or not chain.ends_in(logits):
            return None
        return MatrixHead(matrix, tuple(chain.before), tuple(chain.after))


def _hidden(count: int, matrix: torch.Tensor, scale: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(count, matrix.shape[1], generator=generator).mul_(scale)
    return hidden.to(matrix.device, matrix.dtype)


class _Chain(TorchDispatchMode):
    """Follows one tensor through the calls made on it; any call of another kind breaks the chain."""

    def __init__(self, hidden: torch.Tensor, matrix: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.before: list[Step] = []
        self.after: list[Step] = []
        self.broken = self.multiplied = False
        self._shown, self._matrix = hidden, [matrix]

    def ends_in(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` is what the chain came to."""
        return tensor is self._shown

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        # What a fake tensor is asked for its device by: it computes nothing.
        if func is torch.ops.prim.device.default:
            return result
        if not self._follow(func, args, kwargs, result):
            self.broken = True
        return result

    def _follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> bool:
        name = func._schema.name.removeprefix("aten::")
        if name in _VIEWS and any(args[0] is seen for seen in self._matrix):
            self._matrix.append(result)
            return True
        if not args or args[0] is not self._shown:
            return False
        self._shown = result
        if name in _VIEWS | _RESHAPES:
            return True
        if func in _PRODUCTS and any(args[1] is seen for seen in self._matrix):
            repeated, self.multiplied = self.multiplied, True
            return not repeated
        step = _step(func, args, kwargs)
        if step is None:
            return False
        (self.after if self.multiplied else self.before).append(step)
        return True


def _step(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step | None:
    if func in _SCALED and not kwargs and isinstance(args[1], int | float):
        return Step(_SCALED[func], args[1])
    if func is torch.ops.aten.tanh.default:
        return Step("tanh")
    if func is torch.ops.aten._to_copy.default and set(kwargs) == {"dtype"}:
        return Step("to", str(kwargs["dtype"]).removeprefix("torch."))
    return None


class _GivenHiddenStates(nn.Module):
    """A base model whose hidden states are its input embeddings."""

    @property
    def decoder(self) -> nn.Module:
        # OPT's head calls the decoder inside its base model.
        return self

    def forward(self, *args: Any, inputs_embeds: torch.Tensor, **kwargs: Any) -> _BaseOutput:
        return _BaseOutput(inputs_embeds)


class _BaseOutput:
    """A base model's output that has hidden states and nothing else."""

    def __init__(self, last_hidden_state: torch.Tensor) -> None:
        self.last_hidden_state = last_hidden_state

    def __getitem__(self, index: int) -> torch.Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
        return None
