"""Which of FFmpeg's words mean that a picture is not what was sent."""

from __future__ import annotations

import pytest

from liveedge.media.av_log import is_damage


@pytest.mark.parametrize(
    "said",
    [
        "error while decoding MB 12 4, bytestream -5",
        "Missing reference picture, default is 65562",
        "Could not find ref with POC 33",
        "concealing 120 DC, 120 AC, 120 MV errors in P frame",
        "corrupted macroblock 3 7 (total_coeff=-1)",
        "cabac decode of qscale diff failed at 22 14",
        "Invalid data found when processing input",
        "PPS id out of range: 6",
    ],
)
def test_holes_and_nonsense_in_the_picture(said: str) -> None:
    assert is_damage(said)


@pytest.mark.parametrize(
    "said",
    [
        "SEI type 5 size 920 truncated at 888",
        "Invalid SEI data: illegal payload",
        "Overread VUI by 8 bits",
        "number of reference frames (0+5) exceeds max (4; probably corrupt input), discarding one",
        "mmco: unref short failure",
        "Increasing reorder buffer to 1",
        "Application provided invalid timecode",
    ],
)
def test_what_cameras_note_beside_it(said: str) -> None:
    assert not is_damage(said)
