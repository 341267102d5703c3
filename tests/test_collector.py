"""The garbage collector stays out of what makes only objects that stay, and is as it was afterwards."""

from __future__ import annotations

import contextlib
import gc
import importlib
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

import graphkiln.core
from graphkiln.core.collector import collector_paused, collector_relaxed

DEFAULT = gc.get_threshold()


class Circle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _on() -> Iterator[None]:
    assert gc.isenabled()
    # Some interpreters begin with frozen objects.
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.enable()
    gc.set_threshold(*DEFAULT)


def test_nothing_is_collected_meanwhile_and_nothing_is_walked_through_right_after() -> None:
    collections: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        collections.append(info["generation"])

    gc.callbacks.append(note)
    try:
        with collector_paused():
            kept = [Circle() for _ in range(10_000)]
        assert collections == []
    finally:
        gc.callbacks.remove(note)
    assert gc.isenabled()
    oldest = {id(one) for one in gc.get_objects(generation=2)}
    assert all(id(one) in oldest for one in kept)


def test_it_comes_back_after_an_error_too() -> None:
    with pytest.raises(ValueError, match="no"), collector_paused():
        raise ValueError("no")
    assert gc.isenabled()


def test_who_turned_it_off_finds_it_off() -> None:
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()


def test_what_somebody_froze_stays_frozen() -> None:
    gc.freeze()
    with collector_paused():
        pass
    # What is frozen may still end by itself.
    assert gc.get_freeze_count() > 0
    assert gc.isenabled()


def test_a_body_that_makes_much_is_seldom_looked_through_and_its_garbage_is_found() -> None:
    before = [Circle() for _ in range(100)]
    with collector_relaxed():
        assert gc.get_freeze_count() > len(before)
        made = weakref.ref(Circle())
        for _ in range(10_000):
            Circle()
        assert made() is not None
        for _ in range(100_000):
            Circle()
        assert made() is None
        gc.set_threshold(1, 1, 1)
    assert gc.get_threshold() == DEFAULT
    assert gc.get_freeze_count() == 0


def test_thresholds_that_are_higher_stay_and_come_back_after_an_error() -> None:
    gc.set_threshold(90_000, 5, 5)
    with contextlib.suppress(ValueError), collector_relaxed():
        assert gc.get_threshold()[0] == 90_000
        raise ValueError
    assert gc.get_threshold() == (90_000, 5, 5)


def test_of_several_bodies_the_last_to_end_puts_all_back() -> None:
    first, second = collector_relaxed(), collector_relaxed()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold()[0] == 50_000
    second.__exit__(None, None, None)
    assert gc.get_threshold() == DEFAULT
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("off", [gc.disable, lambda: gc.set_threshold(0)])
def test_who_turned_it_off_has_it_off_while_much_is_made(off: Callable[[], None]) -> None:
    off()
    thresholds = gc.get_threshold()
    with collector_relaxed():
        assert gc.get_threshold() == thresholds
        assert gc.get_freeze_count() == 0


def test_what_the_library_imports_late_is_imported_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[bool] = []
    real = importlib.import_module

    def noting(name: str) -> ModuleType:
        states.append(gc.isenabled())
        return real(name)

    monkeypatch.setattr(importlib, "import_module", noting)
    assert graphkiln.core.Deployment is not None
    assert states == [False]
    assert gc.isenabled()
