"""Answers with witnesses: whoever answers, each question is told once to every observer, at its end.

The only place where answers are measured, for our own model and for others alike. Passes events on
as they are; an observer never sees a text.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from liveedge.core.clock import Clock
from liveedge.core.errors import InternalError, LiveEdgeError
from liveedge.core.log import note
from liveedge.service.question import AnswerEvent, Answers, ChoiceEnd, Question

CANCELLED = "cancelled"  # the client left, or the server did
ANSWERED = "answered"


@dataclass(slots=True, kw_only=True)
class AnswerRecord:
    """One question and how it ended."""

    question: Question
    began_wall_ms: int
    began_s: float
    ended_s: float = 0.0
    outcome: str = CANCELLED  # ANSWERED, CANCELLED, or the code of the error
    ends: list[ChoiceEnd] = field(default_factory=list)  # of the choices that are complete
    gaps_s: list[float] = field(default_factory=list)  # between two pieces of one choice

    @property
    def stream_ids(self) -> list[str]:
        """The streams that were seen, each once, in order; known once a choice is complete."""
        uses = (use for end in self.ends for use in end.report.frames)
        return list(dict.fromkeys(use.stream_id for use in uses if use.stream_id is not None))


class AnswerObserver(Protocol):
    """Hears of every question when it has ended. Called in the event loop: takes microseconds."""

    def ended(self, record: AnswerRecord) -> None: ...


class Observed:
    """`Answers` that are measured; to be put around any other."""

    def __init__(
        self, answers: Answers, *, observers: Sequence[AnswerObserver], clock: Clock
    ) -> None:
        self._answers = answers
        self._observers = tuple(observers)
        self._clock = clock

    async def answer(self, question: Question) -> AsyncGenerator[AnswerEvent, None]:
        """As `Answers.answer`."""
        clock = self._clock
        record = AnswerRecord(
            question=question, began_wall_ms=clock.wall_ms(), began_s=clock.monotonic_s()
        )
        last_s: dict[int, float] = {}  # by choice
        try:
            async with aclosing(self._answers.answer(question)) as events:
                async for event in events:
                    _take(event, record, last_s, clock.monotonic_s())
                    yield event
            record.outcome = ANSWERED
        except LiveEdgeError as error:
            record.outcome = error.code
            raise
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException:
            record.outcome = InternalError.code
            raise
        finally:
            record.ended_s = clock.monotonic_s()
            note(stream_ids=record.stream_ids)
            for observer in self._observers:
                observer.ended(record)


def _take(event: AnswerEvent, record: AnswerRecord, last_s: dict[int, float], now_s: float) -> None:
    if isinstance(event, ChoiceEnd):
        record.ends.append(event)
        return
    if event.choice in last_s:
        record.gaps_s.append(now_s - last_s[event.choice])
    last_s[event.choice] = now_s
