"""Which folder is the cache, and the folders inside it. Nothing is created before something is written."""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from graphkiln.cache.errors import RootUnusable
from graphkiln.cache.store.oserrors import typed_os_errors, unusable

CACHE_FOLDER = "torch_compile_cache"
_TAG = b"""Signature: 8a477f597d28d172789f06886806bc55
# This file marks a cache folder of graphkiln: backup programs may leave it out.
# See https://bford.info/cachedir/
"""
_MAX_PATH, _MAX_NAME = 4096, 255
# What an entry's own names add to the root's: folders, digests, a kernel's file name.
_PATH_RESERVE = 640


@dataclass(frozen=True)
class RootChoice:
    """The folder chosen as the root, and in words what chose it."""

    path: Path
    chosen_by: str


def resolve_root(explicit: Path | str | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the absolute path of the cache root; creates nothing."""
    return choose_root(explicit, environ).path


def choose_root(explicit: Path | str | None, environ: Mapping[str, str] = os.environ) -> RootChoice:
    """Return the cache root and why it is that one; an empty setting counts as unset.

    Order: the argument, GRAPHKILN_CACHE_ROOT, XDG_CACHE_HOME, the home folder, and a private
    folder named after the uid where there is no home that could hold a cache. `RootUnusable` for a
    path too long to hold an entry, and for a private folder that is not private.
    """
    if explicit is not None and str(explicit):
        return RootChoice(_usable(str(explicit), environ), "the argument")
    if environ.get("GRAPHKILN_CACHE_ROOT"):
        return RootChoice(_usable(environ["GRAPHKILN_CACHE_ROOT"], environ), "GRAPHKILN_CACHE_ROOT")
    xdg = environ.get("XDG_CACHE_HOME", "")
    # The XDG rules say to ignore a relative one.
    if os.path.isabs(xdg):
        return RootChoice(_usable(os.path.join(xdg, "graphkiln"), environ), "XDG_CACHE_HOME")
    home = _home(environ)
    if home is not None:
        path = _usable(os.path.join(home, ".cache", "graphkiln"), environ)
        if _could_exist(path):
            return RootChoice(path, "the home folder")
    return RootChoice(
        _private_folder(environ), "the uid, because there is no home folder that can hold a cache"
    )


@dataclass(frozen=True)
class CacheRoot:
    """The folders of one cache: `path` holds the locks, staging and the like, `cache` the entries."""

    path: Path
    cache: Path

    def __init__(self, path: Path, cache: Path | None = None) -> None:
        path = Path(os.path.abspath(path))
        object.__setattr__(self, "path", path)
        object.__setattr__(self, "cache", Path(os.path.abspath(cache or path / CACHE_FOLDER)))

    @classmethod
    def of_folder(cls, folder: Path) -> CacheRoot:
        """Return the root of an explicit cache folder: entries lie in it, the rest in `.graphkiln`."""
        return cls(folder / ".graphkiln", folder)

    @property
    def locks(self) -> Path:
        return self.path / "locks"

    @property
    def staging(self) -> Path:
        return self.path / "staging"

    @property
    def trash(self) -> Path:
        return self.path / "trash"

    @property
    def quarantine(self) -> Path:
        return self.path / "quarantine"

    @property
    def ledger(self) -> Path:
        return self.path / "starts.jsonl"

    def ensure(self) -> None:
        """Create the folders that writing needs, private to this user, and try that they can be written.

        `RootUnusable` or `DiskFull` where that fails.
        """
        with typed_os_errors(self.path):
            # The outer ones first: only the folder itself gets the mode, not the parents made on the way.
            for folder in (*sorted((self.path, self.cache)), self.locks, self.staging):
                os.makedirs(folder, mode=0o700, exist_ok=True)
            _write_tag(self.path / "CACHEDIR.TAG")
            # Without a name where the system can: a process killed here leaves nothing behind.
            tempfile.TemporaryFile(dir=self.staging).close()


def _write_tag(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return
    try:
        os.write(descriptor, _TAG)
    finally:
        os.close(descriptor)


def _usable(text: str, environ: Mapping[str, str]) -> Path:
    """Return an absolute path, or raise `RootUnusable` where no entry could ever lie under it."""
    if text == "~" or text.startswith("~/"):
        # Templates and container files set variables without a shell that would expand this.
        text = (_home(environ) or "~") + text[1:]
    try:
        path = Path(os.path.abspath(text))
    except OSError as error:
        raise unusable(Path(text), error) from error
    encoded = os.fsencode(path)
    too_long = len(encoded) + _PATH_RESERVE > _MAX_PATH
    if too_long or any(len(part) > _MAX_NAME for part in encoded.split(b"/")):
        reason = (
            f"its path is too long ({len(encoded)} bytes)" if too_long else "a part of its path is too long"
        )
        raise RootUnusable(path, reason, "choose a folder with a shorter path")
    if b"\0" in encoded:
        raise RootUnusable(path, "its path holds a zero byte", "choose another folder")
    return path


def _home(environ: Mapping[str, str]) -> str | None:
    home = environ.get("HOME", "")
    if not home:
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            return None
    return home if os.path.isabs(home) else None


def _could_exist(path: Path) -> bool:
    """Say whether the folder is there, or its nearest existing parent lets this user create it."""
    if os.path.isdir(path):
        return True
    parent = next(parent for parent in path.parents if os.path.lexists(parent))
    return os.path.isdir(parent) and os.access(parent, os.W_OK | os.X_OK)


def _private_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder named after the uid in the shared temporary folder; it must be this user's own.

    Anybody can create a folder of that name first, and whoever can write a cache can run code.
    """
    # Not `tempfile.gettempdir()`: it writes a file to find out, and raises where there is no place.
    path = _usable(os.path.join(environ.get("TMPDIR") or "/tmp", f"graphkiln-{os.getuid()}"), environ)
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return path
    except OSError as error:
        raise unusable(path, error) from error
    remedy = "set GRAPHKILN_CACHE_ROOT to a folder of your own"
    if not stat.S_ISDIR(status.st_mode):
        raise RootUnusable(path, "it is not a folder", remedy)
    if status.st_uid != os.getuid():
        raise RootUnusable(path, f"it belongs to uid {status.st_uid}", remedy)
    if status.st_mode & 0o022:
        raise RootUnusable(path, "other users can write to it", remedy)
    return path
