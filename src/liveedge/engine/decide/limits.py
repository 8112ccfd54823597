"""The bounds of a step, and what a group weighs. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from liveedge.engine.interface import FeatureGroup

BYTES_PER_PIXEL = 2 * 3 * 4  # patches of a group: two frames, three channels, float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of a step and of what may lie between the stages."""

    prefill_chunk: int  # prompt tokens per step
    encode_pixels: int  # pixels of groups per encoder batch; one group at least
    patch_bytes: int  # preprocessed groups not encoded yet; one group at least
    max_loading: int  # groups with the workers
    min_piece: int = 64  # prompt tokens: a smaller gain is not worth a pass of its own
    warm_chunk: int = 128  # prompt tokens of background work per step; of groups it encodes one
    max_verifications: int = 4  # answers that wait to be computed again; one more is not verified


def group_pixels(group: FeatureGroup) -> int:
    """Pixels of one of its frames: what encoding costs is proportional to it."""
    return group.height * group.width


def group_bytes(group: FeatureGroup) -> int:
    """Memory of a group's patches."""
    return group_pixels(group) * BYTES_PER_PIXEL
