"""Loads the model of a checkpoint folder, whatever its family. Needs torch."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

import torch

from liveedge.models.families import family_name
from liveedge.models.qwen3_vl import weights as qwen3_vl
from liveedge.models.qwen3_vl.config import MODEL_TYPE as QWEN3_VL


class Load(Protocol):
    """Reads a folder into modules on a device."""

    def __call__(
        self, folder: Path, *, device: torch.device, dtype: torch.dtype
    ) -> qwen3_vl.Qwen3VL: ...


LOADERS: Final[dict[str, Load]] = {QWEN3_VL: qwen3_vl.load}


def load_model(folder: Path, *, device: torch.device, dtype: torch.dtype) -> qwen3_vl.Qwen3VL:
    """The model in evaluation mode, gradients off; everything wrong is `CheckpointInvalid`."""
    return LOADERS[family_name(folder)](folder, device=device, dtype=dtype)
