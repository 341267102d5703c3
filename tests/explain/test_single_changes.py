"""Each single change is named first, by `diff` and by `explain`, with its remedy and nothing unrelated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from graphkiln.cache.inspect.catalogue import scan
from graphkiln.cache.inspect.causes import Cause
from graphkiln.cache.inspect.diff import DIFFERENT, diff
from graphkiln.cache.inspect.filters import select
from graphkiln.cache.store.entries import Entry
from graphkiln.cache.store.root import CacheRoot
from graphkiln.cache.store.store import Store
from graphkiln.cli.show.causes import qualified
from graphkiln.core import explain as explaining
from graphkiln.core.report import KeyReport
from graphkiln.core.stale import find_stale
from tests.explain.changes import CHANGES, Change
from tests.explain.conftest import DEPLOYMENT, Traced
from tests.explain.recorded import Recorded

Publish = Callable[..., Entry]
each_change = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.title)


def hold(change: Change, causes: tuple[Cause, ...]) -> None:
    names = [qualified(cause.difference) for cause in causes]
    assert len(names) == 1, names
    assert names[0].startswith(change.name)
    assert causes[0].difference.factor == change.factor
    assert change.remedy in causes[0].difference.remedy
    assert causes[0].difference.relevant is change.relevant


@each_change
def test_diff_names_it_and_a_filter_selects_it(change: Change, publish: Publish, root: Path) -> None:
    changed, plain = publish(change.edit), publish()
    found = diff(changed, plain)
    assert found.verdict == DIFFERENT
    assert not found.same[change.factor]
    hold(change, found.causes)
    hold(change, diff(changed, plain, change.factor).causes)
    if change.filter is not None:
        rows = scan(Store(CacheRoot(root))).rows
        assert {row.id for row in rows} == {changed.short, plain.short}
        assert [row.id for row in select(rows, [change.filter])] == [changed.short]


@each_change
def test_explain_names_it(
    change: Change, publish: Publish, root: Path, traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = publish(change.edit)
    if change.traced:
        monkeypatch.setattr(explaining, "key", lambda *_: key_report(traced))
    found = explaining.explain(DEPLOYMENT, trace=change.traced, cache_root=root)
    assert found.outcome == "miss"
    assert [near.id for near in found.nearest] == [changed.short]
    hold(change, found.nearest[0].causes)
    # What was not looked at is said.
    assert bool(found.assumed) is not change.traced


@pytest.mark.parametrize(
    "change", [change for change in CHANGES if change.traced], ids=lambda change: change.title
)
def test_what_only_a_trace_can_see_is_unknown_without_one(
    change: Change, publish: Publish, root: Path
) -> None:
    changed = publish(change.edit)
    found = explaining.explain(DEPLOYMENT, cache_root=root)
    assert (found.outcome, found.entry) == ("unknown", changed.short)
    assert "only a trace can tell" in found.assumed[0]


@pytest.mark.parametrize(
    "change",
    [change for change in CHANGES if change.factor in ("code", "compiler")],
    ids=lambda change: change.title,
)
def test_the_entry_is_stale_here_because_of_that_factor(change: Change, publish: Publish) -> None:
    changed, plain = publish(change.edit), publish()
    found = find_stale({"changed": str(changed.path), "plain": str(plain.path)}, [change.factor])
    # An entry for another target was never for this machine, and what only a trace sees is left alone.
    expected = not change.traced and not change.name.startswith("compiler.target")
    assert found["changed"]["stale"] is expected, found["changed"]["why"]
    assert not found["plain"]["stale"], found["plain"]["why"]


def test_the_nearest_entry_is_the_one_that_differs_least(publish: Publish, root: Path) -> None:
    def both(*changes: Change) -> Entry:
        def edit(recorded: Recorded) -> None:
            for change in changes:
                change.edit(recorded)

        return publish(edit)

    by_title = {change.title: change for change in CHANGES}
    far = both(by_title["dtype"], by_title["tokens"], by_title["torch"])
    near = both(by_title["tokens"])
    middle = both(by_title["dtype"], by_title["tokens"])
    harmless = both(by_title["requests"])
    found = explaining.explain(DEPLOYMENT, cache_root=root, limit=9)
    assert [row.id for row in found.nearest] == [harmless.short, near.short, middle.short, far.short]
    assert [len(row.causes) for row in found.nearest] == [1, 1, 2, 3]


def key_report(traced: Traced) -> KeyReport:
    from graphkiln.cache.factors.key import Factors

    factors = Factors.from_json(traced.factors)
    return KeyReport(factors.key, factors.lookup, factors.hashes, factors.as_json(), (), "cpu")
