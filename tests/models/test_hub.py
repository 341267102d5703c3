"""Models by the name that they have on the Hub: from a cache, from a Hub, and from neither."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

from graphkiln.core.config.compilation import CompilationConfig
from graphkiln.core.deployment import Deployment
from graphkiln.core.errors import ModelError
from graphkiln.core.models.load import build
from graphkiln.core.models.source import ModelSource, identify
from graphkiln.core.plan import make_plan
from tests.models import fake_hub
from tests.models.conftest import MakeFolder
from tests.models.fake_hub import COMMIT, NAME, Hub

UNREACHABLE = "http://127.0.0.1:9"
# Constants of huggingface_hub are what they are at its import: each Hub needs a process of its own.
CHILD = """
import json, sys
from graphkiln.cache.errors import GraphkilnError
from graphkiln.core.deployment import Deployment
from graphkiln.core.models.source import identify, stored_weights
deployment = Deployment(sys.argv[1])
try:
    source = identify(deployment)
    answer = {"path": str(source.path), "label": source.label}
    if sys.argv[2] != "identify":
        answer["tensors"] = len(stored_weights(source, sys.argv[1]))
    answer["heavy"] = "torch" in sys.modules
    if sys.argv[2] == "build":
        from graphkiln.core.models.light import describe
        from graphkiln.core.models.load import build
        answer["described"] = describe(build(source, deployment)) is not None
except GraphkilnError as error:
    answer = {"error": str(error), "remedy": error.remedy}
print(json.dumps(answer))
"""


@pytest.fixture
def folder(make_folder: MakeFolder) -> Path:
    return make_folder(shard_size="100KB")


@pytest.fixture
def hub(folder: Path) -> Iterator[Hub]:
    with fake_hub.serving(folder) as running:
        yield running


@pytest.fixture
def cached(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that holds the model, in a process that may not ask the Hub: the snapshot."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return fake_hub.cache(tmp_path / "home", folder)


def child(
    home: Path, do: str = "identify", *, ref: str = NAME, endpoint: str = UNREACHABLE, **environ: str
) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, ref, do],
        env={**os.environ, "HF_HOME": str(home), "HF_ENDPOINT": endpoint, **environ},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return {name: str(value) for name, value in json.loads(done.stdout).items()}


def refusal(ref: str) -> ModelError:
    with pytest.raises(ModelError) as caught:
        identify(Deployment(ref))
    assert "\n" not in str(caught.value)
    return caught.value


def test_what_is_not_cached_is_downloaded_once_and_only_as_far_as_needed(hub: Hub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    snapshot = str(home / "hub/models--org--tiny/snapshots" / COMMIT)
    assert child(home, endpoint=hub.url) == {"path": snapshot, "label": NAME, "heavy": "False"}
    assert hub.downloads() == ["config.json", "generation_config.json"]
    # A model that was downloaded in the same process can be restored by the next.
    assert child(home, "build", endpoint=hub.url)["described"] == "True"
    weights = [file.name for file in hub.folder.iterdir() if file.name.startswith("model")]
    assert hub.downloads() == sorted(weights)
    complete = child(home, "weights")
    assert (complete["tensors"], complete["heavy"]) == ("21", "False")


def test_what_the_hub_lacks_is_named(hub: Hub, tmp_path: Path) -> None:
    for file in hub.folder.glob("model*"):
        file.unlink()
    assert "the Hub's model has no model.safetensors" in child(tmp_path, "weights", endpoint=hub.url)["error"]


@pytest.mark.parametrize(
    ("environ", "says", "remedy"),
    [
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE"),
        ({}, "the Hub cannot be reached", "hf download org/tiny"),
    ],
    ids=["offline", "no network"],
)
def test_neither_cached_nor_online_is_one_line(
    folder: Path, tmp_path: Path, environ: dict[str, str], says: str, remedy: str
) -> None:
    nothing = child(tmp_path / "empty", **environ)
    fake_hub.cache(tmp_path / "home", folder, only=("config.json",))
    no_weights = child(tmp_path / "home", "weights", **environ)
    for answer, lacks in ((nothing, "does not hold it"), (no_weights, "holds it without model.safetensors")):
        text = answer["error"]
        assert lacks in text
        assert says in text
        assert "\n" not in text
        assert remedy in answer["remedy"]


@pytest.mark.parametrize(
    ("ref", "says"), [("org/none", "the Hub shows no such model"), (f"{NAME}@v9", "has no revision 'v9'")]
)
def test_what_the_hub_does_not_have_is_one_line(hub: Hub, tmp_path: Path, ref: str, says: str) -> None:
    assert says in child(tmp_path / "home", ref=ref, endpoint=hub.url)["error"]


def test_a_model_is_known_by_the_content_of_its_config(
    cached: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lookup(source: str) -> str | None:
        return make_plan(Deployment(source), CompilationConfig()).lookup

    of_hub = lookup(NAME)
    assert of_hub == lookup(str(folder))
    newer = fake_hub.cache(tmp_path / "home", folder, commit="f" * 40)
    assert identify(Deployment(NAME)).path == newer
    assert lookup(NAME) == of_hub
    assert identify(Deployment(f"{NAME}@{COMMIT}")).path == cached
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "tiny").mkdir(parents=True)
    assert "has no config.json" in str(refusal(NAME))


def test_the_commit_is_among_the_decisions(cached: Path) -> None:
    decisions = make_plan(Deployment(NAME), CompilationConfig()).decisions
    assert [(d.asked, d.got) for d in decisions if d.field == "model"] == [(NAME, COMMIT)]


def test_a_folder_of_links_is_read_through_its_own_names(cached: Path, folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "linked"
    link.symlink_to(cached, target_is_directory=True)
    sources = {ref: identify(Deployment(ref)) for ref in (NAME, str(cached), str(link), str(folder))}
    assert [source.label for source in sources.values()] == [NAME, NAME, "linked", "model"]
    assert [source.path for source in sources.values()] == [cached, cached, link, folder]

    def norm(ref: str, source: ModelSource) -> torch.Tensor:
        return build(source, Deployment(ref)).backbone.get_parameter("model.norm.weight")

    first, *others = [norm(ref, source) for ref, source in sources.items()]
    assert all(torch.equal(first, other) for other in others)


def test_random_weights_need_nothing_but_the_config(folder: Path, cached: Path) -> None:
    for file in cached.glob("model*"):
        file.unlink()
    deployment = Deployment(NAME, load_format="dummy")
    assert build(identify(deployment), deployment).vocab_size == 128


def test_a_link_that_leads_nowhere_is_a_missing_file(cached: Path) -> None:
    (cached / "model-00002-of-00004.safetensors").resolve().unlink()
    source = identify(Deployment(NAME))
    with pytest.raises(ModelError, match=r"without model-00002-of-00004\.safetensors; HF_HUB_OFFLINE is set"):
        build(source, Deployment(NAME))
    (cached / "config.json").resolve().unlink()
    assert "does not hold it" in str(refusal(NAME))
