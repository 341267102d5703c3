"""What `explain` answers beside a miss: a hit, what cannot be known, and starts that can hit nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from graphkiln.cache.store.entries import Entry
from graphkiln.cli.show.explain import explain_lines
from graphkiln.cli.show.terminal import Style
from graphkiln.core import explain as explaining
from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import Bypass
from tests.explain.conftest import DEPLOYMENT, Traced
from tests.explain.recorded import setting
from tests.explain.test_single_changes import key_report

Publish = Callable[..., Entry]


@pytest.fixture
def traces(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second trace of the same model gives what the first one gave."""
    monkeypatch.setattr(explaining, "key", lambda *_: key_report(traced))


def test_an_empty_cache_is_a_miss_and_stays_empty(root: Path) -> None:
    found = explaining.explain(DEPLOYMENT, cache_root=root)
    assert (found.outcome, found.entries, found.nearest) == ("miss", 0, ())
    assert not root.exists()


@pytest.mark.usefixtures("traces")
def test_a_trace_settles_what_is_unknown(publish: Publish, root: Path) -> None:
    entry = publish()
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    found = explaining.explain(DEPLOYMENT, cache_root=root)
    assert (found.outcome, found.entry, found.key) == ("unknown", entry.short, None)
    found = explaining.explain(DEPLOYMENT, trace=True, cache_root=root)
    assert (found.outcome, found.entry, found.key, found.saves) == ("hit", entry.short, entry.key, 12.5)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


@pytest.mark.usefixtures("traces")
def test_a_damaged_entry_is_named_with_its_file(publish: Publish, root: Path) -> None:
    entry = publish()
    file = next(entry.path.glob("artifacts/*/wrapper.py"))
    file.write_text("def call(args): 1/0\n")
    found = explaining.explain(DEPLOYMENT, trace=True, cache_root=root)
    assert found.outcome == "miss"
    (near,) = found.nearest
    assert near.causes[0].difference.name == f"entry {entry.short}"
    assert "wrapper.py" in near.causes[0].difference.now
    assert file.exists()


def test_a_bypass_names_the_factor_and_is_no_miss(
    publish: Publish, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish()
    found = explaining.explain(DEPLOYMENT, CompilationConfig(optimization_level=0), cache_root=root)
    assert (found.outcome, found.reasons[0].name) == ("bypass", "compilation.mode")

    options = CompilationConfig(inductor_compile_config={"post_grad_custom_pre_pass": print})
    found = explaining.explain(DEPLOYMENT, options, cache_root=root)
    assert found.outcome == "bypass"
    assert (
        "post_grad_custom_pre_pass" in found.reasons[0].now
        or "inductor_compile_config" in found.reasons[0].now
    )

    def refuse(*_: object) -> None:
        raise Bypass("code", "the model reads the whole environment while it is traced")

    monkeypatch.setattr(explaining, "key", refuse)
    found = explaining.explain(DEPLOYMENT, trace=True, cache_root=root)
    assert (found.outcome, found.reasons[0].factor) == ("bypass", "code")

    monkeypatch.setenv("GRAPHKILN_DISABLE_COMPILE_CACHE", "1")
    found = explaining.explain(DEPLOYMENT, cache_root=root)
    assert (found.outcome, found.reasons[0].remedy) == ("bypass", "unset GRAPHKILN_DISABLE_COMPILE_CACHE")


def test_an_explicit_cache_folder_is_where_entries_are_looked_for(publish: Publish, root: Path) -> None:
    entry = publish(setting("config", "max_num_batched_tokens", 64))
    folder = CompilationConfig(cache_dir=str(entry.path.parent))
    found = explaining.explain(DEPLOYMENT, folder, cache_root=root / "elsewhere")
    assert [cause.difference.name for cause in found.nearest[0].causes] == ["max_num_batched_tokens"]


def test_sizes_may_change_the_code_of_a_model_that_a_factory_builds(publish: Publish, root: Path) -> None:
    def of_a_factory(recorded: object) -> None:
        setting("config", "model", {"factory": "my.models:make"})(recorded)  # type: ignore[arg-type]

    def other_tokens(recorded: object) -> None:
        setting("config", "model", {"factory": "my.models:make"})(recorded)  # type: ignore[arg-type]
        for name in ("max_num_batched_tokens", "max_model_len"):
            setting("config", name, 64)(recorded)  # type: ignore[arg-type]

    def other_blocks(recorded: object) -> None:
        of_a_factory(recorded)
        setting("config", "block_size", 32)(recorded)  # type: ignore[arg-type]

    from graphkiln.cache.inspect.diff import diff

    (cause,) = diff(publish(other_blocks), publish(of_a_factory)).causes
    assert (cause.difference.name, cause.difference.relevant) == ("block_size", True)
    # Nobody set its length: it is as long as a step.
    (cause,) = diff(publish(other_tokens), publish(of_a_factory)).causes
    assert cause.difference.name == "max_num_batched_tokens"
    assert [one.name for one in cause.consequences] == ["max_model_len"]


def test_an_entry_of_another_model_is_never_the_nearest(publish: Publish, root: Path) -> None:
    from tests.explain.changes import CHANGES

    by_title = {change.title: change for change in CHANGES}
    other = publish(by_title["another model"].edit)

    def three(recorded: object) -> None:
        for title in ("dtype", "tokens", "torch"):
            by_title[title].edit(recorded)  # type: ignore[arg-type]

    same = publish(three)
    found = explaining.explain(DEPLOYMENT, cache_root=root)
    assert [near.id for near in found.nearest] == [same.short, other.short]


def test_the_real_command_says_what_to_type(publish: Publish, root: Path) -> None:
    publish()
    done = subprocess.run(
        [sys.executable, "-m", "graphkiln.cli", "explain", "preset:llama", "--dtype", "bfloat16",
         "--max-num-seqs", "7", "--cache-root", str(root)],
        capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1"},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "1. config.dtype\n" in done.stdout
    assert "   to hit it  --dtype float32\n" in done.stdout
    assert "2. config.max_num_seqs\n" in done.stdout
    assert "cannot change generated code, but is in the key" in done.stdout
    # A path is as long as it is.
    assert all(len(line) <= 80 for line in done.stdout.splitlines() if str(root) not in line)


def test_a_model_that_is_not_there_is_bad_input_not_a_miss(root: Path) -> None:
    from graphkiln.core.errors import ModelError

    with pytest.raises(ModelError):
        explaining.explain(Deployment("no/such/folder"), cache_root=root)


@pytest.mark.parametrize("name", ["entry.json", "factors.json"])
def test_an_entry_of_which_nobody_can_say_what_it_was_for_is_named(
    publish: Publish, root: Path, name: str
) -> None:
    entry = publish()
    (entry.path / name).write_bytes(b"{}")
    found = explaining.explain(DEPLOYMENT, cache_root=root)
    assert (found.outcome, found.nearest) == ("miss", ())
    (text,) = found.left_out
    assert text.startswith(f"entry {entry.short} is damaged: {name}: ")
    assert f"left out  {text}"[:60] in "\n".join(explain_lines(found, "preset:llama", Style(), every=False))
