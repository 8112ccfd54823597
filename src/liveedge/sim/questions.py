"""Questions about the workcell, their true answers, and the scorer.

A kind of question has several phrasings and one canonical answer, computed from the states of the
frames that the model saw. Where the truth is not decidable (a door half way, a box in the air) the
answer is None and the question is not asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from liveedge.sim.scene import State

# Seeds of workcells: training, validation and test never share one.
TRAIN_SEEDS = range(1_000_000)
VALIDATION_SEEDS = range(1_000_000, 1_100_000)
TEST_SEEDS = range(2_000_000, 2_100_000)

States = Sequence[State]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of question."""

    name: str
    phrasings: tuple[str, ...]
    needs_clip: bool  # True: a single frame cannot tell
    answers: tuple[str, ...]  # the closed set of answers; empty: open
    truth: Callable[[States], str | None]


def expected(kind: str, states: States) -> str | None:
    """The canonical answer for frames with these states, oldest first; None if undecidable.

    Questions about a state are about the last frame.
    """
    if not states:
        raise ValueError("no states: a question needs at least one frame")
    return KINDS[kind].truth(states)


def spoken(kind: str, states: States) -> str | None:
    """How the shipped model is taught to say it: where two readings are compared, they come first.

    `12 to 15: up` says what was seen, and is far easier to learn than `up` alone.
    """
    truth = expected(kind, states)
    if truth is None or kind != "display_event":
        return truth
    return f"{states[0].display:02d} to {states[-1].display:02d}: {truth}"


def ask(kind: str, rng: np.random.Generator) -> str:
    """One of the phrasings of `kind`."""
    phrasings = KINDS[kind].phrasings
    return phrasings[int(rng.integers(len(phrasings)))]


def score(kind: str, answer: str, truth: str) -> bool:
    """Whether `answer` says what `truth` says: case, punctuation, an article and what is said
    before a colon do not count."""
    if kind == "state":
        return _as_json(answer) is not None and _as_json(answer) == _as_json(truth)
    if kind == "display":
        return re.findall(r"\d+", answer) == [truth]
    return _normalise(answer.rpartition(":")[2]) == _normalise(truth)


def _normalise(text: str) -> str:
    words = re.findall(r"[a-z0-9]+", text.lower())
    return " ".join(word for word in words if word not in ("a", "an", "the", "it", "is"))


def _as_json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None


# Truths about the last frame


def _door(states: States) -> str | None:
    door = states[-1].door
    return "open" if door >= 0.95 else "closed" if door <= 0.05 else None


def _lamp(states: States) -> str | None:
    return "on" if states[-1].lamp else "off"


def _present(state: State) -> bool | None:
    """None while somebody is half in the picture."""
    if state.person is None or state.person.x > 880:
        return False
    return True if state.person.x < 815 else None


def _person(states: States) -> str | None:
    present = _present(states[-1])
    return None if present is None else "yes" if present else "no"


def _shirt(states: States) -> str | None:
    person = states[-1].person
    return person.shirt if person is not None and _present(states[-1]) else None


def _position(states: States) -> str | None:
    person = states[-1].person
    if person is None or not _present(states[-1]):
        return None
    if person.x < 410:
        return "left"
    if person.x > 640:
        return "right"
    return "middle" if 450 < person.x < 600 else None


def _settled(state: State) -> tuple[str, ...] | None:
    """Colours of the boxes, left to right; None while one is in the air."""
    if any(box.lift > 0 for box in state.boxes):
        return None
    return tuple(box.colour for box in state.boxes)


def _count(states: States) -> str | None:
    boxes = _settled(states[-1])
    return None if boxes is None else str(len(boxes))


def _first_box(states: States) -> str | None:
    boxes = _settled(states[-1])
    return boxes[0] if boxes else None


def _last_box(states: States) -> str | None:
    boxes = _settled(states[-1])
    return boxes[-1] if boxes else None


