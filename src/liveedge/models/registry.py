"""Which model family a checkpoint folder belongs to, and its prompts. Torch-free.

`loader` is the other half, for the process that has torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from liveedge.models.families import family_name
from liveedge.models.qwen3_vl.config import MODEL_TYPE as QWEN3_VL
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
    return FAMILIES[family_name(folder)]
