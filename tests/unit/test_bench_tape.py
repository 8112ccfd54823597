"""The camera of the benchmarks: its windows are those that the service would make."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from liveedge.engine.request import GenerateRequest, TextPart, VideoPart
from tape import Edge, Tape, Window, question, shown


@pytest.fixture(scope="module")
def tape() -> Tape:
    return Tape(n_ticks=8, width=64, height=48)


def keys(request: GenerateRequest) -> list[str]:
    """Of the frames as the model gets them."""
    (video,) = [part for part in request.messages[0].content if isinstance(part, VideoPart)]
    return [frame.key for frame in video.frames]


def indices(request: GenerateRequest) -> list[int]:
    return [int(key.rpartition("/")[2]) for key in keys(request)]


def window(tick: int, edge: Edge = "grid") -> Window:
    return Window(stream_id="s", tick=tick, n_frames=4, edge=edge)


def test_a_window_on_the_grid_has_the_frames_of_its_ticks(tape: Tape):
    assert indices(tape.request("r", window(3))) == [0, 2, 4, 6]


def test_the_newest_frame_stands_in_for_the_last_one(tape: Tape):
    assert indices(tape.request("r", window(3, "newest"))) == [0, 2, 4, 7]


def test_a_window_that_slides_keeps_its_pairs(tape: Tape):
    assert indices(tape.request("r", window(4))) == [2, 2, 4, 6, 8, 8]
    assert indices(tape.request("r", window(5))) == [4, 6, 8, 10]


def test_without_words_a_request_is_the_window_itself(tape: Tape):
    alone, asked = tape.request("r", window(3)), tape.request("r", window(3), "Why?")
    assert len(alone.messages[0].content) == 1
    assert asked.messages[0].content[1:] == (TextPart("Why?"),)
    assert keys(asked) == keys(alone)


def test_the_reference_gets_the_same_pictures_and_times(tape: Tape):
    pictures, times_s = shown(tape.request("r", window(4)))
    assert times_s == [0.0, 0.0, 0.5, 1.0, 1.5, 1.5]
    assert np.array_equal(pictures[0], pictures[1])
    assert not np.array_equal(pictures[0], pictures[2])


def test_questions_in_a_row_have_no_beginning_in_common():
    words = [question(number) for number in range(52)]
    assert len({word[0] for word in words}) == 52
    assert len({len(word) for word in (*words, question(99), question(5000))}) == 1
