"""What request number N asks, of which camera."""

from collections import Counter

import pytest

from liveedge.bench.scenario import ScenarioInvalid, scenario_of
from liveedge.bench.sources.rotation import Rotation
from liveedge.sim.questions import KINDS


def rotation(**sections):
    return Rotation(scenario_of({"name": "test", **sections}))


def test_the_same_number_is_the_same_question_in_every_run_of_a_seed():
    first, again = rotation(load={"seed": 3}), rotation(load={"seed": 3})
    turns = [first.at(index) for index in range(50)]
    assert turns == [again.at(index) for index in range(50)]
    other = rotation(load={"seed": 4})
    assert turns != [other.at(index) for index in range(50)]


def test_cameras_take_turns_and_each_is_asked_everything_equally_often():
    asked = rotation(sources={"count": 2}, questions={"kinds": ["lamp", "door"], "prompts": ["?"]})
    turns = [asked.at(index) for index in range(60)]
    assert [turn.source for turn in turns[:4]] == [0, 1, 0, 1]
    counted = Counter((turn.source, turn.question) for turn in turns)
    assert set(counted.values()) == {10}
    assert {question for _, question in counted} == {"lamp", "door", "prompt-0"}


def test_a_question_is_one_of_its_phrasings():
    turn = rotation(questions={"kinds": ["lamp"]}).at(7)
    assert turn.text in KINDS["lamp"].phrasings


def test_shares_of_a_mix_come_as_often_as_their_weights_say():
    mix = [
        {"name": "often", "weight": 3, "kinds": ["lamp"]},
        {"name": "seldom", "weight": 1, "prompts": ["?"]},
    ]
    mixed = rotation(mix=mix)
    counted = Counter(mixed.at(index).share for index in range(4000))
    assert 0.72 < counted[0] / 4000 < 0.78


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"questions": {"kinds": ["weather"]}}, "'weather'; known kinds are door"),
        ({"questions": {"kinds": ["belt"]}}, "asks belt of one frame, which cannot tell"),
        ({"mix": [{"name": "a"}]}, "the share 'a' of the mix has neither kinds nor prompts"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_the_way_out(sections, message):
    with pytest.raises(ScenarioInvalid, match=message):
        rotation(**sections)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"mix": [{"name": "a", "weight": 0}]}, r"mix\[0\].weight is 0"),
        ({"mix": [{"name": "a", "media": {"frames": 0}}]}, r"mix\[0\].media.frames is 0"),
        ({"media": {"repeats": True, "distinct": True}}, "exclude each other"),
        ({"media": {"frames": 2, "distinct": True}}, "set media.max_fps, 2, to sources.fps, 5"),
        ({"sources": {"jpeg_quality": 101}}, "jpeg_quality is 101"),
    ],
)
def test_media_that_contradict_each_other_are_refused(sections, message):
    with pytest.raises(ScenarioInvalid, match=message):
        scenario_of({"name": "test", **sections})
