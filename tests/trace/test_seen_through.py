"""Custom ops that are compiled through to what they run, and those that stay what they are."""

from __future__ import annotations

import os

import pytest
import torch
from torch import fx

from graphkiln.core.errors import Bypass
from graphkiln.core.trace.custom_ops import check_ops, record_ops
from graphkiln.core.trace.functions import CodeDigests


@torch.library.custom_op("seen_tests::opaque", mutates_args=())
def opaque(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@opaque.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def another_shape(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape)


TIMES = 2


@torch.library.triton_op("seen_tests::seen_through", mutates_args=())
def seen_through(x: torch.Tensor) -> torch.Tensor:
    return x.clone() * TIMES


@torch.library.triton_op("seen_tests::reads_more", mutates_args=())
def reads_more(x: torch.Tensor) -> torch.Tensor:
    return x.clone() * len(os.environ)


@torch.library.triton_op("seen_tests::calls_opaque", mutates_args=())
def calls_opaque(x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = opaque(x)
    return y + 1


@torch.library.triton_op("seen_tests::calls_another", mutates_args=())
def calls_another(x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = torch.ops.seen_tests.seen_through(x)
    return y + 1


@torch.library.triton_op("seen_tests::calls_composite", mutates_args=())
def calls_composite(x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = torch.ops.seen_tests.composite.default(x)
    return y + 1


library = torch.library.Library("seen_tests", "FRAGMENT")
library.define("composite(Tensor x) -> Tensor")
library.impl("composite", lambda x: x * 2, "CompositeImplicitAutograd")


def calling(name: str) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.call_function(getattr(torch.ops.seen_tests, name).default, (graph.placeholder("x"),)))
    return fx.GraphModule(torch.nn.Module(), graph)


def test_an_op_that_stays_one_is_recorded_by_what_the_compiler_sees_of_it() -> None:
    recorded = record_ops([calling("opaque")], CodeDigests({}))
    assert list(recorded) == ["seen_tests::opaque.default"]
    assert check_ops(recorded, CodeDigests({})) == []


def test_an_op_made_of_triton_kernels_is_recorded_with_all_that_its_body_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = record_ops([calling("seen_through")], CodeDigests({}))
    assert check_ops(recorded, CodeDigests({})) == []
    monkeypatch.setattr("tests.trace.test_seen_through.TIMES", 3)
    (changed,) = check_ops(recorded, CodeDigests({}))
    assert changed.name == "op seen_tests::seen_through.default"
    assert (changed.then, changed.now) == ("2", "3")


def test_an_op_within_the_body_of_another_is_recorded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = record_ops([calling("calls_another")], CodeDigests({}))
    monkeypatch.setattr("tests.trace.test_seen_through.TIMES", 3)
    (changed,) = check_ops(recorded, CodeDigests({}))
    assert (changed.then, changed.now) == ("2", "3")


def test_an_op_that_a_body_calls_is_recorded_by_its_fake(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = record_ops([calling("calls_opaque")], CodeDigests({}))
    assert check_ops(recorded, CodeDigests({})) == []
    monkeypatch.setattr(opaque, "_abstract_fn", another_shape)
    (changed,) = check_ops(recorded, CodeDigests({}))
    assert "another_shape" in str(changed.now)


def test_a_body_with_another_fake_beside_it_has_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = record_ops([calling("seen_through")], CodeDigests({}))
    monkeypatch.setattr(seen_through, "_abstract_fn", another_shape)
    with pytest.raises(Bypass, match="a fake implementation beside its body"):
        record_ops([calling("seen_through")], CodeDigests({}))
    assert len(check_ops(recorded, CodeDigests({}))) == 1


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("composite", "seen_tests::composite is compiled through"),
        ("calls_composite", "seen_tests::composite is compiled through"),
        ("reads_more", "reads from the module os"),
    ],
)
def test_an_op_that_is_compiled_through_and_leaves_no_record_has_no_key(name: str, why: str) -> None:
    with pytest.raises(Bypass, match=why):
        record_ops([calling(name)], CodeDigests({}))