def _display(states: States) -> str | None:
    return f"{states[-1].display:02d}"


def _gauge(states: States) -> str | None:
    level = states[-1].gauge
    if level < 0.28:
        return "low"
    if level > 0.72:
        return "high"
    return "medium" if 0.39 < level < 0.61 else None


def _state(states: States) -> str | None:
    door, person, boxes = _door(states), _present(states[-1]), _settled(states[-1])
    if door is None or person is None or boxes is None:
        return None
    return json.dumps(
        {
            "door": door,
            "lamp": _lamp(states),
            "person": person,
            "shirt": _shirt(states),
            "boxes": len(boxes),
            "display": _display(states),
        }
    )


# Truths about what happened


def _belt(states: States) -> str | None:
    modes = {state.belt for state in states}
    return modes.pop() if len(modes) == 1 else None


def _box_event(states: States) -> str | None:
    before, after = _settled(states[0]), _settled(states[-1])
    if before is None or after is None:
        return None
    if len(after) == len(before):
        return "no change" if before == after else None
    return "added" if len(after) > len(before) else "removed"


def _door_event(states: States) -> str | None:
    before, after = _door(states[:1]), _door(states)
    if before is None or after is None:
        return None
    if before == after:
        still = all(state.door == states[0].door for state in states)
        return "no change" if still else None
    return "opened" if after == "open" else "closed"


def _display_event(states: States) -> str | None:
    modes = {state.display_mode for state in states}
    if len(modes) != 1:
        return None
    mode = modes.pop()
    moved = states[-1].display - states[0].display
    return mode if (moved != 0) == (mode != "steady") else None


def _person_event(states: States) -> str | None:
    before, after = _present(states[0]), _present(states[-1])
    if before is None or after is None:
        return None
    if before == after:
        return "no change" if all(_present(s) == before for s in states) else None
    return "came in" if after else "left"


_STATE_FIELDS = "door, lamp, person, shirt, boxes, display"

