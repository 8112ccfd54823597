"""What every codec of single pictures has to keep, shown on JPEG."""

from __future__ import annotations

import numpy as np
import pytest

from liveedge.frames.history import JpegCodec, PictureCodec


@pytest.fixture(params=[75, 90], ids=lambda quality: f"jpeg-{quality}")
def codec(request) -> PictureCodec:
    return JpegCodec(quality=request.param)


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (31, 31), (27, 257), (480, 854)])
def test_a_picture_comes_back_with_its_size_and_colours(codec, size):
    colours = np.array([[200, 30, 30], [30, 160, 40], [40, 60, 210]], dtype=np.uint8)
    for colour in colours:
        rgb = np.broadcast_to(colour, (*size, 3)).copy()
        back = codec.decode(codec.encode(rgb))
        assert back.shape == rgb.shape
        assert back.dtype == np.uint8
        assert np.abs(back.astype(int) - rgb).max() <= 6


def test_a_view_of_a_larger_picture_is_compressed_as_it_looks(codec):
    large = np.zeros((100, 100, 3), dtype=np.uint8)
    large[20:60, 30:90] = (255, 128, 0)
    back = codec.decode(codec.encode(large[20:60, 30:90]))
    assert back.shape == (40, 60, 3)
    assert np.abs(back.astype(int) - (255, 128, 0)).max() <= 6


def test_what_it_cannot_compress_is_refused_with_a_known_error(codec):
    with pytest.raises((OSError, ValueError)):
        codec.encode(np.zeros((1, 70_000, 3), dtype=np.uint8))
    with pytest.raises((OSError, ValueError)):
        codec.encode(np.zeros((0, 5, 3), dtype=np.uint8))


@pytest.mark.parametrize("quality", [0, 96])
def test_a_quality_that_makes_no_sense_is_refused(quality):
    with pytest.raises(ValueError, match=f"quality is {quality}"):
        JpegCodec(quality=quality)
