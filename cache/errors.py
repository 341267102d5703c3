"""The errors of `graphkiln.cache`, and the root of all errors of graphkiln.

    GraphkilnError
    +- CacheError
       +- NotCanonical          a factor value has no canonical form: the start is a bypass
       +- BadVariable           a GRAPHKILN_* variable holds a value that it does not accept
       +- SourceUnreadable      a source file cannot be read or parsed
       +- RootUnusable          the cache root cannot be used as asked
       +- DiskFull              no space left while writing
       +- LockTimeout           somebody else held a lock for longer than the limit
       +- KeyPrefixCollision    another key lies under the same ten digits
       +- EntryDamaged          a file of an entry is not what the entry says it is
       +- EntryNotFound         no entry answers to that name
       +- AmbiguousEntry        more than one entry answers to that name
       +- BadFilter             a filter expression is not understood
       +- RestoreRefused        what was set aside cannot be brought back
       +- EnvironmentUnreadable no environment can be read from a file or a process
       +- UnknownLayout         a foreign tree is of no version that is known
       +- FactorsChanged        the factors no longer give the key under which they would be stored

Every fact is an attribute. An error passes its facts to `Exception`, in the order of its
constructor, which is what makes it survive pickling.
"""

from __future__ import annotations

from pathlib import Path

_MOST_NAMES = 8


class GraphkilnError(Exception):
    """The root of every error that graphkiln raises on purpose."""

    # Whether it tells of an entry rather than of who called.
    blames_entry = False


class CacheError(GraphkilnError):
    """The root of the errors that `cache` raises."""


class NotCanonical(CacheError):
    """A value at `where` (a dotted path) cannot be put into canonical form, because of `reason`."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason)
        self.where, self.reason = where, reason

    def __str__(self) -> str:
        return f"not cacheable: {self.where or 'value'}, because {self.reason}"


class BadVariable(CacheError):
    """The environment variable `name` holds `value`; `accepted` says in words what it takes."""

    def __init__(self, name: str, value: str, accepted: str) -> None:
        super().__init__(name, value, accepted)
        self.name, self.value, self.accepted = name, value, accepted

    def __str__(self) -> str:
        return f"{self.name}={self.value!r} is not understood: it takes {self.accepted}"


class SourceUnreadable(CacheError):
    """The source file (or text) `where` cannot be read or parsed, because of `reason`."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason)
        self.where, self.reason = where, reason

    def __str__(self) -> str:
        return f"cannot read the source {self.where}: {self.reason}"


class RootUnusable(CacheError):
    """The cache root cannot be used: `path`, `reason`, and the `remedy` to type or do."""

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        super().__init__(path, reason, remedy)
        self.path, self.reason, self.remedy = path, reason, remedy

    def __str__(self) -> str:
        return f"the cache at {self.path} cannot be used: {self.reason}"


class DiskFull(CacheError):
    """No space was left at `path`; `needed_bytes` is the size of what was written, where known."""

    def __init__(self, path: Path, needed_bytes: int | None = None) -> None:
        super().__init__(path, needed_bytes)
        self.path, self.needed_bytes = path, needed_bytes

    def __str__(self) -> str:
        needed = "" if self.needed_bytes is None else f" ({self.needed_bytes} bytes were to be written)"
        return f"the disk is full at {self.path}{needed}"


class LockTimeout(CacheError):
    """The lock at `path` was not free within `waited_s`; `holder` says who held it, where known."""

    def __init__(self, path: Path, holder: str, waited_s: float) -> None:
        super().__init__(path, holder, waited_s)
        self.path, self.holder, self.waited_s = path, holder, waited_s

    def __str__(self) -> str:
        return f"waited {self.waited_s:.1f} s for the lock {self.path}, held by {self.holder}"


class KeyPrefixCollision(CacheError):
    """`found_key` lies under the ten digits `short` that `wanted_key` would take."""

    def __init__(self, short: str, wanted_key: str, found_key: str) -> None:
        super().__init__(short, wanted_key, found_key)
        self.short, self.wanted_key, self.found_key = short, wanted_key, found_key

    def __str__(self) -> str:
        return f"the folder {self.short} holds another key: wanted {self.wanted_key}, found {self.found_key}"


class EntryDamaged(CacheError):
    """`file` of the entry `entry` is not what the entry says it is.

    `fault` is one of `missing`, `size`, `digest`, `schema`, `unreadable`; `detail` says more where
    there is more to say.
    """

    def __init__(self, entry: str, file: str, fault: str, detail: str = "") -> None:
        super().__init__(entry, file, fault, detail)
        self.entry, self.file, self.fault, self.detail = entry, file, fault, detail

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return f"entry {self.entry} is damaged: {self.file}: {self.fault}{detail}"


class EntryNotFound(CacheError):
    """No entry answers to `ref`; the command `listing` shows those that are there."""

    def __init__(self, ref: str, listing: str = "graphkiln cache ls") -> None:
        super().__init__(ref, listing)
        self.ref, self.listing = ref, listing

    def __str__(self) -> str:
        return f"no entry answers to {self.ref!r}"


class NoIdGiven(CacheError):
    """`ref` ends where an id should begin; `listing` is the command that shows the ids."""

    def __init__(self, ref: str, listing: str) -> None:
        super().__init__(ref, listing)
        self.ref, self.listing = ref, listing

    def __str__(self) -> str:
        return f"no id after # in {self.ref!r}"


class AmbiguousEntry(CacheError):
    """More than one entry answers to `ref`: `matches` are their keys."""

    def __init__(self, ref: str, matches: tuple[str, ...]) -> None:
        super().__init__(ref, matches)
        self.ref, self.matches = ref, matches

    def __str__(self) -> str:
        names = [key[:10] for key in self.matches[:_MOST_NAMES]]
        more = f" and {len(self.matches) - len(names)} more" if len(self.matches) > len(names) else ""
        return f"{self.ref!r} is not unique: {', '.join(names)}{more}"


class BadFilter(CacheError):
    """The part `part` of a filter is not understood, because of `reason`; `names` are good ones."""

    def __init__(self, part: str, reason: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(part, reason, names)
        self.part, self.reason, self.names = part, reason, names

    @property
    def remedy(self) -> str:
        """What can stand there."""
        return f"good ones are {', '.join(self.names)}" if self.names else ""

    def __str__(self) -> str:
        return f"filter {self.part!r}: {self.reason}"


class RestoreRefused(CacheError):
    """What lies in quarantine under `name` cannot be brought back, because of `reason`."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason

    def __str__(self) -> str:
        return f"{self.name} cannot be restored: {self.reason}"


class FactorsChanged(CacheError):
    """The factors give `key_now`, while the entry was begun under `key_before`."""

    def __init__(self, key_before: str, key_now: str) -> None:
        super().__init__(key_before, key_now)
        self.key_before, self.key_now = key_before, key_now

    def __str__(self) -> str:
        return f"the factors changed under the key {self.key_before[:10]}: they now give {self.key_now[:10]}"


class UnknownLayout(CacheError):
    """What lies at `where` is no `layout` that is known; `seen` says in words what is there."""

    def __init__(self, where: str, layout: str, seen: str) -> None:
        super().__init__(where, layout, seen)
        self.where, self.layout, self.seen = where, layout, seen

    def __str__(self) -> str:
        return f"{self.where} is no {self.layout} cache of a known version: {self.seen}"


class EnvironmentUnreadable(CacheError):
    """No environment can be read from `where`, because of `reason`."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason)
        self.where, self.reason = where, reason

    def __str__(self) -> str:
        return f"no environment can be read from {self.where}: {self.reason}"
