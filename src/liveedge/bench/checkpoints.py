"""Which weights a local server has: a digest of its checkpoint, that two runs can be held against."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WHOLE_BYTES = 2 << 30  # up to which everything is read: about ten seconds
HEAD_BYTES = 1 << 20
FILES = ("*.safetensors", "*.gguf", "config.json", "tokenizer.json", "preprocessor_config.json")


def digest(place: Path) -> dict[str, Any] | None:
    """Of a checkpoint's folder or file: `digest`, `digest_of` (what was read), `weights_mb`; None for
    what is no checkpoint."""
    files = _files(place)
    if not files:
        return None
    sizes = [file.stat().st_size for file in files]
    is_whole = sum(sizes) <= WHOLE_BYTES
    total = hashlib.sha256()
    for file, size in zip(files, sizes, strict=True):
        total.update(f"{file.name}\0{size}\0".encode())
        with file.open("rb") as opened:
            if is_whole:
                total.update(hashlib.file_digest(opened, "sha256").digest())
            else:
                total.update(opened.read(HEAD_BYTES))
    read = (
        "whole files" if is_whole else f"names, sizes and the first {HEAD_BYTES} bytes of each file"
    )
    return {
        "digest": f"sha256:{total.hexdigest()}",
        "digest_of": read,
        "weights_mb": round(sum(sizes) / (1 << 20), 1),
    }


def _files(place: Path) -> Sequence[Path]:
    try:
        if place.is_file():
            return [place]
        return sorted(file for pattern in FILES for file in place.glob(pattern))
    except (OSError, ValueError):  # a name that no file can have
        return []
