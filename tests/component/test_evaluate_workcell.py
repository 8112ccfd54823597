"""The evaluation of the shipped model, with engines whose score is known beforehand."""

from __future__ import annotations

import json

import pytest

from evaluate_workcell import (
    MARK_BEGIN,
    MARK_END,
    Examiner,
    Marks,
    figures,
    fill_card,
    measure_accuracy,
    measure_envelope,
    report,
)
from liveedge.core.clock import SystemClock
from liveedge.core.errors import ModelUnavailable
from liveedge.engine.request import GenerateRequest, ImagePart, TextPart, VideoPart
from liveedge.sim.questions import CLIP_KINDS, KINDS, expected
from liveedge.sim.scene import State, Workcell
from liveedge.testing.engine import FakeEngine


def states_shown(request: GenerateRequest) -> list[State]:
    """The truth of the frames in a request, from their keys."""
    [message] = request.messages
    media, _ = message.content
    assert isinstance(media, ImagePart | VideoPart)
    frames = (media.frame,) if isinstance(media, ImagePart) else media.frames
    states = []
    for frame in frames:
        seed, fps, index, _ = frame.key.split("/")
        states.append(Workcell(int(seed)).state(int(index) / int(fps)))
    return states


def kind_asked(request: GenerateRequest) -> str:
    text = request.messages[0].content[-1]
    assert isinstance(text, TextPart)
    return next(name for name, kind in KINDS.items() if text.text in kind.phrasings)


def oracle(request: GenerateRequest) -> str:
    """Right about everything that is in the frames."""
    return expected(kind_asked(request), states_shown(request)) or "cannot say"


SMALL = (64, 48)  # pixels do not matter to these engines, and cost time


def examiner(answer) -> Examiner:
    return Examiner(FakeEngine(clock=SystemClock(), answer=answer, queue_capacity=64))


async def test_an_oracle_is_right_about_every_clip_and_every_kind() -> None:
    marks = await measure_accuracy(examiner(oracle), n_questions=48, seed=1, size=SMALL)
    assert set(marks.kinds) == set(KINDS)
    assert all(tally.rate == 1 and tally.n >= 3 for tally in marks.kinds.values())
    assert marks.parseable.rate == 1
    assert marks.wrong == []
    assert figures(marks, [])["promises_missed"] == []


async def test_one_frame_is_not_enough_even_for_an_oracle() -> None:
    marks = await measure_accuracy(examiner(oracle), n_questions=80, seed=1, size=SMALL)
    assert set(marks.single) == set(CLIP_KINDS)
    for kind in ("box_event", "door_event", "person_event"):
        assert marks.single[kind].rate == pytest.approx(1 / 3, abs=0.05)  # always "no change"


async def test_a_parrot_gets_its_share_and_every_mistake_is_kept() -> None:
    marks = await measure_accuracy(examiner("open"), n_questions=32, seed=1, size=SMALL)
    assert marks.kinds["door"].rate == 0.5
    assert sum(tally.right for tally in marks.kinds.values()) == marks.kinds["door"].right
    assert marks.parseable.rate == 0
    assert len(marks.wrong) == sum(t.n for t in marks.kinds.values()) - marks.kinds["door"].right
    assert set(figures(marks, [])["promises_missed"]) == set(KINDS) - {
        "position",
        "gauge",
        "state",
    }


async def test_the_envelope_has_every_size_and_number_of_frames() -> None:
    cells = await measure_envelope(
        examiner(oracle), n_questions=5, seed=2, sizes=(SMALL, (96, 64)), frame_counts=(1, 3)
    )
    assert [(cell.size, cell.n_frames) for cell in cells] == [
        (SMALL, 1),
        ((96, 64), 1),
        (SMALL, 3),
        ((96, 64), 3),
    ]
    assert all(cell.state.rate == 1 and cell.state.n >= 5 for cell in cells)
    assert all((cell.time.n >= 5) == (cell.n_frames > 1) for cell in cells)
    assert all(cell.time.rate == 1 for cell in cells if cell.n_frames > 1)


async def test_a_failing_engine_ends_the_evaluation() -> None:
    def fail(request: GenerateRequest) -> str:
        raise ModelUnavailable("gone")

    with pytest.raises(ExceptionGroup) as failed:
        await measure_accuracy(examiner(fail), n_questions=16, seed=1, size=SMALL)
    assert failed.group_contains(ModelUnavailable)


async def test_the_tables_are_markdown_and_the_figures_are_json() -> None:
    asked = examiner(oracle)
    marks = await measure_accuracy(asked, n_questions=16, seed=3, size=SMALL)
    cells = await measure_envelope(
        asked, n_questions=1, seed=3, sizes=(SMALL, (33, 32)), frame_counts=(1, 4)
    )
    text = report(marks, cells)
    for table in text.split("\n\n"):
        if table.startswith("|"):
            assert len({line.count("|") for line in table.splitlines()}) == 1
    assert "| first box | 100.0% |" in text
    assert text.count("\n| 33x32 |") == 1
    figures_read = json.loads(json.dumps(figures(marks, cells), allow_nan=False))
    assert figures_read["all"]["rate"] == 1
    assert len(figures_read["envelope"]) == 4


def test_a_card_is_filled_between_its_markers_any_number_of_times(tmp_path) -> None:
    card = tmp_path / "README.md"
    card.write_text(f"before\n{MARK_BEGIN}\nold\n{MARK_END}\nafter\n")
    for text in ("first", "second"):
        fill_card(card, text)
    assert card.read_text() == f"before\n{MARK_BEGIN}\nsecond\n{MARK_END}\nafter\n"


def test_a_card_without_markers_is_left_alone(tmp_path) -> None:
    card = tmp_path / "README.md"
    card.write_text(f"only the first {MARK_BEGIN}")
    with pytest.raises(SystemExit, match="has no"):
        fill_card(card, "text")
    assert card.read_text() == f"only the first {MARK_BEGIN}"


def test_what_was_never_asked_counts_as_a_missed_promise() -> None:
    assert len(figures(Marks(), [])["promises_missed"]) == 13
