"""What a trace took for granted, as data: each change of a live model is named, and nothing else is."""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from graphkiln.cache.factors.canonical import digest
from graphkiln.cache.factors.difference import Difference
from graphkiln.core import support_torch_compile
from graphkiln.core.errors import Bypass
from graphkiln.core.trace.code import check_code
from graphkiln.core.trace.functions import CodeDigests
from graphkiln.core.trace.guards import KINDS
from graphkiln.core.trace.observe import observe
from graphkiln.core.trace.recording import TracedCode
from tests.trace import helpers
from tests.trace.traced import trace

OFFSET = 1.5


class Kind(enum.Enum):
    SOFT = 1
    HARD = 2


@dataclasses.dataclass
class Options:
    gain: float = 2.0
    deep: bool = True


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.power = 2

    def helper(self, x: torch.Tensor) -> torch.Tensor:
        return x**self.power

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.helper(self.linear(x))


@support_torch_compile
class Toy(nn.Module):
    """Reaches one of each."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 3
        self.name = "relu"
        self.kind = Kind.SOFT
        self.rate = 0.25
        self.flag = True
        self.nothing: float | None = None
        self.options = Options()
        self.numbers = [1.0, 2.0]
        self.table = {"a": 1.0, "b": 2.0}
        self.pair = (1, 2)
        self.partial = functools.partial(helpers.added, amount=0.5)
        self.closure = helpers.closed_over(0.75)
        self.function: Callable[[torch.Tensor], torch.Tensor] = lambda x: x * 2
        self.plain_tensor = torch.ones(4)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.shared: Any = self.blocks[0].linear
        self.unread = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        x = self.shared(x)
        for _ in range(self.count):
            x = x + 1
        x = getattr(torch, self.name)(x) if self.kind is Kind.SOFT else x
        x = x * self.rate if self.flag and self.nothing is None else x
        x = x * self.options.gain if self.options.deep else x
        for number in self.numbers:
            x = x + number
        for number in self.table.values():
            x = x * number
        x = x * self.pair[1]
        x = self.partial(x) + self.closure(x) + self.function(x)
        x = helpers.strengthen(x) + helpers.halved(x) + OFFSET + math.pi
        if hasattr(self, "bonus"):
            x = x + 100
        return x + self.plain_tensor


@pytest.fixture(scope="module")
def recorded() -> tuple[Toy, TracedCode]:
    torch.manual_seed(0)
    module = Toy()
    code = trace(module).code
    return module, TracedCode(json.loads(json.dumps(code.factor)), json.loads(json.dumps(code.sources)))


def differences(recorded: tuple[Toy, TracedCode], module: nn.Module | None = None) -> list[Difference]:
    return check_code(recorded[1].factor, recorded[1].sources, module or recorded[0])


def names(found: list[Difference]) -> list[str]:
    return [difference.name for difference in found]


def test_the_model_that_was_traced_agrees_also_after_json(recorded: tuple[Toy, TracedCode]) -> None:
    assert differences(recorded) == []
    assert len(recorded[1].factor["values"]) > 30


def test_another_model_of_the_same_makeup_agrees_and_has_the_same_factor(
    recorded: tuple[Toy, TracedCode],
) -> None:
    other = Toy()
    other.function = recorded[0].function
    assert differences(recorded, other) == []
    assert digest(trace(other).code.factor) == digest(recorded[1].factor)


CHANGES: dict[str, tuple[Callable[[Toy], Any], str]] = {
    "an int": (lambda m: setattr(m, "count", 4), "self.count"),
    "an int that equals": (lambda m: setattr(m, "count", 3.0), "self.count"),
    "a str": (lambda m: setattr(m, "name", "sigmoid"), "self.name"),
    "an enum": (lambda m: setattr(m, "kind", Kind.HARD), "self.kind"),
    "a float": (lambda m: setattr(m, "rate", 0.5), "self.rate"),
    "a bool": (lambda m: setattr(m, "flag", False), "self.flag"),
    "None": (lambda m: setattr(m, "nothing", 1.0), "self.nothing"),
    "a field of a dataclass": (lambda m: setattr(m.options, "gain", 3.0), "self.options.gain"),
    "an item of a list": (lambda m: m.numbers.__setitem__(1, 5.0), "self.numbers[1]"),
    "the length of a list": (lambda m: m.numbers.append(3.0), "self.numbers"),
    "a value of a dict": (lambda m: m.table.__setitem__("b", 5.0), "self.table"),
    "a key of a dict": (lambda m: m.table.__setitem__("c", 5.0), "self.table"),
    "an item of a tuple": (lambda m: setattr(m, "pair", (1, 3)), "self.pair"),
    "an argument of a partial": (
        lambda m: setattr(m, "partial", functools.partial(helpers.added, amount=0.6)),
        "self.partial",
    ),
    "the function of a partial": (
        lambda m: setattr(m, "partial", functools.partial(helpers.strengthen, by=0.5)),
        "self.partial",
    ),
    "a closure's cell": (
        lambda m: setattr(m, "closure", helpers.closed_over(0.8)),
        "self.closure.__closure__[0].cell_contents",
    ),
    "a lambda": (lambda m: setattr(m, "function", lambda x: x * 3), "self.function"),
    "an attribute that was absent": (lambda m: setattr(m, "bonus", 1), "bonus"),
    "a plain tensor's dtype": (
        lambda m: setattr(m, "plain_tensor", torch.ones(4, dtype=torch.float64)),
        "self.plain_tensor",
    ),
    "a forward hook on a child": (
        lambda m: m.blocks[1].register_forward_hook(lambda *_: None),
        "_forward_hooks",
    ),
    "a forward hook on the root": (
        lambda m: m.register_forward_hook(lambda *_: None),
        "self._forward_hooks",
    ),
    "a forward pre-hook on the root": (
        lambda m: m.register_forward_pre_hook(lambda *_: None),
        "self._forward_pre_hooks",
    ),
    "forward set on the instance": (lambda m: setattr(m, "forward", lambda x: x), "self.forward"),
    "a child's attribute": (lambda m: setattr(m.blocks[1], "power", 3), "self._modules['blocks']"),
    "a child replaced": (lambda m: m.blocks.__setitem__(1, nn.Linear(4, 4)), "blocks.1"),
    "an unshared submodule": (lambda m: setattr(m, "shared", nn.Linear(4, 4)), "parameter shared"),
    "a parameter's dtype": (lambda m: m.blocks[1].half(), "parameter blocks.1.linear."),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_model_is_named(what: str, recorded: tuple[Toy, TracedCode]) -> None:
    change, named = CHANGES[what]
    module = copy.deepcopy(recorded[0])
    assert differences(recorded, module) == []
    change(module)
    found = names(differences(recorded, module))
    assert found
    assert all(named in name for name in found), found


def replaced_method(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x


PATCHES: dict[str, tuple[Callable[[pytest.MonkeyPatch], Any], str]] = {
    "a global": (lambda p: p.setitem(globals(), "OFFSET", 1.25), "['OFFSET']"),
    "a global of another module": (lambda p: p.setattr(helpers, "STRENGTH", 4.0), "STRENGTH"),
    "a value of a global dict": (lambda p: p.setitem(helpers.TABLE, "shift", 0.6), "TABLE"),
    "a default": (lambda p: p.setattr(helpers.strengthen, "__defaults__", (2.5,)), "__defaults__[0]"),
    "a function of another module": (lambda p: p.setattr(helpers, "strengthen", helpers.added), "strengthen"),
    "the function that a wrapper wraps": (
        lambda p: p.setattr(helpers.halved.__closure__[0], "cell_contents", helpers.unrelated),  # type: ignore[index]
        "halved.__closure__[0].cell_contents",
    ),
    "a module's constant": (lambda p: p.setattr(math, "pi", 3.0), "pi"),
    "a method of a class of its own": (
        lambda p: p.setattr(Block, "helper", replaced_method),
        "test_guards.Block.helper",
    ),
    "forward of a class of torch": (
        lambda p: p.setattr(nn.Linear, "forward", replaced_method),
        "torch.nn.modules.linear.Linear.forward",
    ),
}


@pytest.mark.parametrize("what", PATCHES)
def test_a_changed_surrounding_is_named(
    what: str, recorded: tuple[Toy, TracedCode], monkeypatch: pytest.MonkeyPatch
) -> None:
    change, named = PATCHES[what]
    change(monkeypatch)
    found = names(differences(recorded))
    monkeypatch.undo()
    assert found
    assert all(named in name for name in found), found
    assert differences(recorded) == []


@pytest.mark.parametrize(
    ("change", "back", "named"),
    [
        (
            lambda: torch.use_deterministic_algorithms(True),
            lambda: torch.use_deterministic_algorithms(False),
            "deterministic_algorithms",
        ),
        (
            lambda: torch.set_default_dtype(torch.float64),
            lambda: torch.set_default_dtype(torch.float32),
            "default_dtype",
        ),
    ],
    ids=["deterministic", "default dtype"],
)
def test_a_changed_state_of_torch_is_named(
    recorded: tuple[Toy, TracedCode], change: Callable[[], None], back: Callable[[], None], named: str
) -> None:
    change()
    try:
        found = names(differences(recorded))
    finally:
        back()
    assert found == [f"torch state {named}"]


HARMLESS: dict[str, Callable[[Toy], Any]] = {
    "the device": lambda m: m.to("meta"),
    "requires_grad": lambda m: m.requires_grad_(False),
    "an attribute that is not read": lambda m: setattr(m, "unread", 2),
    "an unrelated new attribute": lambda m: setattr(m, "of_no_use", 2),
    "weights": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
    "an equal list": lambda m: setattr(m, "numbers", [1.0, 2.0]),
}


@pytest.mark.parametrize("what", HARMLESS)
def test_what_changes_no_code_is_no_difference(what: str, recorded: tuple[Toy, TracedCode]) -> None:
    module = copy.deepcopy(recorded[0])
    HARMLESS[what](module)
    assert differences(recorded, module) == []


def test_a_changed_value_changes_the_key_and_an_unread_one_does_not(recorded: tuple[Toy, TracedCode]) -> None:
    before = digest(recorded[1].factor)
    for name, value, same in (("count", 4, False), ("unread", 9, True)):
        module = copy.deepcopy(recorded[0])
        setattr(module, name, value)
        assert (digest(trace(module).code.factor) == before) is same


def test_no_path_of_this_machine_is_in_the_factor(recorded: tuple[Toy, TracedCode]) -> None:
    text = json.dumps(recorded[1].factor)
    assert __file__.rpartition("/")[0] not in text
    assert "site-packages" not in text


@support_torch_compile
class Constant(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul(assumed())


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
def assumed() -> float:
    return OFFSET


def test_a_result_that_is_assumed_constant_is_refused_by_name() -> None:
    with pytest.raises(Bypass, match="assumed is marked assume_constant_result"):
        trace(Constant())


SENTINEL = object()


@support_torch_compile
class Opaque(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first: Any = SENTINEL

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.first is SENTINEL else x


def test_an_object_that_is_compared_by_identity_is_held_by_where_else_it_is_found() -> None:
    module = Opaque()
    code = trace(module).code
    assert check_code(code.factor, code.sources, module) == []
    module.first = object()
    assert names(check_code(code.factor, code.sources, module)) != []


@pytest.mark.parametrize("kind", ["identity", "constant", "unheard of"])
def test_an_object_that_cannot_be_named_is_refused_by_name(kind: str) -> None:
    with pytest.raises(Bypass, match=r"builtins\.object|unheard of"):
        observe(kind, SENTINEL, CodeDigests())


def test_a_guard_of_an_unknown_kind_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(KINDS, "TYPE_MATCH")
    with pytest.raises(Bypass, match="TYPE_MATCH, which has no stored form"):
        trace(Opaque())


def test_a_hook_on_the_root_is_refused_when_it_is_traced() -> None:
    module = Toy()
    module.register_forward_hook(lambda *_: None)
    with pytest.raises(Bypass, match="_forward_hooks"):
        trace(module)
