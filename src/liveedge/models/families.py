"""The names of the supported families. Apart from what each brings, which is much to import."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from liveedge.core.errors import CheckpointInvalid
from liveedge.models.qwen3_vl.config import MODEL_TYPE as QWEN3_VL, read_json

FAMILY_NAMES: Final = (QWEN3_VL,)


def family_name(folder: Path) -> str:
    """The family named by the folder's `config.json`, if it is supported."""
    name = read_json(folder / "config.json").values.get("model_type")
    if name not in FAMILY_NAMES:
        known = ", ".join(sorted(FAMILY_NAMES))
        raise CheckpointInvalid(
            f"{folder}/config.json: model_type is {name!r}, supported are: {known}"
        )
    return str(name)
