"""How bodies are read: every number is a number, and unknown fields are ignored at every level."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StrictBody(BaseModel):
    """A part of a body. "5" and true are no numbers: whoever sends them has mixed something up."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, strict=True)
