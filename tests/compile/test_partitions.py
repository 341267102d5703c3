"""Pieces that Inductor partitions: what it is told, and what a load hands out to be captured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor import utils as inductor_utils

from graphkiln.core.compile.execute import CompiledPart, LoadedPiece
from graphkiln.core.compile.inductor_environment import inductor_environment
from graphkiln.core.compile.sealed import FORMAT, SealedPiece, load_piece
from graphkiln.core.compile.settings import InductorSettings
from graphkiln.core.errors import StepFailed
from graphkiln.core.graphs.graph_set import GraphSet
from graphkiln.core.graphs.wrapper import CUDAGraphWrapper
from graphkiln.core.loading import FreshArtifact
from graphkiln.core.passes.manager import PassManager
from graphkiln.core.passes.pipeline import Pipeline
from graphkiln.core.target.cpu import cpu_target
from tests.graphs.recording import FakeRecorder

# As Inductor writes it of a graph that is cut at one op.
WRAPPER = """
def partition_0(args):
    (x,) = args
    args.clear()
    return (x + 1,)
def partition_1(args):
    (x,) = args
    args.clear()
    return (x * 2,)
class Runner:
    def __init__(self, partitions):
        self.partitions = partitions
    def call(self, args):
        (x,) = args
        args.clear()
        (y,) = self.partitions[0]([x])
        return self.partitions[1]([y.neg()])
runner = Runner(partitions=[partition_0, partition_1])
call = runner.call
"""
PIECE = {
    "format": FORMAT, "fingerprint": "f" * 64, "imports": {}, "extern_kernels": {}, "kernels": {},
    "triton": {}, "num_outputs": 1, "constants": {}, "aligned": [], "mutated": [],
}  # fmt: skip
WIRING = {
    "format": 1,
    "inputs": [{"argument": 0}],
    "registers": 2,
    "steps": [{"piece": 0, "args": [["r", 0]], "outs": [1]}],
    "outputs": [["r", 1]],
    "structure": ["out", 0],
    "door": {
        "arguments": [{"name": "x", "dtype": "torch.float32", "device": "cpu", "shape": [None]}],
        "smallest": 1,
        "largest": 8,
    },
    "pieces": [{"piece": 0, "range": [1, 8]}],
    "ranges": [[1, 8]],
}


INPUTS = [{"dtype": "torch.float32", "device": "cpu", "shape": ["T"]}]


class Module(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def loaded() -> SealedPiece:
    files = {"piece.json": json.dumps(PIECE).encode(), "wrapper.py": WRAPPER.encode()}
    return load_piece(FreshArtifact(files))


def test_inductor_is_told_each_exact_op_while_a_piece_is_compiled_and_not_after(tmp_path: Path) -> None:
    ops = ("toy::cut", "toy::cut.alt")
    settings = InductorSettings(1, 8, 8, cpu_target("cpu:scalar"), {}, tmp_path, partition_ops=ops)
    before = list(inductor_config.custom_should_partition_ops)
    with inductor_environment(settings, PassManager(Pipeline())):
        assert inductor_config.custom_should_partition_ops == ["toy::cut.default", "toy::cut.alt"]
        assert inductor_config.graph_partition
        assert inductor_utils._unstable_customized_partition_wrapper.wrapper is not None
    assert inductor_config.custom_should_partition_ops == before
    assert inductor_utils._unstable_customized_partition_wrapper.wrapper is None


def test_the_partitions_of_a_loaded_piece_are_those_that_it_calls() -> None:
    piece = loaded()
    x = torch.tensor([1.0, 2.0])
    assert len(piece.partitions) == 2
    assert torch.equal(piece([x])[0], torch.tensor([-4.0, -6.0]))
    piece.partitions[1] = lambda inputs: (inputs[0] * 10,)
    assert torch.equal(piece([x])[0], torch.tensor([-20.0, -30.0]))


@pytest.mark.parametrize("lazy", [False, True])
def test_of_a_partitioned_piece_its_partitions_are_wrapped_and_it_is_not(lazy: bool) -> None:
    names: list[str] = []
    part = CompiledPart(WIRING, [LoadedPiece(loaded, INPUTS, lazy=lazy)], Module(), lambda path: None)

    def wrap(inner: Any, name: str, arguments: list[str]) -> Any:
        names.append(name)
        return lambda inputs: tuple(out + 100 for out in inner(inputs))

    part.wrap_pieces(wrap)
    assert names == [f"partition {index} of piece 0 at cut 0 for (1, 8)" for index in (0, 1)]
    with torch.no_grad():
        assert torch.equal(part(torch.tensor([1.0])), torch.tensor([-2.0 * 102 + 100]))


def test_a_piece_that_was_wrapped_is_held_to_what_it_takes() -> None:
    """The wrapper of a graph checks where inputs lie, and only what comes a second time."""
    inputs = [{**INPUTS[0], "shape": [7]}]
    part = CompiledPart(WIRING, [LoadedPiece(loaded, inputs, lazy=False)], Module(), lambda path: None)
    graphs = GraphSet(FakeRecorder())
    piece = part._pieces[1, 8][0]
    part._pieces[1, 8][0] = CUDAGraphWrapper(piece, graphs, name="the piece", mode=None)
    with torch.no_grad(), pytest.raises(StepFailed, match=r"piece 0, input 0"):
        part(torch.tensor([1.0]))
