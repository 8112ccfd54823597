"""Questions, their truths and the scorer."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections import defaultdict

import numpy as np
import pytest

from liveedge.sim import questions
from liveedge.sim.questions import CLIP_KINDS, FRAME_KINDS, KINDS, STATE_SCHEMA, expected, score
from liveedge.sim.scene import Box, Person, State, Workcell

CALM = State(
    t_s=10.0,
    door=0.0,
    lamp=False,
    person=None,
    boxes=(),
    display=7,
    display_mode="steady",
    gauge=0.1,
    belt="stopped",
    belt_phase_px=0.0,
)


def having(**changes) -> State:
    return dataclasses.replace(CALM, **changes)


def standing_at(x: float, shirt: str = "red") -> Person:
    return Person(shirt=shirt, x=x, velocity=0.0)


def boxes(*colours: str, lifts: dict[int, float] | None = None) -> tuple[Box, ...]:
    lifts = lifts or {}
    return tuple(Box(i, colour, lifts.get(i, 0.0)) for i, colour in enumerate(colours))


@pytest.fixture(scope="module")
def seen() -> dict[str, set[str | None]]:
    """Every answer that occurs in 4-frame clips of many workcells, by kind."""
    found: dict[str, set[str | None]] = defaultdict(set)
    for seed in range(150):
        cell = Workcell(seed)
        for start in np.arange(1.0, 40.0, 1.7):
            states = [cell.state(float(start) + t) for t in (0.0, 0.5, 1.0, 1.5)]
            for kind in KINDS:
                found[kind].add(expected(kind, states))
    return found


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.answers])
def test_every_closed_answer_occurs_and_no_other(kind: str, seen) -> None:
    assert seen[kind] - {None} == set(KINDS[kind].answers)


def test_open_answers_have_their_form(seen) -> None:
    assert {f"{n:02d}" for n in range(100)} == seen["display"]
    for answer in seen["state"] - {None}:
        assert_fits_schema(json.loads(answer))


def assert_fits_schema(value) -> None:
    properties = STATE_SCHEMA["properties"]
    assert list(value) == STATE_SCHEMA["required"] == list(properties)
    for key in ("door", "lamp", "shirt"):
        assert value[key] in properties[key]["enum"]
    assert isinstance(value["person"], bool)
    assert value["shirt"] is None or value["person"]
    assert value["boxes"] in range(5)
    assert re.fullmatch(properties["display"]["pattern"], value["display"])


UNDECIDABLE = {
    "door": [having(door=0.5)],
    "person": [having(person=standing_at(850))],
    "shirt": [CALM],
    "position": [having(person=standing_at(430))],
    "count": [having(boxes=boxes("red", "blue", lifts={1: 0.4}))],
    "first_box": [CALM],
    "last_box": [having(boxes=boxes("red", lifts={0: 0.4}))],
    "gauge": [having(gauge=0.3)],
    "state": [having(door=0.5)],
    "belt": [having(belt="left"), having(belt="right")],
    "box_event": [CALM, having(boxes=boxes("red", lifts={0: 0.4}))],
    "door_event": [having(door=1.0), having(door=0.5), having(door=1.0)],
    "display_event": [having(display_mode="up"), having(display_mode="up")],
    "person_event": [CALM, having(person=standing_at(850))],
}


@pytest.mark.parametrize("kind", sorted(UNDECIDABLE))
def test_what_cannot_be_decided_is_not_asked(kind: str) -> None:
    assert expected(kind, UNDECIDABLE[kind]) is None


def test_only_lamp_and_display_are_always_decidable(seen) -> None:
    assert {kind for kind in KINDS if None not in seen[kind]} == {"lamp", "display"}
    assert set(UNDECIDABLE) == set(KINDS) - {"lamp", "display"}


@pytest.mark.parametrize(
    ("kind", "states", "answer"),
    [
        ("door", [having(door=1.0)], "open"),
        ("lamp", [having(lamp=True)], "on"),
        ("person", [having(person=standing_at(500))], "yes"),
        ("person", [having(person=standing_at(900))], "no"),
        ("shirt", [having(person=standing_at(500, "green"))], "green"),
        ("position", [having(person=standing_at(300))], "left"),
        ("position", [having(person=standing_at(500))], "middle"),
        ("position", [having(person=standing_at(700))], "right"),
        ("count", [having(boxes=boxes("red", "blue"))], "2"),
        ("first_box", [having(boxes=boxes("red", "blue"))], "red"),
        ("last_box", [having(boxes=boxes("red", "blue"))], "blue"),
        ("display", [having(display=7)], "07"),
        ("gauge", [having(gauge=0.9)], "high"),
        ("belt", [having(belt="left")] * 4, "left"),
        ("box_event", [CALM, having(boxes=boxes("red"))], "added"),
        ("box_event", [having(boxes=boxes("red")), CALM], "removed"),
        ("box_event", [CALM, CALM], "no change"),
        ("door_event", [CALM, having(door=0.4), having(door=1.0)], "opened"),
        ("door_event", [having(door=1.0), having(door=0.4), CALM], "closed"),
        ("door_event", [CALM] * 3, "no change"),
        ("display_event", [CALM] * 3, "steady"),
        (
            "display_event",
            [having(display=n, display_mode="up") for n in (3, 4, 5)],
            "up",
        ),
        ("person_event", [CALM, having(person=standing_at(700))], "came in"),
        ("person_event", [having(person=standing_at(700)), CALM], "left"),
        ("person_event", [CALM] * 4, "no change"),
    ],
)
def test_the_truth_of_plain_cases(kind: str, states: list[State], answer: str) -> None:
    assert expected(kind, states) == answer


def test_questions_about_a_state_look_at_the_last_frame_alone() -> None:
    first, last = having(lamp=True, door=1.0, display=55), CALM
    for kind in FRAME_KINDS:
        assert expected(kind, [first, last]) == expected(kind, [last])


def test_a_question_without_frames_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one frame"):
        expected("door", [])


def test_every_kind_is_asked_in_several_ways_and_no_two_kinds_in_the_same() -> None:
    asked = [text for kind in KINDS.values() for text in kind.phrasings]
    assert len(asked) == len(set(asked))
    assert all(len(kind.phrasings) >= 4 for kind in KINDS.values())
    assert set(FRAME_KINDS) | set(CLIP_KINDS) == set(KINDS)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_all_phrasings_come_up(kind: str) -> None:
    rng = np.random.default_rng(0)
    assert {questions.ask(kind, rng) for _ in range(200)} == set(KINDS[kind].phrasings)


def test_training_validation_and_test_share_no_workcell() -> None:
    splits = (questions.TRAIN_SEEDS, questions.VALIDATION_SEEDS, questions.TEST_SEEDS)
    spans = sorted((split.start, split.stop) for split in splits)
    assert all(split.step == 1 and len(split) >= 100_000 for split in splits)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))


STATE = (
    '{"door": "open", "lamp": "on", "person": false, "shirt": null, "boxes": 2, "display": "07"}'
)


@pytest.mark.parametrize(
    ("kind", "answer", "truth"),
    [
        ("door", "open", "open"),
        ("door", "Open.", "open"),
        ("door", "It is open", "open"),
        ("person_event", "Came in!", "came in"),
        ("count", " 3\n", "3"),
        ("display", "The display shows 07.", "07"),
        ("state", STATE, STATE),
        ("state", json.dumps(json.loads(STATE), indent=2, sort_keys=True), STATE),
    ],
)
def test_the_scorer_accepts_the_same_said_otherwise(kind, answer, truth) -> None:
    assert score(kind, answer, truth)


@pytest.mark.parametrize(
    ("kind", "answer", "truth"),
    [
        ("door", "closed", "open"),
        ("door", "", "open"),
        ("door", "open or closed", "open"),
        ("door", "not open", "open"),
        ("box_event", "change", "no change"),
        ("count", "13", "3"),
        ("display", "7", "07"),
        ("display", "07 or 08", "07"),
        ("display", "seven", "07"),
        ("state", STATE[:-1], STATE),
        ("state", "", STATE),
        ("state", STATE.replace('"07"', '"08"'), STATE),
        ("state", STATE.replace("null", '"red"'), STATE),
    ],
)
def test_the_scorer_rejects_what_is_wrong_or_unclear(kind, answer, truth) -> None:
    assert not score(kind, answer, truth)
