"""What a served checkpoint is called: the same on every side, so that one scenario fits all."""

from __future__ import annotations

from pathlib import Path

SHIPPED = Path(__file__).resolve().parents[2] / "src/liveedge/assets/workcell-tiny"


def model_id(model: Path) -> str:
    """The id in requests: that of `liveedge serve`, the shipped model under its published one."""
    owner = "liveedge" if model.resolve() == SHIPPED else "local"
    return f"{owner}/{model.resolve().name}"
