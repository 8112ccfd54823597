"""A frame is freed with its last reader; nothing waits for the garbage collector."""

from __future__ import annotations

import gc

import av
import numpy as np
import pytest

from liveedge.media.pixels import AvPixels, turn_in

pytestmark = pytest.mark.unit


def is_there(frame_id: int) -> bool:
    """Whether this frame lives; those of others, whose threads may still end, do not count."""
    # By type: isinstance() would ask objects of others for their __class__, and some warn or raise.
    frames = (one for one in gc.get_objects() if issubclass(type(one), av.VideoFrame))
    return any(id(one) == frame_id for one in frames)


def test_a_frame_that_was_asked_for_its_rotation_is_freed_at_once() -> None:
    gc.disable()
    try:
        frame = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")
        pixels = AvPixels(frame)
        assert turn_in(frame) is None
        assert pixels.rgb().shape == (48, 64, 3)
        frame_id = id(frame)
        assert is_there(frame_id)
        del frame, pixels
        assert not is_there(frame_id)
    finally:
        gc.enable()
