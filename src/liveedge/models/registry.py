"""Which model family a checkpoint folder belongs to, and its prompts. Torch-free.

`loader` is the other half, for the process that has torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from liveedge.core.errors import CheckpointInvalid
from liveedge.models.qwen3_vl.config import MODEL_TYPE as QWEN3_VL, read_json
from liveedge.models.qwen3_vl.prompt import PromptBuilder


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What can be known about a family without its weights."""

    name: str  # `model_type` of config.json
    supports_video: bool
    open_prompts: Callable[[Path], PromptBuilder]


FAMILIES: Final = {
    QWEN3_VL: Family(name=QWEN3_VL, supports_video=True, open_prompts=PromptBuilder),
}


def family_of(folder: Path) -> Family:
    """The family named by the folder's `config.json`."""
    name = read_json(folder / "config.json").values.get("model_type")
    if name not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise CheckpointInvalid(
            f"{folder}/config.json: model_type is {name!r}, supported are: {known}"
        )
    return FAMILIES[name]
