from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphkiln.core.errors import ModelError, WeightsDamaged
from graphkiln.core.models.weights import stored_tensors, weights_dtype


def safetensors(path: Path, header: object, data: int) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(data))
    return path


def one(shape: list[int], end: int) -> dict[str, object]:
    return {"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}, "__metadata__": {"format": "pt"}}


def test_a_single_file_is_read(tmp_path: Path) -> None:
    safetensors(tmp_path / "model.safetensors", one([2, 3], 24), 24)
    tensors = stored_tensors("m", tmp_path)
    assert {name: (t.dtype, t.shape) for name, t in tensors.items()} == {"w": ("F32", (2, 3))}
    assert weights_dtype("m", tmp_path) == "float32"


@pytest.mark.parametrize(
    ("header", "data", "reason"),
    [
        (one([2, 3], 24), 23, "is cut short"),
        (one([2, 3], 24), 25, "is too long"),
        (b"not json", 0, "is not a safetensors file"),
        (b"[1]", 0, "makes no sense"),
        (one([2, 4], 24), 24, "makes no sense"),
        ({"w": {"dtype": "F32"}}, 0, "makes no sense"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, header: object, data: int, reason: str) -> None:
    safetensors(tmp_path / "model.safetensors", header, data)
    with pytest.raises(WeightsDamaged, match=f"model.safetensors .*{reason}"):
        stored_tensors("m", tmp_path)


@pytest.mark.parametrize("content", [b"", b"1234", (1 << 40).to_bytes(8, "little")])
def test_a_file_that_ends_in_its_header_is_cut_short(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(WeightsDamaged, match="is cut short"):
        stored_tensors("m", tmp_path)


def test_no_weights_and_pickled_weights_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no weights"):
        stored_tensors("m", tmp_path)
    assert weights_dtype("m", tmp_path) is None
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match="are pickles"):
        stored_tensors("m", tmp_path)


def index(path: Path, content: object) -> None:
    (path / "model.safetensors.index.json").write_text(json.dumps(content))


def test_shards_are_read_by_the_index(tmp_path: Path) -> None:
    index(tmp_path, {"weight_map": {"w": "a.safetensors"}})
    safetensors(tmp_path / "a.safetensors", one([1], 4), 4)
    assert stored_tensors("m", tmp_path)["w"].file == tmp_path / "a.safetensors"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([], "no readable weight_map"),
        ({"weight_map": {"w": 3}}, "no readable weight_map"),
        ({"weight_map": {"w": "b.safetensors"}}, "b.safetensors is missing"),
        ({"weight_map": {"v": "a.safetensors"}}, "a.safetensors does not hold v"),
        ({"weight_map": {"w": "../a.safetensors"}}, "outside the folder"),
    ],
)
def test_an_index_that_does_not_fit_is_named(tmp_path: Path, content: object, reason: str) -> None:
    safetensors(tmp_path / "a.safetensors", one([1], 4), 4)
    index(tmp_path, content)
    with pytest.raises(WeightsDamaged, match=reason):
        stored_tensors("m", tmp_path)
