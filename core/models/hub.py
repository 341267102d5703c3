"""Models of the Hugging Face Hub: folders in the cache of huggingface_hub, downloaded where they lack.

What the cache holds is taken as it is, without asking for something newer, so that a start needs no
network and the next one serves the same model. Tried on huggingface_hub 2.4.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from graphkiln.core.errors import ModelError
from graphkiln.core.models.provenance import import_untouched
from graphkiln.core.models.weights import INDEX, SINGLE

_ID = re.compile(r"(?P<name>[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*)(@(?P<revision>\w[\w.-]*))?", re.ASCII)
_CONFIGS = ("config.json", "generation_config.json")
_NOT_CACHED = "no such folder, and the cache of huggingface_hub"


def is_hub_id(ref: str) -> bool:
    """Whether `ref` reads `org/name` or `org/name@revision`."""
    return _ID.fullmatch(ref) is not None


def config_folder(ref: str) -> Path:
    """Returns the folder of a hub id's revision, with its config.json; the weights may be missing.

    Its name is the commit. Raises ModelError where the model is neither cached nor to be had.
    """
    return _cached(ref) or _downloaded(ref, _CONFIGS, _lacks_config)


def complete_weights(ref: str, folder: Path) -> None:
    """Downloads what the folder of a hub id lacks of its weights, of the same commit as its config."""
    if _lacks_weights(folder) is not None:
        _downloaded(ref, (SINGLE, INDEX, f"*-of-*{Path(SINGLE).suffix}"), _lacks_weights, folder)


def cached_name(folder: Path) -> str | None:
    """Returns `org/name` for a folder of such a cache, None for any other."""
    model = folder.parent.parent.name
    if folder.parent.name != "snapshots" or not model.startswith("models--"):
        return None
    return model.removeprefix("models--").replace("--", "/")


def _cached(ref: str) -> Path | None:
    name, revision = _parts(ref)
    root = Path(_constants().HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
    try:
        commit = (root / "refs" / revision).read_text(encoding="utf-8").strip()
    except OSError:
        commit = revision
    folder = root / "snapshots" / commit
    # The files are links: one that leads nowhere is no file.
    return folder if (folder / "config.json").exists() else None


def _lacks_config(folder: Path) -> str | None:
    return None if (folder / "config.json").exists() else "config.json"


def _lacks_weights(folder: Path) -> str | None:
    """The name of a weight file that is not there, None when all are."""
    try:
        shards = set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
    except FileNotFoundError:
        shards = {SINGLE}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # Whoever reads the weights says what is wrong with it.
        return None
    return min((shard for shard in shards if not (folder / shard).exists()), default=None)


def _downloaded(
    ref: str, patterns: Sequence[str], lacking: Callable[[Path], str | None], held: Path | None = None
) -> Path:
    """The folder of a revision with more of its files than the cache held; of the commit of `held`."""
    name, revision = _parts(ref)
    command = f"hf download {name}" + (f" --revision {revision}" if "@" in ref else "")
    missing = "config.json" if held is None else lacking(held)
    lacks = "does not hold it" if held is None else f"holds it without {missing}"
    if _constants().is_offline_mode():
        raise ModelError(
            ref, f"{_NOT_CACHED} {lacks}; HF_HUB_OFFLINE is set", f"unset HF_HUB_OFFLINE, or first: {command}"
        )
    errors: Any = import_untouched("huggingface_hub.errors")
    try:
        with _silent():
            hub: Any = import_untouched("huggingface_hub")
            commit = revision if held is None else held.name
            # Without a network this fails at once, a download only after many attempts.
            hub.model_info(name, revision=commit)
            folder = Path(hub.snapshot_download(name, revision=commit, allow_patterns=list(patterns)))
    except errors.GatedRepoError:
        raise ModelError(
            ref, "the Hub gives it only to who was granted access", "ask for access, then: hf auth login"
        ) from None
    except errors.RepositoryNotFoundError:
        raise ModelError(
            ref, "no such folder, and the Hub shows no such model", "correct the name, or: hf auth login"
        ) from None
    except errors.RevisionNotFoundError:
        raise ModelError(
            ref, f"the Hub has no revision {revision!r} of it", "give another @revision"
        ) from None
    except Exception as error:
        # What a network does wrong comes as errors of several libraries, without a common root.
        cause = error.__cause__ or error
        told = " ".join(f"{type(cause).__name__}: {cause}".split())[:160]
        raise ModelError(
            ref,
            f"{_NOT_CACHED} {lacks}; the Hub cannot be reached ({told})",
            f"connect, or bring the cache from elsewhere: {command}",
        ) from error
    missing = lacking(folder)
    if missing is not None:
        raise ModelError(
            ref, f"the Hub's model has no {missing}", "give a model of transformers with safetensors"
        )
    return folder


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Inside, huggingface_hub neither draws progress nor logs: what is wrong is told by an error of ours."""
    hub: Any = import_untouched("huggingface_hub.utils")
    level, shown = hub.logging.get_verbosity(), not hub.are_progress_bars_disabled()
    hub.logging.set_verbosity_error()
    if shown:
        hub.disable_progress_bars()
    try:
        yield
    finally:
        hub.logging.set_verbosity(level)
        if shown:
            hub.enable_progress_bars()


def _parts(ref: str) -> tuple[str, str]:
    found = _ID.fullmatch(ref)
    assert found is not None
    return found["name"], found["revision"] or "main"


def _constants() -> Any:
    return import_untouched("huggingface_hub.constants")
