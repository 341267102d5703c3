"""Launches of machine code that came with an entry, by what each was compiled for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphkiln.core.ops.specialisations import LayerDtypes, Specialisation

# Takes the grid, the kernel's arguments without its constants, and `stream`.
Launch = Callable[..., None]


class Launches:
    """What a model's attention is launched by; empty where no entry brought any.

    All of them lie on the device of index `device`. `dtypes` are those that each layer, by its name, is
    called with.
    """

    def __init__(self) -> None:
        self.device = 0
        self.dtypes: Mapping[str, LayerDtypes] = {}
        self._found: dict[Specialisation, Launch] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def put(
        self, found: Mapping[Specialisation, Launch], device: int, dtypes: Mapping[str, LayerDtypes]
    ) -> None:
        """Puts what an entry holds in the place of what was there."""
        self.device, self.dtypes, self._found = device, dict(dtypes), dict(found)

    def all(self) -> Mapping[Specialisation, Launch]:
        """Returns every launch, by what it was compiled for."""
        return self._found

    def find(self, wanted: Specialisation) -> Launch | None:
        """Returns the launch of code that was made for just that, None when there is none."""
        return self._found.get(wanted)

    def missing(self, wanted: tuple[Specialisation, ...]) -> tuple[Specialisation, ...]:
        """Returns those for which there is no code."""
        return tuple(one for one in wanted if one not in self._found)

    def why_not(self, wanted: Specialisation) -> str:
        """Returns how what is wanted differs from the code that comes closest, as a clause."""
        near = [one for one in self._found if one.kernel == wanted.kernel]
        differences = sorted((wanted.difference(one) for one in near), key=len)
        return ", ".join(differences[0]) if differences else "the entry has none of that kernel"
