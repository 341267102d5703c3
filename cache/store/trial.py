"""Entries on trial: one whose first call ended its process is suspect, and the next start skips it.

So is an AOT file whose entry is not in this cache; it stays suspect, for it cannot be set aside.

The mark is a lock file that its holder unlinks when the call came back. A process that dies leaves
the file and loses the lock, which is how a later start tells a dead caller from a slow one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from graphkiln.cache.errors import CacheError, GraphkilnError
from graphkiln.cache.factors.canonical import digest
from graphkiln.cache.store.aot_header import AotHeader
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.locks import owned_lock
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.state import update_state


@contextmanager
def on_trial(root: CacheRoot, entry: Entry | AotHeader) -> Iterator[None]:
    """Hold the mark of `entry`, or of an AOT file by its header, while the block, a first call, runs.

    An exception is the entry's fault and leaves the mark, unless it is graphkiln's own, which blames
    the caller, or says that memory ran out. Where nothing can be written, nothing is marked; of
    several processes at once one holds the mark.
    """
    mark = _mark(root, entry)
    blamed = False
    with ExitStack() as held:
        alone = False
        with suppress(OSError, NotImplementedError, CacheError):
            root.ensure()
            alone = held.enter_context(owned_lock(mark))
        try:
            yield
        except GraphkilnError as error:
            blamed = alone and error.blames_entry
            raise
        except MemoryError:
            raise
        except Exception:
            blamed = alone
            raise
        finally:
            held.close()
            if blamed:
                with suppress(OSError):
                    mark.touch(mode=0o600)


def prove(root: CacheRoot, entry: Entry) -> None:
    """Note that every first call of `entry` came back once: it is on trial no more."""
    update_state(root, entry.path, proved=True)


def is_suspect(root: CacheRoot, entry: Entry | AotHeader) -> bool:
    """Whether a first call of `entry` never came back, in a process that is no more; says so once."""
    mark = _mark(root, entry)
    if not mark.exists():
        return False
    with suppress(OSError, NotImplementedError), owned_lock(mark) as alone:
        return alone
    return False


def stays_suspect(root: CacheRoot, file: AotHeader) -> bool:
    """Whether a first call of an AOT file never came back; told every start until the file is another."""
    if not is_suspect(root, file):
        return False
    with suppress(OSError):
        _mark(root, file).touch(mode=0o600)
    return True


def _mark(root: CacheRoot, entry: Entry | AotHeader) -> Path:
    # Named by the header too: an entry that was made again is not to blame for the one before.
    header = entry.body if isinstance(entry, AotHeader) else entry.header
    return root.locks / f"trial-{entry.short}-{digest(header)[:10]}.lock"
