"""The ground truth of one frame as typed data, and as one line of JSON.

Everything is read off the scene's `State`; nothing is stored twice. A line carries both the words
(what a test or a plot wants) and the raw state, and reading one back checks that they agree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from liveedge.sim.questions import expected
from liveedge.sim.scene import Belt, Box, Count, Person, State

Door: TypeAlias = Literal["open", "closed", "moving"]
Lamp: TypeAlias = Literal["on", "off"]
Presence: TypeAlias = Literal["yes", "no", "entering or leaving"]
Walk: TypeAlias = Literal["left", "right", "standing"]
Place: TypeAlias = Literal["left", "middle", "right"]
Level: TypeAlias = Literal["low", "medium", "high"]

_DOOR: Mapping[str | None, Door] = {"open": "open", "closed": "closed", None: "moving"}
_PRESENCE: Mapping[str | None, Presence] = {"yes": "yes", "no": "no", None: "entering or leaving"}
_PLACE: Mapping[str | None, Place | None] = {
    "left": "left", "middle": "middle", "right": "right", None: None,
}  # fmt: skip
_LEVEL: Mapping[str | None, Level | None] = {
    "low": "low", "medium": "medium", "high": "high", None: None,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonLabel:
    """Somebody whose body is in the picture, or about to be."""

    shirt: str
    x_px: float  # middle, in pixels of the native 854x480 picture
    place: Place | None  # None between two places, or half out of the picture
    walking: Walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """What is true of one frame. Words follow the same rules as the answers to questions."""

    frame_number: int
    wall_ms: int  # as burned in
    state: State

    @property
    def t_s(self) -> float:
        """Seconds from the start of the scene."""
        return self.state.t_s

    @property
    def door(self) -> Door:
        return _DOOR[self._answer("door")]

    @property
    def lamp(self) -> Lamp:
        return "on" if self.state.lamp else "off"

    @property
    def person_present(self) -> Presence:
        return _PRESENCE[self._answer("person")]

    @property
    def person(self) -> PersonLabel | None:
        person = self.state.person
        if person is None:
            return None
        return PersonLabel(
            shirt=person.shirt,
            x_px=person.x,
            place=_PLACE[self._answer("position")],
            walking=_walk(person.velocity),
        )

    @property
    def n_boxes(self) -> int:
        """Boxes on the belt; one in the air is not counted."""
        return len(self.box_colours)

    @property
    def box_colours(self) -> tuple[str, ...]:
        """Colours of the boxes on the belt, left to right."""
        return tuple(box.colour for box in self.state.boxes if box.lift == 0)

    @property
    def boxes_in_air(self) -> tuple[str, ...]:
        """Colours of boxes being added or taken away."""
        return tuple(box.colour for box in self.state.boxes if box.lift > 0)

    @property
    def display(self) -> str:
        """Both digits."""
        return f"{self.state.display:02d}"

    @property
    def display_mode(self) -> Count:
        return self.state.display_mode

    @property
    def gauge(self) -> float:
        """Reading of the gauge, 0 to 1."""
        return self.state.gauge

    @property
    def gauge_level(self) -> Level | None:
        """None where two levels meet."""
        return _LEVEL[self._answer("gauge")]

    @property
    def belt(self) -> Belt:
        return self.state.belt

    def to_json(self) -> dict[str, Any]:
        """Plain values, words first, the raw state last."""
        person = self.person
        return {
            "frame_number": self.frame_number,
            "t_s": self.t_s,
            "wall_ms": self.wall_ms,
            "door": self.door,
            "lamp": self.lamp,
            "person_present": self.person_present,
            "person": None
            if person is None
            else {
                "shirt": person.shirt,
                "x_px": person.x_px,
                "place": person.place,
                "walking": person.walking,
            },
            "n_boxes": self.n_boxes,
            "box_colours": list(self.box_colours),
            "boxes_in_air": list(self.boxes_in_air),
            "display": self.display,
            "display_mode": self.display_mode,
            "gauge": self.gauge,
            "gauge_level": self.gauge_level,
            "belt": self.belt,
            "state": self.state.to_json(),
        }

    def to_line(self) -> str:
        """One line of JSONL, newline included."""
        return json.dumps(self.to_json(), separators=(",", ":")) + "\n"

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Labels:
        """The inverse of `to_json`; ValueError where the words and the state disagree."""
        try:
            labels = cls(
                frame_number=value["frame_number"],
                wall_ms=value["wall_ms"],
                state=_state(value["state"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the labels of a frame: {error!r}") from error
        for key, told in labels.to_json().items():
            if value.get(key) != json.loads(json.dumps(told)):
                raise ValueError(f"{key} is {value.get(key)!r}, but the state says {told!r}")
        return labels

    def _answer(self, kind: str) -> str | None:
        return expected(kind, (self.state,))


def write_labels(path: Path, labels: Iterable[Labels]) -> int:
    """Write one line per frame; the number of lines."""
    n = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for one in labels:
            file.write(one.to_line())
            n += 1
    return n


def read_labels(path: Path) -> Iterator[Labels]:
    """Frames of a JSONL file in order; ValueError names the line that is wrong."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield Labels.from_json(json.loads(line))
            except ValueError as error:  # a JSONDecodeError is one
                raise ValueError(f"{path}, line {number}: {error}") from error


def _walk(velocity: float) -> Walk:
    if velocity == 0:
        return "standing"
    return "right" if velocity > 0 else "left"


def _state(value: Mapping[str, Any]) -> State:
    person, boxes = value["person"], value["boxes"]
    return State(
        **{
            **value,
            "person": None if person is None else Person(**person),
            "boxes": tuple(Box(**box) for box in boxes),
        }
    )
