"""The readers of Inductor's and Triton's own folders."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from graphkiln.cache.errors import UnknownLayout
from graphkiln.cache.layouts.found import ForeignRow
from graphkiln.cache.layouts.inductor import InductorReader
from graphkiln.cache.layouts.triton import TritonReader
from tests.layouts.trees import inductor_files, triton_kernel

INDUCTOR, TRITON = InductorReader(), TritonReader()


def rows_of(reader: InductorReader | TritonReader, root: Path) -> dict[str, ForeignRow]:
    return {row.id: row for row in reader.scan(root).rows if isinstance(row, ForeignRow)}


def test_inductor_has_a_row_for_each_graph_and_one_for_what_they_share(tmp_path: Path) -> None:
    inductor_files(tmp_path)
    rows = rows_of(INDUCTOR, tmp_path)
    assert {row.id: row.form for row in rows.values()} == {
        "fcccccccccc"[:10]: "fx graph",
        "addddddddddd"[:10]: "AOTAutograd",
        "generated": "sources and libraries",
    }
    assert all(INDUCTOR.verify(row).faults == () for row in rows.values())
    found = INDUCTOR.account(rows["fccccccccc"])
    assert found.build == {"kernels": 3, "vectorised kernels": 2}
    assert found.factors["compiler"]["settings"]["torch._inductor.config.size_asserts"] == "False"


@pytest.mark.parametrize(
    ("kind", "row", "fault"),
    [
        ("graph", "fccccccccc", "digest"),
        ("result", "addddddddd", "digest"),
        ("source", "generated", "digest"),
        ("library", "generated", "unreadable"),
    ],
)
def test_damage_of_an_inductor_file_is_told(kind: str, row: str, fault: str, tmp_path: Path) -> None:
    files = inductor_files(tmp_path)
    files[kind].write_bytes(b"something else")
    rows = rows_of(INDUCTOR, tmp_path)
    assert {name: [one.kind for one in INDUCTOR.verify(rows[name]).faults] for name in rows} == {
        name: [fault] if name == row else [] for name in rows
    }


def test_triton_has_a_row_for_each_kernel(tmp_path: Path) -> None:
    folder = triton_kernel(tmp_path)
    triton_kernel(tmp_path, "mul_kernel", arch=80)
    rows = rows_of(TRITON, tmp_path)
    row = rows[folder.name[:10]]
    assert (row.model, row.target, row.form, row.key) == ("add_kernel", "cuda:90", "kernel", folder.name)
    assert TRITON.verify(row).faults == ()
    assert TRITON.account(row).factors["compiler"]["num_warps"] == 4


def test_a_moved_triton_folder_is_told(tmp_path: Path) -> None:
    folder = triton_kernel(tmp_path / "here")
    shutil.move(tmp_path / "here", tmp_path / "there")
    [row] = rows_of(TRITON, tmp_path / "there").values()
    [fault] = TRITON.verify(row).faults
    assert (fault.kind, fault.detail) == ("absolute path", str(folder / "add_kernel.cubin"))


def test_damage_of_a_kernel_is_told(tmp_path: Path) -> None:
    folder = triton_kernel(tmp_path)

    def kinds() -> list[tuple[str, str]]:
        [row] = rows_of(TRITON, tmp_path).values()
        return [(fault.file, fault.kind) for fault in TRITON.verify(row).faults]

    cubin = folder / "add_kernel.cubin"
    whole = cubin.read_bytes()
    cubin.write_bytes(whole[:100])
    assert kinds() == [("add_kernel.cubin", "size")]
    cubin.unlink()
    assert kinds() == [("add_kernel.cubin", "missing")]
    cubin.write_bytes(whole)
    facts = folder / "add_kernel.json"
    facts.write_text(facts.read_text().replace('"hash": "', '"hash": "0'))
    assert kinds() == [("add_kernel.json", "name")]
    facts.write_text("{}")
    (folder / "__grp__add_kernel.json").write_text("[]")
    assert kinds() == [("__grp__add_kernel.json", "schema")]


def test_what_is_neither_is_refused(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    for reader in (INDUCTOR, TRITON):
        with pytest.raises(UnknownLayout, match="it holds something"):
            reader.scan(tmp_path)
