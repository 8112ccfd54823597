"""The headers of weight files: shapes without a single weight, and damage told by file."""

from __future__ import annotations

import json
import struct
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from liveedge.core.errors import CheckpointInvalid
from liveedge.engine.memory.plan import read_facts
from liveedge.models.headers import tensor_values

SHIPPED = Path(str(files("liveedge"))) / "assets" / "workcell-tiny"


def write(path: Path, header: object, *, announced: int | None = None) -> None:
    data = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(data) if announced is None else announced) + data)


def entry(*shape: int) -> dict[str, Any]:
    return {"dtype": "F16", "shape": list(shape), "data_offsets": [0, 0]}


def test_every_tensor_is_counted_and_notes_are_not(tmp_path: Path):
    header = {"__metadata__": {"format": "pt"}, "a": entry(3, 4), "b": entry(5), "one": entry()}
    write(tmp_path / "model.safetensors", header)
    assert tensor_values(tmp_path) == {"a": 12, "b": 5, "one": 1}


def test_a_checkpoint_in_pieces_is_read_by_its_index(tmp_path: Path):
    write(tmp_path / "x-1.safetensors", {"a": entry(2, 2)})
    write(tmp_path / "x-2.safetensors", {"b": entry(7)})
    index = {"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert tensor_values(tmp_path) == {"a": 4, "b": 7}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (None, "No such file"),
        (b"1234", "cannot read"),
        (struct.pack("<Q", 4) + b"nope", "cannot read"),
        (struct.pack("<Q", 1 << 60), "a header of 1152921504606846976 bytes"),
        (struct.pack("<Q", 2) + b"[]", "its header is no table of tensors"),
        (struct.pack("<Q", 8) + b'{"a": 1}', "gives a no shape"),
    ],
)
def test_a_damaged_header_is_told_by_file(tmp_path: Path, data: bytes | None, says: str):
    path = tmp_path / "model.safetensors"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(CheckpointInvalid, match=r"model\.safetensors") as caught:
        tensor_values(tmp_path)
    assert says in caught.value.message


def test_the_facts_of_the_shipped_model_are_those_of_its_files():
    facts = read_facts(SHIPPED)
    stored = (SHIPPED / "model.safetensors").stat().st_size
    assert 2 * facts.n_values == pytest.approx(stored, rel=0.01)  # it ships as float16
    assert facts.tokenizer_bytes == (SHIPPED / "tokenizer.json").stat().st_size
    assert facts.config.text.tied


def test_a_repeated_head_and_rotary_constants_are_not_loaded_and_not_counted(tmp_path: Path):
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((SHIPPED / name).read_bytes())
    header = {
        "a": entry(10, 10),
        "lm_head.weight": entry(1000),
        "model.rotary.inv_freq": entry(50),
    }
    write(tmp_path / "model.safetensors", header)
    assert read_facts(tmp_path).n_values == 100
