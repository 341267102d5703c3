"""Variables that a model reads while it is traced: found in every way of reading, named when they change."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from os import environ, getenv
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.runtime.cache_dir_utils import cache_dir

from graphkiln.core import support_torch_compile
from graphkiln.core.errors import Bypass
from graphkiln.core.trace.code import check_code
from tests.trace.traced import trace

NAME = "TOY_SWITCH"


def by_get() -> bool:
    return os.environ.get("TOY_SWITCH") == "1"


def by_getenv() -> bool:
    return os.getenv("TOY_SWITCH", "0") == "1"


def by_imported_names() -> bool:
    return getenv("TOY_SWITCH") == "1" and "TOY_SWITCH" in environ


def by_in() -> bool:
    return "TOY_SWITCH" in os.environ


def by_item() -> bool:
    try:
        return os.environ["TOY_SWITCH"] == "1"
    except KeyError:
        return False


def by_computed_name() -> bool:
    return os.environ.get(f"TOY_{'switch'.upper()}") == "1"


READS: tuple[Callable[[], bool], ...] = (
    by_get, by_getenv, by_imported_names, by_in, by_item, by_computed_name,
)  # fmt: skip


@support_torch_compile
class Reads(nn.Module):
    def __init__(self, read: Callable[[], Any]) -> None:
        super().__init__()
        self.read = read

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.read() else x + 1


@pytest.mark.parametrize("value", ["1", "0", None], ids=["set", "other", "absent"])
@pytest.mark.parametrize("read", READS, ids=lambda read: read.__name__)
def test_a_read_is_recorded_and_a_later_change_is_named(
    read: Callable[[], bool], value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_or_unset(monkeypatch, value)
    module = Reads(read)
    code = trace(module).code
    assert code.factor["environment"] == {NAME: value}
    for later in ("1", "0", None):
        set_or_unset(monkeypatch, later)
        found = check_code(code.factor, code.sources, module)
        wanted = [] if later == value else [(f"environment {NAME}", value, later)]
        assert [(one.name, one.then, one.now) for one in found] == wanted


def test_inductor_s_folder_is_left_alone_while_a_model_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    # There torch looks for a bisection that it is in the middle of, and makes the folder.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/proc/no/folder")
    compile_, folders = torch.compile, []

    def compiles(*args: Any, **named: Any) -> Any:
        folders.append(cache_dir())
        return compile_(*args, **named)

    monkeypatch.setattr(torch, "compile", compiles)
    trace(Reads(by_get))
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/proc/no/folder"
    assert folders
    assert not any(map(os.path.exists, folders))


def set_or_unset(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is None:
        monkeypatch.delenv(NAME, raising=False)
    else:
        monkeypatch.setenv(NAME, value)


def whole_copy() -> bool:
    return bool(dict(os.environ))


def whole_items() -> bool:
    return len([value for _, value in os.environ.items() if value == "1"]) > 0


def whole_length() -> bool:
    return len(os.environ) > 3


def write() -> bool:
    os.environ["TOY_SWITCH"] = "1"
    return True


def write_default() -> bool:
    return os.environ.setdefault("TOY_SWITCH", "1") == "1"


def delete() -> bool:
    os.environ.pop("TOY_SWITCH", None)
    return True


@pytest.mark.parametrize(
    "act", [whole_copy, whole_items, whole_length, write, write_default, delete], ids=lambda act: act.__name__
)
def test_the_whole_environment_and_writes_are_refused(
    act: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    if act is delete:
        monkeypatch.setenv(NAME, "1")
    else:
        monkeypatch.delenv(NAME, raising=False)
    before = dict(os.environ)
    with pytest.raises(Bypass, match="environment"):
        trace(Reads(act))
    assert dict(os.environ) == before


SECRETS = ("TOY_API_TOKEN", "TOY_KEY", "toy_password", "TOY_CLIENT_SECRET")


def secret_reader(name: str) -> Callable[[], bool]:
    def read() -> bool:
        return os.environ.get(name) is not None

    return read


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_stored_as_a_digest_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "hunter2-hunter2")
    module = Reads(secret_reader(name))
    code = trace(module).code
    assert "hunter2" not in json.dumps([code.factor, code.sources])
    assert code.factor["environment"][name].startswith("sha256:")
    assert check_code(code.factor, code.sources, module) == []
    monkeypatch.setenv(name, "another")
    (found,) = check_code(code.factor, code.sources, module)
    assert found.name == f"environment {name}"
    assert "another" not in f"{found.now} {found.remedy}"


def test_no_value_of_the_environment_is_stored_but_of_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_UNREAD", "a-value-nobody-reads")
    monkeypatch.setenv(NAME, "1")
    for read in READS:
        assert "a-value-nobody-reads" not in json.dumps(trace(Reads(read)).code.factor)
