"""What follows from a cause stands under it; what does not is a cause of its own."""

from __future__ import annotations

from graphkiln.cache.factors.difference import Difference, Kind
from graphkiln.cache.factors.traced import code_differences
from graphkiln.cache.inspect.causes import Cause
from graphkiln.cache.inspect.compare import causes_of, factor_differences

DTYPE = Difference("config", "dtype", "float32", "bfloat16")
BLOCKS = Difference("config", "block_size", 16, 32, relevant=False)
WEIGHT = Difference("code", "parameter w dtype", "torch.float32", "torch.bfloat16")
CONSTANT = Difference("code", "self.scale", 2, 3)


def function(name: str, kind: Kind = "changed") -> Difference:
    return Difference("code", f"toy:{name}", "1" * 64, "2" * 64, kind=kind)


def names(causes: tuple[Cause, ...]) -> dict[str, list[str]]:
    return {cause.difference.name: [one.name for one in cause.consequences] for cause in causes}


def test_a_dtype_explains_the_parameters_and_not_a_constant() -> None:
    assert names(causes_of([CONSTANT, WEIGHT, DTYPE])) == {
        "dtype": ["parameter w dtype"],
        "self.scale": [],
    }


def test_what_cannot_change_code_explains_nothing_and_stands_last() -> None:
    assert names(causes_of([BLOCKS, CONSTANT])) == {"self.scale": [], "block_size": []}


def test_every_changed_function_is_a_cause_and_what_it_newly_calls_is_not() -> None:
    found = [function("new", "added"), function("b"), function("a"), CONSTANT]
    assert names(causes_of(found)) == {"toy:b": ["toy:new"], "toy:a": [], "self.scale": []}


def test_another_version_of_a_package_is_one_cause() -> None:
    found = [
        Difference("code", "transformers.models.x:f", "1" * 64, "2" * 64),
        Difference("code", "transformers.activations:g", "1" * 64, "2" * 64),
        function("own"),
    ]
    then, now = {"transformers": "5.4.0"}, {"transformers": "5.5.0"}
    assert names(causes_of(found, then, now)) == {
        "package transformers": ["transformers.models.x:f", "transformers.activations:g"],
        "toy:own": [],
    }
    # Of the same version, each is what somebody edited.
    assert len(causes_of(found, then, then)) == 3


def test_a_package_that_no_differing_function_is_of_is_not_named() -> None:
    assert names(causes_of([DTYPE], {"transformers": "5.4.0"}, {"transformers": "5.5.0"})) == {"dtype": []}


def test_equal_values_of_unequal_types_are_differences() -> None:
    for then, now in ((1, True), (1, 1.0), ("1", 1)):
        code = ({"backbone": {"ambient": {"x": value}}} for value in (then, now))
        assert [found.name for found in code_differences(*code)] == ["torch state x"]
        assert len(factor_differences({"config": {"x": then}}, {"config": {"x": now}})) == 1


def test_equal_content_in_another_order_is_no_difference() -> None:
    shared = {"b": [1, 2], "a": None}
    then = {"config": {"x": shared, "y": shared}, "env": {"p": 1, "q": 2}}
    now = {"env": {"q": 2, "p": 1}, "config": {"y": {"a": None, "b": (1, 2)}, "x": dict(shared)}}
    assert factor_differences(then, now) == []


def test_layers_that_fall_apart_are_named_once() -> None:
    path = [["self"], ["attr", "_modules"], ["ditem", ["s", "*"]], ["attr", "scale"]]
    record = {"kind": "constant", "path": path, "value": ["i", "2"], "over": ["0", "1", "2"]}
    apart = [{**record, "over": ["0", "1"]}, {**record, "over": ["2"], "value": ["i", "3"]}]
    (found,) = code_differences({"backbone": {"values": [record]}}, {"backbone": {"values": apart}})
    assert (found.name, found.then, found.now) == ("self._modules['*'].scale", 2, [2, 3])
