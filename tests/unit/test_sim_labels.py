"""Labels of a frame and their JSONL form."""

from __future__ import annotations

import json

import numpy as np
import pytest

from liveedge.sim.labels import Labels, read_labels, write_labels
from liveedge.sim.questions import expected
from liveedge.sim.scene import Box, Person, State, Workcell

BUSY = State(
    t_s=4.5,
    door=0.4,
    lamp=True,
    person=Person(shirt="green", x=500.0, velocity=-150.0),
    boxes=(Box(0, "red", 0.0), Box(2, "blue", 0.5), Box(4, "white", 0.0)),
    display=7,
    display_mode="down",
    gauge=0.5,
    belt="left",
    belt_phase_px=12.5,
)


def film(seed: int, n: int) -> list[Labels]:
    cell = Workcell(seed)
    return [Labels(frame_number=i, wall_ms=i * 400, state=cell.state(i * 0.4)) for i in range(n)]


def test_every_part_of_the_scene_has_its_label() -> None:
    labels = Labels(frame_number=135, wall_ms=1000, state=BUSY)
    assert labels.t_s == 4.5
    assert (labels.door, labels.lamp, labels.belt) == ("moving", "on", "left")
    assert labels.person is not None
    assert (labels.person.shirt, labels.person.x_px) == ("green", 500.0)
    assert (labels.person.place, labels.person.walking) == ("middle", "left")
    assert labels.person_present == "yes"
    assert (labels.n_boxes, labels.box_colours) == (2, ("red", "white"))
    assert labels.boxes_in_air == ("blue",)
    assert (labels.display, labels.display_mode) == ("07", "down")
    assert (labels.gauge, labels.gauge_level) == (0.5, "medium")
    assert labels.state is BUSY


def test_labels_say_what_the_answers_say() -> None:
    for labels in film(8, 200):
        states = [labels.state]
        assert expected("door", states) == (None if labels.door == "moving" else labels.door)
        assert expected("lamp", states) == labels.lamp
        assert expected("display", states) == labels.display
        assert expected("gauge", states) == labels.gauge_level
        if not labels.boxes_in_air:
            assert expected("count", states) == str(labels.n_boxes)
        place = None if labels.person is None else labels.person.place
        assert expected("position", states) == place
        present = expected("person", states)
        assert labels.person_present == ("entering or leaving" if present is None else present)


def test_a_file_gives_back_what_was_written(tmp_path) -> None:
    labels = film(3, 300)
    path = tmp_path / "out.mp4.jsonl"
    assert write_labels(path, labels) == 300
    assert list(read_labels(path)) == labels


def test_every_line_is_a_plain_json_object(tmp_path) -> None:
    path = tmp_path / "labels.jsonl"
    write_labels(path, film(3, 20))
    lines = path.read_text().splitlines()
    assert len(lines) == 20
    assert all(json.loads(line)["frame_number"] == i for i, line in enumerate(lines))
    keys = {"door", "lamp", "person_present", "person", "n_boxes", "box_colours", "display"}
    assert keys | {"gauge", "belt", "t_s", "wall_ms", "state"} <= set(json.loads(lines[0]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: value | {"door": "open"}, "door is 'open'"),
        (lambda value: value | {"n_boxes": 4}, "n_boxes is 4"),
        (lambda value: {k: v for k, v in value.items() if k != "state"}, "not the labels"),
        (lambda value: value | {"state": value["state"] | {"colour": 1}}, "not the labels"),
        (lambda value: [value], "not the labels"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, change, message) -> None:
    good = Labels(frame_number=1, wall_ms=0, state=BUSY)
    wrong = change(json.loads(good.to_line()))
    path = tmp_path / "labels.jsonl"
    path.write_text(good.to_line() + json.dumps(wrong) + "\n")
    with pytest.raises(ValueError, match=f"line 2: {message}"):
        list(read_labels(path))


def test_a_line_cut_short_is_named(tmp_path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text(Labels(frame_number=1, wall_ms=0, state=BUSY).to_line()[:50])
    with pytest.raises(ValueError, match="line 1"):
        list(read_labels(path))


def test_values_of_numpy_do_not_leak_into_labels() -> None:
    for labels in film(12, 50):
        assert not any(isinstance(v, np.generic) for v in labels.state.to_json().values())
