"""The smallest envelope whose answers are right, found with runs that are scripted."""

import json

import pytest

from liveedge.bench.envelope import (
    ALL,
    Envelope,
    Rule,
    envelopes,
    scenario_in,
    search,
    write,
)
from liveedge.bench.record import Record
from liveedge.bench.result import RECORDS
from liveedge.bench.scenario import ScenarioInvalid, scenario_of

KINDS = ["lamp", "belt"]
BASE = scenario_of({"name": "base", "questions": {"kinds": KINDS}})
# Right of a hundred by size and kind; the belt needs a clip to be seen.
RIGHT = {
    160: {"lamp": 60, "belt": 50},
    320: {"lamp": 100, "belt": 70},
    640: {"lamp": 100, "belt": 99},
}


def answers(scenario, n=100, right=RIGHT):
    """A hundred records of each kind: tokens and time grow with pixels and frames."""
    width, frames = scenario.sources.width, scenario.media.frames
    cost = width * frames / 1000
    for kind in scenario.questions.kinds:
        for index in range(n):
            sent_s = float(index)
            yield Record(
                index=index,
                question=kind,
                outcome="ok",
                sent_s=sent_s,
                first_content_s=sent_s + cost,
                ended_s=sent_s + 2 * cost,
                prompt_tokens=round(100 * cost),
                truth="on",
                correct=index * 37 % 100 < right[width][kind],  # spread over the run
            )


class Runs:
    """Stands in for whole runs: writes records, remembers what was run."""

    def __init__(self, **options):
        self.options = options
        self.names = []

    def __call__(self, scenario, folder):
        self.names.append(scenario.name)
        folder.append(RECORDS, (one.as_json() for one in answers(scenario, **self.options)))
        return ["late"] if scenario.sources.width == 160 else []


def found(tmp_path, *, sizes=("640x480", "160x120", "320x240"), frames=(1, 4), **options):
    runs = Runs(**options.pop("runs", {}))
    rule = Rule(threshold=0.9, **options)
    return search(BASE, envelopes(sizes, frames), rule, run=runs, folder=tmp_path), runs


def test_it_goes_from_the_smallest_up_and_stops_where_all_is_decided(tmp_path):
    result, runs = found(tmp_path, sizes=("640x480", "160x120", "320x240", "1920x1080"))
    ran = [point.envelope.name for point in result.points]
    assert ran == ["160x120x1", "320x240x1", "160x120x4", "640x480x1", "320x240x4", "640x480x4"]
    assert [one.name for one in result.skipped] == ["1920x1080x1", "1920x1080x4"]
    assert runs.names[0] == "base-160x120x1"


def test_each_kind_has_its_own_smallest_envelope_and_a_cost(tmp_path):
    result, _ = found(tmp_path)
    smallest = {one.kind: one for one in result.smallest}
    assert smallest["lamp"].envelope == Envelope(width=320, height=240, frames=1)
    assert smallest["belt"].envelope == Envelope(width=640, height=480, frames=4)
    # Together only where both can be asked.
    assert smallest[ALL].envelope == Envelope(width=640, height=480, frames=4)
    point = next(one for one in result.points if one.envelope == smallest["belt"].envelope)
    assert (point.prompt_tokens, point.answered, point.failed) == (256, 200, 0)
    assert point.ttft_ms == pytest.approx(2560)
    assert point.total_ms == pytest.approx(5120)


def test_a_share_that_few_questions_do_not_prove_is_undecided_by_its_lower_bound(tmp_path):
    few = {"n": 10}
    by_lower, _ = found(tmp_path / "lower", runs=few)
    by_point, _ = found(tmp_path / "point", runs=few, bound="point")
    lamps = [
        one for search in (by_lower, by_point) for one in search.smallest if one.kind == "lamp"
    ]
    assert [one.verdict for one in lamps] == ["undecided", "reached"]
    assert lamps[0].envelope == lamps[1].envelope


def test_a_kind_that_no_envelope_reaches_says_how_far_it_came(tmp_path):
    result, _ = found(tmp_path, sizes=("160x120", "320x240"))
    belt = next(one for one in result.smallest if one.kind == "belt")
    assert (belt.envelope, belt.verdict, belt.accuracy.share) == (None, "missed", 0.7)


def test_single_frames_are_not_asked_what_only_a_clip_can_tell():
    one = scenario_in(BASE, Envelope(width=320, height=240, frames=1))
    clip = scenario_in(BASE, Envelope(width=320, height=240, frames=2))
    assert one.questions.kinds == ("lamp",)
    assert clip.questions.kinds == tuple(KINDS)
    assert (clip.sources.width, clip.media.frames, clip.load.kind) == (320, 2, "closed")


def test_what_was_found_is_written_as_json_and_as_tables(tmp_path):
    result, _ = found(tmp_path)
    write(result, tmp_path)
    document = json.loads((tmp_path / "envelope.json").read_text())
    assert document["smallest"][0]["kind"] == "lamp"
    assert len(document["points"]) == 6
    text = (tmp_path / "envelope.md").read_text()
    assert "| lamp | 320x240x1 | 100.0% of 100 (96.3% to 100.0%) | 32 | 320 | 640 |" in text
    assert "| 160x120x4 | 55.0% of 200" in text
    assert "| 64 | 640* | 1280* |" in text
    assert "not the server's alone" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    widths = {line.count("|") for line in tables[5:]}
    assert len(widths) == 1


@pytest.mark.parametrize(
    ("sizes", "frames", "message"),
    [(["320"], [1], "write it as 320x240"), ([], [1], "at least one"), (["4x4"], [0], "above 0")],
)
def test_sizes_that_are_none_are_refused(sizes, frames, message):
    with pytest.raises(ScenarioInvalid, match=message):
        envelopes(sizes, frames)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"media": {"seconds": 2.0, "frames": 2}}, "leave it out"),
        ({"questions": {"kinds": [], "prompts": ["?"]}}, "no true answers"),
        ({"questions": {"kinds": ["belt"]}}, "leave 1 out of the frames"),
        ({"mix": [{"name": "a", "kinds": ["lamp"]}]}, "leave mix out"),
    ],
)
def test_a_base_that_has_no_single_envelope_is_refused(sections, message, tmp_path):
    base = scenario_of({"name": "base", **sections})
    wanted = [Envelope(width=320, height=240, frames=1)]
    with pytest.raises(ScenarioInvalid, match=message):
        search(base, wanted, Rule(threshold=0.9), run=Runs(), folder=tmp_path)
