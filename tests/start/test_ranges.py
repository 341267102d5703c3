"""Compile ranges, single sizes and several parts: what serves which call, and that it is right."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from graphkiln.cache.store.entries import Entry
from graphkiln.core import CompilationConfig, Deployment, load_model
from graphkiln.core.compile.sealed import SealedPiece, load_piece
from graphkiln.core.fetching import FetchedArtifact
from graphkiln.core.start import key, precompile

LARGEST = 128

MODELS = """
    import torch
    from torch import nn

    from graphkiln.core import ignore_torch_compile, support_torch_compile

    @support_torch_compile(is_encoder=True)
    class Vision(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.linear(pixels))

    @support_torch_compile
    class Text(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.embedding = nn.Embedding(16, 8)
            self.factor = factor

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.embedding(ids) * self.factor

    @support_torch_compile
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vision, self.first, self.second = Vision(), Text(2.0), Text(3.0)

        def forward(self, ids: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
            return self.vision(pixels) + self.first(ids) + self.second(ids)

        def example_inputs(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
            generator = torch.Generator().manual_seed(count)
            return torch.arange(count) % 16, torch.randn(count, 8, generator=generator)

    @ignore_torch_compile
    class Ignored(Whole): ...

    @support_torch_compile
    class Again(Ignored): ...

    def make(kind: type[nn.Module]) -> nn.Module:
        torch.manual_seed(0)
        return kind()

    def whole() -> nn.Module: return make(Whole)
    def ignored() -> nn.Module: return make(Ignored)
    def again() -> nn.Module: return make(Again)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("ranges")
    (made / "parted_models.py").write_text(textwrap.dedent(MODELS))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(made))
        yield made


def deployment(name: str) -> Deployment:
    return Deployment(f"parted_models:{name}", max_num_batched_tokens=LARGEST)


def eager(name: str) -> Any:
    import parted_models  # type: ignore[import-not-found]

    return getattr(parted_models, name)()


def assert_right(runner: Any, name: str, counts: tuple[int, ...]) -> None:
    model = eager(name)
    for count in counts:
        inputs = model.example_inputs(count)
        with torch.no_grad():
            assert torch.allclose(runner(*inputs), model(*inputs), atol=1e-5), count


@pytest.mark.slow
def test_each_range_and_size_has_its_own_pieces_and_an_exact_size_wins(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CompilationConfig.from_user({"compile_ranges_endpoints": [8, 64], "compile_sizes": [1, 16]})
    root = folder / "ranges"
    report = precompile(deployment("whole"), config, cache_root=root)
    assert report.outcome == "compiled"
    assert report.check is not None
    assert {1, 8, 9, 16, 64, 65, LARGEST} <= {row.num_tokens for row in report.check.rows}
    assert report.entry_path is not None
    pieces = Entry(report.entry_path).read_json("0_0", "backbone", "wiring.json")["pieces"]
    assert [(piece["range"], piece["dynamic"]) for piece in pieces] == [
        ([1, 1], "static"),
        ([16, 16], "static"),
        ([1, 8], "backed"),
        ([9, 64], "backed"),
        ([65, LARGEST], "backed"),
    ]
    opened: list[str] = []

    def noting(files: FetchedArtifact, device: int = 0) -> SealedPiece:
        opened.append(files.artifact)
        return load_piece(files, device)

    monkeypatch.setattr("graphkiln.core.loading.load_piece", noting)
    runner = load_model(deployment("whole"), config, cache_root=root)
    assert runner.report is not None
    assert runner.report.outcome == "hit"
    # What serves one token count alone is opened by the first call that brings it.
    one, sixteen, *ranges = (piece["artifact"] for piece in pieces)
    assert opened == ranges
    assert_right(runner, "whole", (15, 17))
    assert opened == ranges
    assert_right(runner, "whole", (16, 16))
    assert opened == [*ranges, sixteen]
    assert one not in opened
    part: Any = inspect.unwrap(runner._forward)
    served = {count: part.range_of(count) for count in (1, 2, 15, 16, 17, 65)}
    assert served == {1: (1, 1), 2: (1, 8), 15: (9, 64), 16: (16, 16), 17: (9, 64), 65: (65, LARGEST)}
    assert_right(runner, "whole", (1, 2, 8, 9, 16, 17, 64, 65, LARGEST))


@pytest.mark.slow
def test_parts_below_an_ignored_root_are_one_entry_and_a_child_decorated_again_is_one_part(
    folder: Path,
) -> None:
    root = folder / "parts"
    parts = {"ignored": {"Vision", "first", "second"}, "again": {"backbone"}}
    for name, prefixes in parts.items():
        report = precompile(deployment(name), cache_root=root)
        assert report.entry_path is not None
        entry = Entry(report.entry_path)
        assert set(entry.factors().as_json()["code"]) == prefixes
        assert set(entry.manifest("0_0").parts) == prefixes
        assert key(deployment(name)).key == report.key
        runner = load_model(deployment(name), cache_root=root)
        assert runner.report is not None
        assert (runner.report.outcome, runner.report.counts["frames_converted"]) == ("hit", 0)
        assert_right(runner, name, (1, 5, LARGEST))
        if name == "ignored":
            # The scheduler bounds tokens, and an encoder's calls hold none.
            vision: Any = runner.served.backbone.vision
            pixels = torch.randn(LARGEST + 3, 8)
            with torch.no_grad():
                assert torch.allclose(vision(pixels), eager(name).vision(pixels), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "outcome"),
    [
        ({"mode": "DYNAMO_TRACE_ONCE"}, "hit"),
        ({"mode": "STOCK_TORCH_COMPILE"}, "bypass"),
        ({"backend": "eager"}, "bypass"),
        ({"dynamic_shapes_config": {"type": "unbacked"}}, "hit"),
        ({"dynamic_shapes_config": {"type": "backed_size_oblivious"}}, "hit"),
        ({"dynamic_shapes_config": {"evaluate_guards": True}}, "hit"),
    ],
)
def test_every_mode_and_kind_of_shapes_is_right_cold_and_the_next_time(
    folder: Path, asked: dict[str, Any], outcome: str
) -> None:
    config = CompilationConfig.from_user(asked)
    root = folder / "modes"
    for _ in range(2):
        runner = load_model(deployment("whole"), config, cache_root=root)
        assert_right(runner, "whole", (1, 5, LARGEST))
    assert runner.report is not None
    assert runner.report.outcome == outcome
    if outcome == "bypass":
        assert runner.report.reasons[0].remedy


@pytest.mark.slow
def test_evaluated_guards_name_what_changed_after_the_start(folder: Path) -> None:
    config = CompilationConfig.from_user({"dynamic_shapes_config": {"evaluate_guards": True}})
    runner = load_model(deployment("whole"), config, cache_root=folder / "modes")
    backbone: Any = runner.served.backbone
    backbone.first.factor = 7.0
    with torch.no_grad(), pytest.raises(Exception, match="factor"):
        runner(*backbone.example_inputs(3))
