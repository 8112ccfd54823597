"""Answers within what one key, and one stream, may take: whoever answers is behind this.

A key that asks hard fills its own share of the places and no more, so that others find one. A place is
an answer: a question with `n` = 3 takes three. Places are taken before anything is looked up, and of a
stream by its owner's questions alone, so that a refusal tells nothing of anybody else's streams.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypeVar

from liveedge.core.errors import QueueFull, RequestInvalid
from liveedge.service.caller import USUAL
from liveedge.service.question import AnswerEvent, Answers, MediaContent, Question

Limit: TypeAlias = Literal[
    "max_requests_per_key", "max_requests_per_stream", "max_parts", "uploads_of_key"
]
LIMITS: tuple[Limit, ...] = (
    "max_requests_per_key",
    "max_requests_per_stream",
    "max_parts",
    "uploads_of_key",
)
_STREAM = "ovs://streams/"
MAX_ID_CHARS = 64

Place = TypeVar("Place")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLimits:
    """What every question may take. None: no limit but those of the server and the model."""

    per_key: int | None = None  # answers in progress
    share: int | None = None  # the same, where nothing is said and there are several keys
    share_bytes: int | None = None  # of uploads in all questions of a key, where there are several
    per_stream: int | None = None
    max_output_tokens: int | None = None
    max_parts: int | None = None


class LimitedAnswers:
    """Answers questions by `answers`."""

    def __init__(
        self,
        answers: Answers,
        limits: AnswerLimits,
        *,
        is_shared: Callable[[], bool] = lambda: False,  # keys may come while the server runs
    ) -> None:
        self.refused: Counter[Limit] = Counter()
        self._answers = answers
        self._limits = limits
        self._is_shared = is_shared
        self._of_keys: Counter[str] = Counter()
        self._bytes_of_keys: Counter[str] = Counter()
        self._of_streams: Counter[tuple[str, str]] = Counter()  # by tenant and id as it was named

    @property
    def n_places(self) -> int:
        """Places in use."""
        return self._of_keys.total()

    async def answer(self, question: Question) -> AsyncGenerator[AnswerEvent, None]:
        """As of `answers`; raises QueueFull where there is no place."""
        self._check_parts(question)
        with self._places_of_key(question), self._places_of_streams(question):
            async with aclosing(self._answers.answer(self._shortened(question))) as events:
                async for event in events:
                    yield event

    def check(self, question: Question) -> None:
        """Raise what `answer` would, whatever else is in progress: for questions of later."""
        self._check_parts(question)

    def _check_parts(self, question: Question) -> None:
        limit = self._limits.max_parts
        n_parts = sum(len(turn.content) for turn in question.turns)
        if limit is not None and n_parts > limit:
            self.refused["max_parts"] += 1
            raise RequestInvalid(
                f"the messages have {n_parts} parts, the limit is {limit} (max_parts); send fewer",
                loc=("body", "messages"),
            )

    def _shortened(self, question: Question) -> Question:
        """A longer answer ends with the reason `length`, as where the model's context ends."""
        most, sampling = self._limits.max_output_tokens, question.sampling
        if most is None or sampling.max_tokens <= most:
            return question
        return replace(question, sampling=replace(sampling, max_tokens=most))

    def _per_key(self) -> int | None:
        if self._limits.per_key is None and self._is_shared():
            return self._limits.share
        return self._limits.per_key

    @contextmanager
    def _places_of_key(self, question: Question) -> Iterator[None]:
        caller = question.caller
        own = (USUAL if caller is None else caller.allowance).max_requests
        limit = self._per_key() if own is None else own
        key_id = question.tenant if caller is None else caller.key_id
        whose = "max_requests_per_key" if own is None else "max_requests of this key"
        n_places = _n_places(question, limit)
        if limit is not None and self._of_keys[key_id] + n_places > limit:
            self.refused["max_requests_per_key"] += 1
            raise QueueFull(
                f"{self._of_keys[key_id]} of {limit} answers of this key are in progress already"
                f" ({whose}); ask again when one of them has ended"
            )
        n_bytes = self._checked_bytes(question, key_id)
        with (
            _counted(self._of_keys, [key_id], n_places),
            _counted(self._bytes_of_keys, [key_id], n_bytes),
        ):
            yield

    def _checked_bytes(self, question: Question, key_id: str) -> int:
        """One question alone is never too much: the server has a bound of its own."""
        n_bytes = sum(len(part.url) for part in media_of(question))
        limit, used = self._limits.share_bytes, self._bytes_of_keys[key_id]
        if limit is not None and self._is_shared() and used and used + n_bytes > limit:
            self.refused["uploads_of_key"] += 1
            raise QueueFull(
                f"questions of this key hold {used} bytes of pictures and clips already, its share is"
                f" {limit} (half of max_uploads_mb); ask again when one of them has been answered"
            )
        return n_bytes

    @contextmanager
    def _places_of_streams(self, question: Question) -> Iterator[None]:
        limit = self._limits.per_stream
        places = [] if limit is None else [(question.tenant, one) for one in streams_of(question)]
        n_places = _n_places(question, limit)
        for place in places:
            if limit is not None and self._of_streams[place] + n_places > limit:
                self.refused["max_requests_per_stream"] += 1
                raise QueueFull(
                    f"{self._of_streams[place]} of {limit} answers about stream {place[1]} are in"
                    " progress already (max_requests_per_stream); ask again when one has ended"
                )
        with _counted(self._of_streams, places, n_places):
            yield


def streams_of(question: Question) -> tuple[str, ...]:
    """The streams that a question names, each once; whether there are such is found out later."""
    urls = (part.url for part in media_of(question))
    named = (url[len(_STREAM) :].partition("?")[0] for url in urls if url.startswith(_STREAM))
    return tuple(dict.fromkeys(one[:MAX_ID_CHARS] for one in named))


def media_of(question: Question) -> Iterator[MediaContent]:
    """Its pictures and clips, uploads and references."""
    parts = (part for turn in question.turns for part in turn.content)
    return (part for part in parts if isinstance(part, MediaContent))


def _n_places(question: Question, limit: int | None) -> int:
    """At most all there are: a question that no limit could ever let in would be retried for ever."""
    return question.n if limit is None else min(question.n, limit)


@contextmanager
def _counted(counter: Counter[Place], places: Sequence[Place], n: int) -> Iterator[None]:
    for place in places:
        counter[place] += n
    try:
        yield
    finally:
        for place in places:
            counter[place] -= n
            if not counter[place]:
                del counter[place]
