"""The picture: the same pixels for the same moment, at any size."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from liveedge.sim.clockcode import read_code, strip_height_px
from liveedge.sim.render import LOOKS, PAINT, Renderer
from liveedge.sim.scene import Workcell

MOMENTS = ((90, 3.0, 1_700_000_000_000), (0, 0.0, 5), (731, 24.3667, 2**45))


def pictures(moments, *, seed=9, width=320, height=180, difficulty="normal"):
    renderer = Renderer(Workcell(seed), width=width, height=height, difficulty=difficulty)
    return [renderer.render(*moment) for moment in moments]


def test_the_order_of_calls_does_not_change_a_pixel() -> None:
    forwards = pictures(MOMENTS)
    backwards = pictures(MOMENTS[::-1])[::-1]
    for one, other in zip(forwards, backwards, strict=True):
        assert np.array_equal(one, other)


def test_another_process_draws_the_same_pixels() -> None:
    code = (
        "import hashlib; from liveedge.sim.render import Renderer;"
        "from liveedge.sim.scene import Workcell;"
        "r = Renderer(Workcell(9), width=320, height=180);"
        "print(hashlib.sha256(r.render(90, 3.0, 1700000000000).tobytes()).hexdigest())"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "2"}
    told = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=True, text=True
    ).stdout
    ours = hashlib.sha256(pictures(MOMENTS[:1])[0].tobytes()).hexdigest()
    assert told.strip() == ours


def test_two_cameras_may_look_at_one_workcell() -> None:
    cell = Workcell(9)
    small, large = Renderer(cell, width=320, height=180), Renderer(cell, width=640, height=360)
    large.render(*MOMENTS[2])
    assert np.array_equal(small.render(*MOMENTS[0]), pictures(MOMENTS[:1])[0])


def test_every_picture_is_an_array_of_its_own() -> None:
    renderer = Renderer(Workcell(9), width=64, height=64)
    first = renderer.render(0, 0.0, 0)
    kept = first.copy()
    first[:] = 0
    assert np.array_equal(renderer.render(0, 0.0, 0), kept)


@pytest.mark.parametrize(
    ("width", "height"), [(854, 480), (426, 240), (33, 32), (65, 101), (1281, 721), (120, 640)]
)
def test_any_size_is_drawn_and_carries_the_code(width: int, height: int) -> None:
    rgb = pictures(MOMENTS[:1], width=width, height=height)[0]
    assert rgb.shape == (height, width, 3)
    assert rgb.dtype == np.uint8
    code = read_code(rgb)
    if width >= 64:
        assert code is not None
        assert (code.frame_number, code.t_ms, code.wall_ms) == (90, 3000, 1_700_000_000_000)
    else:
        assert code is None  # narrower than its cells


def test_what_a_camera_adds_is_the_same_however_it_is_computed() -> None:
    """Pictures of before: checkpoints were trained on them."""
    digest = hashlib.sha256()
    renderer = Renderer(Workcell(2), width=101, height=77, difficulty="hard")
    for n in range(8):
        digest.update(renderer.render(n, n * 0.7, 1000 + n).tobytes())
    assert digest.hexdigest().startswith("aca4ed3e6cc0252c")


def test_the_largest_picture_takes_a_few_copies_of_itself_at_most() -> None:
    """It was 411 MB: the noise alone in eight bytes a number, twice."""
    n_bytes = 3840 * 2160 * 3
    tracemalloc.start()
    renderer = Renderer(Workcell(1), width=3840, height=2160)
    kept, building = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    renderer.render(1, 1.0, 1)
    _, rendering = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1.5 * n_bytes
    assert building < 2 * n_bytes
    assert rendering < 5 * n_bytes


@pytest.mark.parametrize(("width", "height"), [(31, 480), (854, 31), (0, 0)])
def test_a_size_too_small_to_show_anything_is_refused(width: int, height: int) -> None:
    with pytest.raises(ValueError, match=f"{width}x{height}"):
        Renderer(Workcell(9), width=width, height=height)


def test_difficulties_differ_in_noise_and_light_but_not_in_truth() -> None:
    flat = {}
    for difficulty in LOOKS:
        rgb = pictures(MOMENTS[:1], width=854, height=480, difficulty=difficulty)[0]
        wall = rgb[20:60, 180:235].astype(float)
        flat[difficulty] = wall.std(axis=(0, 1)).mean()
        assert read_code(rgb) is not None
    assert flat["easy"] < 1 < flat["normal"] < flat["hard"]


def test_an_easy_picture_shows_the_paint_of_the_boxes() -> None:
    renderer = Renderer(Workcell(4), difficulty="easy")
    for number in range(0, 1200, 60):
        t_s = number / 30
        state = renderer.workcell.state(t_s)
        rgb = renderer.render(number, t_s, 0).astype(float)
        gain = 1.04 if state.lamp else 0.96
        for box in state.boxes:
            if box.lift == 0:
                x = round(renderer.layout.slots[box.slot]) + 20
                y = round(renderer.layout.belt[0]) - 8
                want = np.clip(np.array(PAINT[box.colour]) * gain, 0, 255)
                assert np.abs(rgb[y, x] - want).max() <= 2


def test_the_code_is_never_touched_by_noise_light_or_shake() -> None:
    for rgb in pictures(MOMENTS, width=854, height=480, difficulty="hard"):
        strip = rgb[480 - strip_height_px(480) :]
        assert set(np.unique(strip)) <= {0, 255}


def test_regions_name_every_thing_of_the_state() -> None:
    renderer = Renderer(Workcell(11))
    for t_s in np.arange(0.5, 60, 2.5):
        state = renderer.workcell.state(float(t_s))
        found = [(region.head, region.value) for region in renderer.regions(state)]
        assert ("lamp", "on" if state.lamp else "off") in found
        assert ("belt", state.belt) in found
        assert ("tens", str(state.display // 10)) in found
        assert ("ones", str(state.display % 10)) in found
        boxes = [value for head, value in found if head == "box"]
        assert boxes == [box.colour for box in state.boxes]
        shirts = [value for head, value in found if head == "shirt"]
        assert shirts == ([] if state.person is None else [state.person.shirt])
