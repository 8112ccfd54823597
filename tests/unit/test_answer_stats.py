"""Every question is told once to its observers, however it ended, and counted where it belongs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pytest

from liveedge.core.errors import DeadlineExceeded, InternalError, LiveEdgeError
from liveedge.engine.request import SamplingParams
from liveedge.service.answer_stats import AnswerStats
from liveedge.service.observed import AnswerRecord, Observed
from liveedge.service.question import (
    AnswerEvent,
    ChoiceEnd,
    FrameUse,
    Question,
    Report,
    TextDelta,
    Turn,
)
from liveedge.testing.clock import FakeClock

QUESTION = Question(
    request_id="r", tenant="t", model="m", turns=(Turn(role="user", content=()),),
    sampling=SamplingParams(),
)  # fmt: skip


def frame(*, warm: bool, stream_id: str = "s") -> FrameUse:
    return FrameUse(
        stream_id=stream_id, frame_index=0, timestamp_ms=0, captured_at_ms=0, width=1, height=1,
        n_tokens=1, warm=warm, corrupt=False,
    )  # fmt: skip


def end(*frames: FrameUse, choice: int = 0) -> ChoiceEnd:
    report = Report(
        prompt_tokens=70, completion_tokens=3, cached_tokens=0, image_tokens=60, frames=frames,
        evidence_at_ms=1, age_ms=120, corrupt_frames=0,
        timings_ms={"resolve": 2.0, "queue": 1.0, "encode": 30.0, "first_token": 45.0},
    )  # fmt: skip
    return ChoiceEnd(choice=choice, reason="stop", report=report)


class Said:
    """Answers with what it is told, a step of time before each."""

    def __init__(self, clock: FakeClock, *script: AnswerEvent | BaseException) -> None:
        self._clock = clock
        self._script = script
        self.is_closed = False

    async def answer(self, question: Question) -> AsyncGenerator[AnswerEvent, None]:
        try:
            for one in self._script:
                self._clock.move(0.02)
                if isinstance(one, BaseException):
                    raise one
                yield one
        finally:
            self.is_closed = True


class Heard:
    def __init__(self) -> None:
        self.records: list[AnswerRecord] = []

    def ended(self, record: AnswerRecord) -> None:
        self.records.append(record)


def text(choice: int = 0) -> TextDelta:
    return TextDelta(choice=choice, text="word")


async def told(
    *script: AnswerEvent | BaseException, leave_after: int | None = None
) -> tuple[AnswerRecord, AnswerStats, Sequence[AnswerEvent]]:
    clock, heard, stats = FakeClock(), Heard(), AnswerStats()
    said = Said(clock, *script)
    observed = Observed(said, observers=(heard, stats), clock=clock)
    got: list[AnswerEvent] = []
    try:
        async with aclosing(observed.answer(QUESTION)) as events:
            async for event in events:
                got.append(event)
                if len(got) == leave_after:
                    break
    except (LiveEdgeError, ZeroDivisionError, asyncio.CancelledError):
        pass
    assert said.is_closed
    (record,) = heard.records
    return record, stats, got


async def test_events_pass_through_and_stages_are_counted_once_per_choice():
    script: list[AnswerEvent] = [
        text(),
        text(1),
        text(),
        end(frame(warm=True)),
        text(1),
        end(choice=1),
    ]
    record, stats, got = await told(*script)
    assert got == script
    assert record.outcome == "answered"
    assert record.gaps_s == pytest.approx([0.04, 0.06])
    assert stats.request_s.count == 1
    assert stats.request_s.sum == pytest.approx(0.12)
    assert stats.between_tokens_s.count == 2
    assert stats.first_token_s["warm"].count == stats.first_token_s["none"].count == 1
    assert stats.stage_s["encode"].sum == pytest.approx(0.06)
    assert stats.stage_s["decode"].count == 0  # nobody told
    assert stats.evidence_age_s.sum == pytest.approx(0.24)
    assert stats.reasons["stop"] == 2
    assert stats.failed.total() == 0


async def test_one_frame_that_was_not_encoded_before_makes_an_answer_cold():
    record, stats, _ = await told(end(frame(warm=True), frame(warm=False, stream_id="t")))
    assert {name: found.count for name, found in stats.first_token_s.items()} == {
        "warm": 0,
        "cold": 1,
        "none": 0,
        "elsewhere": 0,
    }
    assert record.stream_ids == ["s", "t"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DeadlineExceeded("late"), "deadline_exceeded"),
        (InternalError("ours"), "internal_error"),
        (ZeroDivisionError(), "internal_error"),
        (asyncio.CancelledError(), "cancelled"),
    ],
)
async def test_a_question_without_an_answer_is_counted_by_its_code(error: BaseException, code: str):
    record, stats, _ = await told(text(), error)
    assert record.outcome == code
    assert +stats.failed == {code: 1}
    assert stats.request_s.count == 0


async def test_a_client_that_leaves_is_counted_as_such():
    record, stats, _ = await told(text(), text(), leave_after=1)
    assert record.outcome == "cancelled"
    assert +stats.failed == {"cancelled": 1}


@pytest.mark.parametrize(
    ("code", "shown"), [("upstream_http_418", "upstream_http"), ("new", "other")]
)
async def test_codes_of_others_make_no_new_series(code: str, shown: str):
    class Foreign(LiveEdgeError):
        pass

    error = Foreign("x")
    error.code = code
    _, stats, _ = await told(error)
    assert +stats.failed == {shown: 1}
