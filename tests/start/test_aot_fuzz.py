"""AOT files whose content was twisted under digests that agree: a typed error or a sound load, no crash."""

from __future__ import annotations

import importlib
import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from graphkiln.cache.errors import GraphkilnError
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.fetching import Fetch
from graphkiln.core.judging import judge
from graphkiln.core.loading import differences, load_stored_part, restored
from graphkiln.core.models.source import identify
from graphkiln.core.ops.forward_context import set_forward_context
from graphkiln.core.plan import Plan, make_plan
from graphkiln.core.runner import dummy_context
from graphkiln.core.stored import AotStored
from graphkiln.core.target.cpu import cpu_target
from tests.cache.store.test_aot import mutated, twisted
from tests.start.aot_files import opened, packed, self_contained, taken_apart
from tests.start.conftest import Compiled, CompiledToy

INPUTS = torch.arange(12, dtype=torch.float32).reshape(3, 4)
# What decides how the result is put together is bound by no other digest than its own.
_UNBOUND = ("structure", "outputs")


class Toy:
    """The toy's module, its plan and its AOT file."""

    def __init__(self, toy: CompiledToy, file: Path) -> None:
        self.module: torch.nn.Module = importlib.import_module("toy_model").make().eval()
        self.plan: Plan = make_plan(Deployment("toy_model:make"), CompilationConfig())
        self.data = self_contained(toy.entry, file).read_bytes()
        self.body, self.sections = taken_apart(self.data)
        with torch.no_grad():
            self.wanted = type(self.module).forward(self.module, INPUTS)

    def load_and_call(self, data: bytes) -> torch.Tensor:
        """Everything that a start does with a file; any refusal is a GraphkilnError."""
        file = opened(data)
        found = judge(file.header, self.plan)
        if found:
            raise Refused(found[0].name)
        stored = AotStored(file, None)
        fetch = Fetch(stored)
        found = differences(stored, {"backbone": self.module})
        if found:
            raise Refused(found[0].name)
        for damage in fetch.broken().values():
            raise damage
        part = load_stored_part(stored, fetch, "backbone", self.module, self.plan.target)
        with torch.no_grad():
            result: torch.Tensor = part(INPUTS)
            return result


class Refused(GraphkilnError):
    """The header or the guards say no, by name."""


@pytest.fixture
def loaded(toy: CompiledToy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    shutil.copytree(toy.code, tmp_path / "code")
    monkeypatch.syspath_prepend(str(toy.code))
    return Toy(toy, tmp_path / "toy.aot")


def test_no_file_with_a_wrong_digest_is_ever_called(loaded: Toy) -> None:
    torch.testing.assert_close(loaded.load_and_call(loaded.data), loaded.wanted)
    rng = random.Random("bytes")
    refused = 0
    for _ in range(300):
        try:
            got = loaded.load_and_call(mutated(loaded.data, rng))
        except GraphkilnError:
            refused += 1
        else:
            # What was hit is nothing that this load reads.
            torch.testing.assert_close(got, loaded.wanted)
    assert refused > 100


@pytest.mark.parametrize("section", ["backbone/wiring.json", "backbone/door.json", "code.json"])
def test_plain_data_that_was_twisted_ends_in_a_typed_error_or_a_sound_load(loaded: Toy, section: str) -> None:
    rng = random.Random(section)
    plain = json.loads(loaded.sections[section])
    outcomes: Counter[str] = Counter()
    for _ in range(400):
        wrong = twisted(plain, rng)
        if not isinstance(wrong, dict):
            continue
        text = json.dumps(wrong, sort_keys=True, separators=(",", ":")).encode()
        try:
            got: Any = loaded.load_and_call(packed(loaded.body, {**loaded.sections, section: text}))
        except GraphkilnError as error:
            outcomes[type(error).__name__] += 1
            continue
        outcomes["loaded"] += 1
        if all(wrong.get(name) == plain.get(name) for name in _UNBOUND):
            torch.testing.assert_close(got, loaded.wanted)
    assert len(outcomes) > 1, outcomes


@pytest.mark.parametrize("section", ["backbone/model.json", "backbone/buffers.safetensors"])
def test_a_model_is_restored_of_twisted_data_without_a_crash(
    llama: Compiled, tmp_path: Path, section: str
) -> None:
    deployment = Deployment("preset:llama")
    source = identify(deployment)
    data = self_contained(llama.entry, tmp_path / "llama.aot").read_bytes()
    body, sections = taken_apart(data)
    rng = random.Random(section)
    outcomes: Counter[str] = Counter()
    for _ in range(60):
        if section.endswith(".json"):
            wrong = json.dumps(twisted(json.loads(sections[section]), rng), separators=(",", ":")).encode()
        else:
            wrong = mutated(sections[section], rng)
        stored = AotStored(opened(packed(body, {**sections, section: wrong})), None)
        try:
            served, why = restored(stored, "backbone", source, deployment, torch.device("cpu"))
            outcomes["built" if served is None else "restored"] += 1
            if served is None:
                assert why
                continue
            target = cpu_target()
            part = load_stored_part(stored, Fetch(stored), "backbone", served.backbone, target)
            with torch.no_grad(), set_forward_context(dummy_context(served, deployment, 3)):
                part(*served.example_inputs(3))
        except GraphkilnError as error:
            outcomes[type(error).__name__] += 1
    assert len(outcomes) > 1, outcomes
