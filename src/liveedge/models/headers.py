"""What the weight files of a checkpoint hold, read from their headers alone. Torch-free.

A safetensors file begins with eight bytes of length and that many bytes of JSON: kilobytes that
tell every tensor's shape, so that memory can be planned before anything is loaded.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

from liveedge.core.errors import CheckpointInvalid
from liveedge.models.qwen3_vl.config import read_json

INDEX_FILE = "model.safetensors.index.json"
WEIGHTS_FILE = "model.safetensors"
MAX_HEADER_BYTES = 100 << 20  # as the format allows
_LENGTH = struct.Struct("<Q")


def tensor_values(folder: Path) -> dict[str, int]:
    """How many numbers each tensor holds. Raises CheckpointInvalid."""
    found: dict[str, int] = {}
    for path in weight_files(folder):
        for name, entry in _header(path).items():
            if name == "__metadata__":
                continue
            shape = entry.get("shape") if isinstance(entry, dict) else None
            if not isinstance(shape, list) or not all(isinstance(n, int) for n in shape):
                raise CheckpointInvalid(f"{path}: the header gives {name} no shape")
            found[name] = math.prod(shape)
    return found


def weight_files(folder: Path) -> list[Path]:
    """The files of a checkpoint folder, each once."""
    if (folder / INDEX_FILE).exists():
        shards = read_json(folder / INDEX_FILE).section("weight_map").values.values()
        return [_inside(folder, name) for name in sorted(set(map(str, shards)))]
    return [folder / WEIGHTS_FILE]


def _inside(folder: Path, name: str) -> Path:
    """A checkpoint names no files but its own."""
    if Path(name).name != name or not name.endswith(".safetensors"):
        raise CheckpointInvalid(
            f"{folder / INDEX_FILE}: {name[:100]!r} is no safetensors file of the folder"
        )
    return folder / name


def _header(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            (n_bytes,) = _LENGTH.unpack(file.read(_LENGTH.size))
            if n_bytes > MAX_HEADER_BYTES:
                raise ValueError(f"a header of {n_bytes} bytes")
            header = json.loads(file.read(n_bytes))
    except (OSError, struct.error, ValueError) as error:
        raise CheckpointInvalid(f"cannot read {path}: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointInvalid(f"cannot read {path}: its header is no table of tensors")
    return header