_ALL = (
    Kind(
        "door",
        (
            "Is the door open or closed?",
            "Door: open or closed?",
            "What is the state of the door?",
            "Is the door closed or open right now?",
            "Tell me whether the door is open or closed.",
            "Look at the door. Open or closed?",
        ),
        False,
        ("open", "closed"),
        _door,
    ),
    Kind(
        "lamp",
        (
            "Is the lamp on or off?",
            "Lamp: on or off?",
            "What is the state of the lamp?",
            "Is the light switched on or off?",
            "Tell me whether the lamp is on or off.",
            "Is the lamp off or on right now?",
        ),
        False,
        ("on", "off"),
        _lamp,
    ),
    Kind(
        "person",
        (
            "Is there a person?",
            "Is anybody there?",
            "Do you see a person in the picture?",
            "Is a person present, yes or no?",
            "Is someone in the workcell?",
            "Can you see anyone right now?",
        ),
        False,
        ("yes", "no"),
        _person,
    ),
    Kind(
        "shirt",
        (
            "What colour is the person's shirt?",
            "Which colour is the shirt?",
            "What color is the person wearing?",
            "Shirt colour?",
            "Name the colour of the shirt of the person.",
            "The person wears a shirt of which colour?",
        ),
        False,
        ("red", "yellow", "green", "blue", "purple", "white"),
        _shirt,
    ),
    Kind(
        "position",
        (
            "Where is the person: left, middle or right?",
            "Where does the person stand?",
            "In which part of the picture is the person: left, middle or right?",
            "Is the person on the left, in the middle or on the right?",
        ),
        False,
        ("left", "middle", "right"),
        _position,
    ),
    Kind(
        "count",
        (
            "How many boxes are there?",
            "How many boxes are on the conveyor?",
            "Count the boxes.",
            "What is the number of boxes on the belt?",
            "How many boxes do you see?",
            "Number of boxes?",
        ),
        False,
        ("0", "1", "2", "3", "4"),
        _count,
    ),
    Kind(
        "first_box",
        (
            "What colour is the leftmost box?",
            "What colour is the first box from the left?",
            "Which colour is the box on the far left?",
            "Colour of the leftmost box?",
        ),
        False,
        ("red", "yellow", "green", "blue", "purple", "white"),
        _first_box,
    ),
    Kind(
        "last_box",
        (
            "What colour is the rightmost box?",
            "What colour is the last box on the right?",
            "Which colour is the box on the far right?",
            "Colour of the rightmost box?",
        ),
        False,
        ("red", "yellow", "green", "blue", "purple", "white"),
        _last_box,
    ),
    Kind(
        "display",
        (
            "What number is on the display?",
            "What does the display show?",
            "Read the display.",
            "Which two digits are on the display?",
            "Display reading?",
            "What is the number shown right now?",
        ),
        False,
        (),
        _display,
    ),
    Kind(
        "gauge",
        (
            "Is the gauge low, medium or high?",
            "What does the gauge say: low, medium or high?",
            "Gauge level?",
            "How high is the gauge?",
        ),
        False,
        ("low", "medium", "high"),
        _gauge,
    ),
    Kind(
        "state",
        (
            f"Describe the workcell as JSON with the keys {_STATE_FIELDS}.",
            f"Give the state as JSON: {_STATE_FIELDS}.",
            f"Answer in JSON with {_STATE_FIELDS}.",
            "Report the state of the workcell as JSON.",
        ),
        False,
        (),
        _state,
    ),
    Kind(
        "belt",
        (
            "Which way is the belt moving?",
            "Is the belt moving left, moving right or stopped?",
            "In which direction does the conveyor run?",
            "What is the belt doing?",
            "Belt direction: left, right or stopped?",
            "Does the belt move left or right, or is it stopped?",
        ),
        True,
        ("left", "right", "stopped"),
        _belt,
    ),
    Kind(
        "box_event",
        (
            "Was a box added or removed?",
            "What happened to the boxes: added, removed or no change?",
            "Has a box been added or removed?",
            "Did the number of boxes change?",
            "Boxes: added, removed or no change?",
        ),
        True,
        ("added", "removed", "no change"),
        _box_event,
    ),
    Kind(
        "door_event",
        (
            "Did the door just open or close?",
            "What happened to the door: opened, closed or no change?",
            "Has the door just opened?",
            "What did the door do?",
            "Door: opened, closed or no change?",
        ),
        True,
        ("opened", "closed", "no change"),
        _door_event,
    ),
    Kind(
        "display_event",
        (
            "Is the display counting up, counting down or steady?",
            "Does the number go up or down?",
            "Which way does the display count?",
            "Is the number on the display going up, going down or steady?",
            "Display: up, down or steady?",
        ),
        True,
        ("up", "down", "steady"),
        _display_event,
    ),
    Kind(
        "person_event",
        (
            "Did somebody come in or leave?",
            "Has a person walked in or out?",
            "What happened: a person came in, left or no change?",
            "Did anyone walk in or out?",
            "Person: came in, left or no change?",
        ),
        True,
        ("came in", "left", "no change"),
        _person_event,
    ),
)

KINDS: dict[str, Kind] = {kind.name: kind for kind in _ALL}
FRAME_KINDS = tuple(kind.name for kind in _ALL if not kind.needs_clip)
CLIP_KINDS = tuple(kind.name for kind in _ALL if kind.needs_clip)

STATE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "door": {"enum": ["open", "closed"]},
        "lamp": {"enum": ["on", "off"]},
        "person": {"type": "boolean"},
        "shirt": {"enum": ["red", "yellow", "green", "blue", "purple", "white", None]},
        "boxes": {"type": "integer", "minimum": 0, "maximum": 4},
        "display": {"type": "string", "pattern": "^[0-9]{2}$"},
    },
    "required": ["door", "lamp", "person", "shirt", "boxes", "display"],
    "additionalProperties": False,
}
