"""A frame is freed with its last reader; nothing waits for the garbage collector."""

from __future__ import annotations

import gc

import av
import numpy as np
import pytest

from liveedge.media.pixels import AvPixels, turn_in

pytestmark = pytest.mark.unit


def n_frames() -> int:
    # By type: isinstance() would ask objects of others for their __class__, and some warn or raise.
    return sum(issubclass(type(one), av.VideoFrame) for one in gc.get_objects())


def test_a_frame_that_was_asked_for_its_rotation_is_freed_at_once() -> None:
    gc.collect()
    before = n_frames()
    gc.disable()
    try:
        frame = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")
        pixels = AvPixels(frame)
        assert turn_in(frame) is None
        assert pixels.rgb().shape == (48, 64, 3)
        assert n_frames() > before
        del frame, pixels
        assert n_frames() == before
    finally:
        gc.enable()
