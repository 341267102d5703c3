"""Filter expressions select by column and by factor, and say what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphkiln.cache.errors import BadFilter
from graphkiln.cache.inspect.catalogue import Row, scan
from graphkiln.cache.inspect.filters import parse_filter, select
from graphkiln.cache.store.state import update_state
from tests.cache.inspect.made import cache_at, make_entry, note_use

MiB = b"x" * (1 << 20)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    store = cache_at(tmp_path_factory.mktemp("filters"))
    named = {
        "old": make_entry(store, "a", torch="2.11.0", age_days=40),
        "half": make_entry(store, "b", dtype="bfloat16", age_days=10),
        "fast": make_entry(store, "c", env=True, model="Qwen3-0.6B", kernel=MiB),
        "local": make_entry(store, "d", torch="2.13.0+cpu", age_days=3),
        "broken": make_entry(store, "e", age_days=5),
    }
    update_state(store.root, named["old"].path, label="prod", pinned=True)
    note_use(named["half"], 9)
    (named["broken"].path / "factors.json").write_bytes(b"")
    for _ in range(3):
        store.record_start({"key": named["local"].key, "outcome": "hit"})
    by_path = {row.path: row for row in scan(store).rows}
    return {name: by_path[entry.path] for name, entry in named.items()}


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("size>1MB", "fast"),
        ("size>=1MiB", "fast"),
        ("size<1KiB", ""),
        ("size<512KiB and age>7d", "old half"),
        ("files>100", ""),
        ("age>1w", "old half"),
        ("age>0.5w and age<2w", "broken half"),
        ("unused>30d", "old"),
        ("unused<216h", "broken local fast"),
        ("hits=3", "local"),
        ("hits>0", "local"),
        ("model~LLAMA", "old half local broken"),
        ("model!~llama", "fast"),
        ("model=Qwen3-0.6B", "fast"),
        ("dtype=bfloat16", "half"),
        ("dtype!=float32", "half"),
        ("target=cpu:avx2", "old half fast local broken"),
        ("label=prod", "old"),
        ("label=", "half fast local broken"),
        ("status=broken", "broken"),
        ("status=pinned", "old"),
        ("status!=broken", "old half fast local"),
        ("compiler.torch!=2.13.0", "old"),
        ("compiler.torch=2.13.0", "half fast local"),
        ("compiler.torch=2.13.0+cpu", "local"),
        ("compiler.torch<2.12", "old"),
        ("compiler.torch>=2.13", "half fast local"),
        ("compiler.inductor.cpp.simdlen=none", "old half fast local"),
        ("config.dtype=bfloat16", "half"),
        ("config.model.architectures~qwen", "fast"),
        ("env.GRAPHKILN_CPP_FAST_MATH=1", "fast"),
        ("env.GRAPHKILN_CPP_FAST_MATH=false", "old half local"),
        ("code.module~llama", "old half local"),
        ("code.module~llama and age<7d", "local"),
        ("code.function=models.Qwen3-0.6B.Model.forward", "fast"),
        ("code.backbone.functions~b", "half"),
        ("model ~ 'llama' and dtype == float32 and age > 20d", "old"),
        ('model~" and "', ""),
    ],
)
def test_selects(rows: dict[str, Row], expression: str, names: str) -> None:
    found = select(rows.values(), [expression])
    assert {row.id for row in found} == {rows[name].id for name in names.split()}


def test_a_key_is_selected_by_its_beginning(rows: dict[str, Row]) -> None:
    key = rows["half"].key
    assert [row.id for row in select(rows.values(), [f"key={key[:8]}"])] == [rows["half"].id]
    assert rows["half"] not in select(rows.values(), [f"key!={key[:8]}"])
    assert [row.id for row in select(rows.values(), [f"id={key[:8]}"])] == [rows["half"].id]


def test_several_expressions_all_hold(rows: dict[str, Row]) -> None:
    assert [row.id for row in select(rows.values(), ["age>7d", "config.dtype=bfloat16"])] == [rows["half"].id]


def test_no_expression_selects_all(rows: dict[str, Row]) -> None:
    assert select(rows.values(), []) == list(rows.values())


def test_what_an_entry_does_not_know_never_matches(rows: dict[str, Row]) -> None:
    for sign in ("=", "!=", "~", "!~"):
        assert rows["broken"] not in select(rows.values(), [f"compiler.torch{sign}nothing"])


@pytest.mark.parametrize(
    ("expression", "part", "name"),
    [
        ("siez>1GB", "siez>1GB", "size"),
        ("age>7d and modle~x", "modle~x", "model"),
        ("size>1 parsec", "size>1 parsec", None),
        ("age>soon", "age>soon", None),
        ("age~7d", "age~7d", "age"),
        ("files>1.5", "files>1.5", None),
        ("model>llama", "model>llama", "model"),
        ("status=bad", "status=bad", "superseded"),
        ("compilr.torch=1", "compilr.torch=1", "compiler.NAME"),
        ("compiler..torch=1", "compiler..torch=1", "compiler.NAME"),
        ("compiler.torhc!=2.13.0", "compiler.torhc!=2.13.0", "compiler.torch"),
        ("compiler.inductor.cpp.simd=1", "compiler.inductor.cpp.simd=1", "compiler.inductor.cpp.simdlen"),
        ("compiler.torch>new", "compiler.torch>new", None),
        ("size", "size", "size"),
        ("", "", "size"),
        ("size>1GB and", "size>1GB and", None),
        ("size>1GB or age>7d", "size>1GB or age>7d", None),
    ],
)
def test_a_bad_expression_names_the_part_and_good_names(
    rows: dict[str, Row], expression: str, part: str, name: str | None
) -> None:
    with pytest.raises(BadFilter) as caught:
        select(rows.values(), [expression])
    assert caught.value.part == part
    assert "\n" not in str(caught.value)
    assert name is None or name in caught.value.names


def test_a_path_that_no_entry_knows_is_no_slip_where_there_is_no_entry() -> None:
    assert select([], ["compiler.torhc=1"]) == []


def test_values_may_hold_signs_and_spaces() -> None:
    [term] = parse_filter("model='a = b and c'")
    assert (term.name, term.operator, term.value) == ("model", "=", "a = b and c")


def test_a_scan_leaves_factors_unread_for_columns(tmp_path: Path) -> None:
    store = cache_at(tmp_path)
    entry = make_entry(store)
    data = (entry.path / "factors.json").read_bytes()
    (entry.path / "factors.json").write_bytes(b"x" * len(data))
    [row] = scan(store).rows
    # The size is right: only its digest tells, and a list does not look at that.
    assert row.health == "sound"
    assert row.factors() is None
    assert select([row], ["size>1B"]) == [row]
