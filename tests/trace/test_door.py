"""The door: what a call may bring to compiled code, and what it is told when it brings something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphkiln.core.compile.wiring import describe_door
from graphkiln.core.errors import DoorError
from graphkiln.core.trace.arguments import IntermediateTensors
from graphkiln.core.trace.door import Door


def forward(ids: Any, hidden: Any, scale: float = 2.0, *, between: Any = None) -> Any:
    raise AssertionError("the door calls nothing")


def make(count: int, **changes: Any) -> dict[str, Any]:
    given = {
        "ids": torch.zeros(count, dtype=torch.int64),
        "hidden": torch.zeros(count, 4),
        "scale": 2.0,
        "between": IntermediateTensors({"a": torch.zeros(count, 2)}),
    }
    return given | changes


DYNAMIC = {"ids": (0,), "hidden": (0,), "between": (0,)}


@pytest.fixture(scope="module")
def door() -> Door:
    given = make(5)
    traced: Any = SimpleNamespace(arguments=tuple(given), values=tuple(given.values()))
    return Door(describe_door(traced, DYNAMIC, 2, 64), forward)


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def knock(door: Door, given: dict[str, Any]) -> int:
    return door.check(door.ordered((), given))


@pytest.mark.parametrize("count", [2, 3, 64])
def test_every_count_in_the_range_comes_in(door: Door, count: int) -> None:
    assert knock(door, make(count)) == count


def test_arguments_come_by_position_by_name_and_by_default(door: Door) -> None:
    given = make(7)
    between = given["between"]
    ways: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        (tuple(given.values()), {}),
        ((given["ids"], given["hidden"], 2.0), {"between": between}),
        ((given["ids"], given["hidden"]), {"between": between}),
        ((given["ids"],), {"between": between, "hidden": given["hidden"]}),
    ]
    for args, kwargs in ways:
        values = door.ordered(args, kwargs)
        assert [id(value) for value in (values[0], values[1], values[3])] == [
            id(given["ids"]), id(given["hidden"]), id(between),
        ]  # fmt: skip
        assert values[2] == 2.0
        assert door.check(values) == 7


TURNED_AWAY: dict[str, tuple[dict[str, Any], str]] = {
    "another dtype": (make(5, ids=torch.zeros(5, dtype=torch.int32)), "ids: compiled for torch.int64"),
    "another device": (make(5, hidden=torch.zeros(5, 4, device="meta")), "hidden: .* on cpu"),
    "more dimensions": (make(5, ids=torch.zeros(1, 5, dtype=torch.int64)), "ids: compiled for 1 dimensions"),
    "another width": (make(5, hidden=torch.zeros(5, 8)), "hidden: compiled for size 4 in dimension 1"),
    "counts that disagree": (make(5, hidden=torch.zeros(6, 4)), "hidden: compiled for 5 tokens"),
    "counts that disagree inside": (
        make(5, between=IntermediateTensors({"a": torch.zeros(6, 2)})),
        r"between\['a'\]: compiled for 5 tokens",
    ),
    "other members": (make(5, between=IntermediateTensors({"b": torch.zeros(5, 2)})), "between: .*members a"),
    "no members": (make(5, between=None), "between: compiled for IntermediateTensors"),
    "a transposed tensor": (make(5, hidden=torch.zeros(4, 5).t()), "hidden: .*contiguous"),
    "too few tokens": (make(1), "token count: compiled for 2 to 64, called with 1"),
    "no tokens": (make(0), "token count: .*called with 0"),
    "too many tokens": (make(65), "token count: .*called with 65"),
    "another constant": (make(5, scale=2.5), "scale: compiled for the constant"),
    "a constant of another type": (make(5, scale=2), "scale: compiled for the constant"),
    "a tensor for a constant": (make(5, scale=torch.tensor(2.0)), "scale: .*called with a Tensor"),
    "a list for a tensor": (make(5, ids=[1, 2, 3, 4, 5]), "ids: .*called with a list"),
}


@pytest.mark.parametrize("what", TURNED_AWAY)
def test_the_door_turns_away(what: str, door: Door) -> None:
    given, says = TURNED_AWAY[what]
    with pytest.raises(DoorError, match=says):
        knock(door, given)


def with_grad(check: Callable[[], int]) -> int:
    with torch.enable_grad():
        return check()


def with_autocast(check: Callable[[], int]) -> int:
    with torch.autocast("cpu"):
        return check()


@pytest.mark.parametrize(("under", "says"), [(with_grad, "grad mode"), (with_autocast, "autocast")])
def test_the_door_holds_the_state_that_code_was_compiled_under(
    under: Callable[[Callable[[], int]], int], says: str, door: Door
) -> None:
    with pytest.raises(DoorError, match=says):
        under(lambda: knock(door, make(5)))


@pytest.mark.parametrize("args", [(), (torch.zeros(5, dtype=torch.int64),)], ids=["none", "one"])
def test_a_missing_argument_is_the_callers_own_mistake(door: Door, args: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="missing a required argument"):
        door.ordered(args, {})
