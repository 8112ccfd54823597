"""Refuses at once what no prompt of a model can hold, before thousands of frames become objects.

Pure. The engine counts exactly, later and off the event loop; this knows only the least that a frame
can cost, so it never refuses what would fit.
"""

from __future__ import annotations

from collections.abc import Sequence

from liveedge.core.errors import ContextLengthExceeded
from liveedge.engine.interface import ModelInfo
from liveedge.frames.resolve import Pick, SegmentPick
from liveedge.service.parts import Reference

LEAST_PICTURE_TOKENS = 3  # start, one visual token, end
LEAST_PAIR_TOKENS = 4  # the same and a time; two frames of a segment share it
TIME_AND_MARKERS = 10  # what a time like `<12.5 seconds>`, start and end usually take


def check_room(
    references: Sequence[Reference], resolved: Sequence[Pick | SegmentPick], model: ModelInfo
) -> None:
    """Raise ContextLengthExceeded when the frames cannot fit, however small they are made."""
    limit = model.max_model_len - 1  # one token of answer at least
    if sum(map(_least_tokens, resolved)) <= limit:
        return
    n_frames = sum(one.n_frames if isinstance(one, SegmentPick) else 1 for one in resolved)
    message = f"the question has {n_frames} frames, and {model.model_id} takes {limit} tokens"
    pairs = zip(references, resolved, strict=True)
    segments = [(item, one) for item, one in pairs if isinstance(one, SegmentPick)]
    if not segments:
        raise ContextLengthExceeded(
            f"{message}: at most {limit // LEAST_PICTURE_TOKENS} pictures; send fewer"
        )
    item, largest = max(segments, key=lambda pair: pair[1].n_frames)
    newest = largest.newest
    fits = _about(newest, limit, max_pixels=item.ref.max_pixels, model=model)
    raise ContextLengthExceeded(
        f"{message}: about {fits} frames of {newest.width}x{newest.height} would fit; ask for less"
        f" time ({item.where} alone has {largest.n_frames} frames), or lower max_fps or max_pixels"
    )


def _least_tokens(one: Pick | SegmentPick) -> int:
    if isinstance(one, Pick):
        return LEAST_PICTURE_TOKENS
    return -(-one.n_frames // 2) * LEAST_PAIR_TOKENS


def _about(frame: Pick, limit: int, *, max_pixels: int | None, model: ModelInfo) -> int:
    """How many frames like this one fit into an otherwise empty prompt."""
    pixels = min(frame.width * frame.height, max_pixels or model.video_max_pixels)
    n_visual = max(1, min(pixels, model.video_max_pixels) // model.token_px**2)
    return 2 * (limit // (n_visual + TIME_AND_MARKERS))
