"""The scene: a pure function of seed and time, without jumps."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from liveedge.sim.render import NATIVE_WIDTH
from liveedge.sim.scene import (
    BELT_SPEED_PX_S,
    BOX_MOVE_S,
    COLOURS,
    DOOR_MOVE_S,
    MAX_BOXES,
    N_SLOTS,
    PERSON_SPEED_PX_S,
    State,
    Workcell,
)

STEP_S = 1 / 30


def film(seed: int, *, seconds: float = 60.0) -> list[State]:
    cell = Workcell(seed)
    return [cell.state(n * STEP_S) for n in range(round(seconds / STEP_S))]


@given(seed=st.integers(0, 2**40), times=st.lists(st.floats(0, 200), min_size=1, max_size=8))
@settings(max_examples=30, deadline=None)
def test_the_state_of_a_moment_does_not_depend_on_the_order_of_calls(seed, times) -> None:
    forwards, backwards = Workcell(seed), Workcell(seed)
    first = [forwards.state(t) for t in times]
    second = [backwards.state(t) for t in reversed(times)]
    assert first == second[::-1]


def test_another_process_sees_the_same_scene() -> None:
    code = (
        "import json; from liveedge.sim.scene import Workcell; cell = Workcell(77);"
        "print(json.dumps([cell.state(t).to_json() for t in (9.75, 1.25, 61.0)]))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "1"}
    told = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=True, text=True
    ).stdout
    cell = Workcell(77)
    ours = [cell.state(t).to_json() for t in (9.75, 1.25, 61.0)]
    assert json.loads(told) == json.loads(json.dumps(ours))


def test_seeds_give_different_scenes() -> None:
    assert len({repr(Workcell(seed).state(10.0)) for seed in range(50)}) == 50


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        Workcell(-1)


@pytest.mark.parametrize("seed", range(12))
def test_everything_stays_in_its_range(seed: int) -> None:
    for state in film(seed):
        assert 0 <= state.door <= 1
        assert 0 <= state.display <= 99
        assert -0.001 <= state.gauge <= 1.001
        slots = [box.slot for box in state.boxes]
        assert slots == sorted(set(slots))
        assert set(slots) <= set(range(N_SLOTS))
        assert sum(box.lift == 0 for box in state.boxes) <= MAX_BOXES
        assert all(0 <= box.lift <= 1 and box.colour in COLOURS for box in state.boxes)
        if state.person is not None:
            assert state.person.shirt in COLOURS


@pytest.mark.parametrize("seed", range(12))
def test_nobody_and_nothing_jumps_from_one_frame_to_the_next(seed: int) -> None:
    states = film(seed)
    for before, after in itertools.pairwise(states):
        assert abs(after.door - before.door) <= STEP_S / DOOR_MOVE_S + 1e-9
        assert abs(after.display - before.display) <= 1
        assert abs(after.gauge - before.gauge) <= 0.3 * STEP_S + 1e-3
        moved = (after.belt_phase_px - before.belt_phase_px + 64) % 128 - 64
        assert abs(moved) <= BELT_SPEED_PX_S * STEP_S + 1e-6
        assert_person_walks(before, after)
        assert_boxes_travel(before, after)


def assert_person_walks(before: State, after: State) -> None:
    limit = PERSON_SPEED_PX_S * STEP_S + 1e-6
    if before.person is not None and after.person is not None:
        assert abs(after.person.x - before.person.x) <= limit
        assert after.person.shirt == before.person.shirt
    for here, there in ((before.person, after.person), (after.person, before.person)):
        if here is not None and there is None:
            assert here.x > NATIVE_WIDTH + 50 - limit  # came or went outside the picture


def assert_boxes_travel(before: State, after: State) -> None:
    limit = STEP_S / BOX_MOVE_S + 1e-9
    was = {(box.slot, box.colour): box.lift for box in before.boxes}
    now = {(box.slot, box.colour): box.lift for box in after.boxes}
    for box in was.keys() | now.keys():
        assert abs(was.get(box, 1.0) - now.get(box, 1.0)) <= limit


def test_everything_happens_within_two_minutes() -> None:
    states = film(3, seconds=120)
    assert {state.belt for state in states} == {"left", "right", "stopped"}
    assert {state.display_mode for state in states} == {"up", "down", "steady"}
    assert {state.lamp for state in states} == {True, False}
    assert {0.0, 1.0} <= {state.door for state in states}
    assert {state.person is None for state in states} == {True, False}
    assert len({len(state.boxes) for state in states}) >= 3


def test_forgetting_the_past_changes_nothing_after_it() -> None:
    forgetful, whole = Workcell(5), Workcell(5)
    for t in np.arange(0, 300, 0.5):
        assert forgetful.state(float(t)) == whole.state(float(t))
        forgetful.forget_before(float(t))


def test_forgetting_keeps_memory_bounded() -> None:
    cell = Workcell(6)
    sizes = []
    for hour in range(1, 4):
        cell.state(hour * 3600.0)
        cell.forget_before(hour * 3600.0)
        sizes.append(sum(len(line._starts) for line in timelines(cell)))
    assert max(sizes) <= 3 * len(timelines(cell))


def test_a_forgotten_moment_is_an_error_that_says_so() -> None:
    cell = Workcell(6)
    cell.state(600.0)
    cell.forget_before(600.0)
    with pytest.raises(ValueError, match="forgotten"):
        cell.state(1.0)


def timelines(cell: Workcell) -> list[Any]:
    return [line for line in vars(cell).values() if hasattr(line, "forget_before")]
