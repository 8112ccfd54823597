"""Y4M files in numpy: planes, header, round trip."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from liveedge.sim.clockcode import read_code
from liveedge.sim.render import Renderer
from liveedge.sim.scene import Workcell
from liveedge.sim.y4m import Y4mWriter, read_y4m, to_planes, to_rgb


def write(path, frames, *, fps=Fraction(30)) -> None:
    height, width, _ = frames[0].shape
    with Y4mWriter(path, width=width, height=height, fps=fps) as file:
        for frame in frames:
            file.write(frame)


@pytest.mark.parametrize(("width", "height"), [(64, 48), (65, 48), (64, 47), (33, 33), (1, 1)])
def test_any_size_comes_back_with_its_header(tmp_path, width: int, height: int) -> None:
    frames = [np.full((height, width, 3), value, np.uint8) for value in (0, 130, 255)]
    path = tmp_path / "out.y4m"
    write(path, frames, fps=Fraction(2997, 100))
    header, read = read_y4m(path)
    assert (header.width, header.height, header.fps) == (width, height, Fraction(2997, 100))
    assert len(read) == 3
    for before, after in zip(frames, read, strict=True):
        assert after.shape == before.shape
        assert np.abs(after.astype(int) - before).max() <= 1


def test_frames_have_the_size_of_their_three_planes(tmp_path) -> None:
    path = tmp_path / "out.y4m"
    write(path, [np.zeros((5, 7, 3), np.uint8)] * 2)
    header, _, body = path.read_bytes().partition(b"\n")
    assert header == b"YUV4MPEG2 W7 H5 F30:1 Ip A1:1 C420jpeg XCOLORRANGE=LIMITED"
    assert len(body) == 2 * (len(b"FRAME\n") + 5 * 7 + 2 * 3 * 4)


@pytest.mark.parametrize(
    ("rgb", "ycbcr"),
    [
        ((255, 255, 255), (235, 128, 128)),
        ((0, 0, 0), (16, 128, 128)),
        ((255, 0, 0), (81, 90, 240)),
        ((0, 255, 0), (145, 54, 34)),
        ((0, 0, 255), (41, 240, 110)),
    ],
)
def test_colours_are_those_of_the_standard(rgb, ycbcr) -> None:
    planes = to_planes(np.tile(np.array(rgb, np.uint8), (4, 4, 1)))
    assert tuple(int(plane[0, 0]) for plane in planes) == ycbcr
    assert np.abs(to_rgb(*planes)[1, 1].astype(int) - rgb).max() <= 2


def test_a_rendered_picture_keeps_its_code_and_its_looks(tmp_path) -> None:
    rgb = Renderer(Workcell(2), width=427, height=241).render(30, 1.0, 99)
    path = tmp_path / "out.y4m"
    write(path, [rgb])
    read = read_y4m(path)[1][0]
    assert read_code(read) == read_code(rgb)
    assert np.abs(read.astype(int) - rgb).mean() < 4  # noise is finer than the chroma grid


def test_a_frame_of_another_size_is_refused(tmp_path) -> None:
    with (
        Y4mWriter(tmp_path / "out.y4m", width=8, height=8, fps=Fraction(5)) as file,
        pytest.raises(ValueError, match=r"\(8, 9, 3\)"),
    ):
        file.write(np.zeros((8, 9, 3), np.uint8))


def test_a_file_cut_short_or_of_another_kind_is_refused(tmp_path) -> None:
    path = tmp_path / "out.y4m"
    write(path, [np.zeros((8, 8, 3), np.uint8)])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="middle of a frame"):
        read_y4m(path)
    path.write_bytes(b"RIFF....AVI \n")
    with pytest.raises(ValueError, match="YUV4MPEG2"):
        read_y4m(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="YUV4MPEG2"):
        read_y4m(path)
