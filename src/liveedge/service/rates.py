"""How often each key may ask: a bucket of tokens per key, filled by the clock.

A key may send `burst` requests at once after a pause, and `per_s` a second for ever. Nobody waits here:
what finds the bucket empty is refused and told when to come back. There are as many buckets as keys.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from liveedge.core.clock import Clock
from liveedge.core.errors import RateLimited
from liveedge.service.caller import Caller
from liveedge.service.question import AnswerEvent, Answers, Question

BURST_S = 2.0  # what may come at once where nothing else is said: the requests of so many seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a key stands after a request."""

    limit: int  # requests at once
    remaining: int  # of them, now
    reset_s: float  # until all of them are there again
    retry_after_s: float | None = None  # of a request that was one too many

    def headers(self) -> dict[str, str]:
        """Whole seconds, rounded up: who waits as long as is said is let in."""
        return {
            "x-ratelimit-limit": str(self.limit),
            "x-ratelimit-remaining": str(self.remaining),
            "x-ratelimit-reset": str(math.ceil(self.reset_s)),
        }


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float


class Rates:
    """The buckets. `per_s` and `burst` are of keys that have none of their own; None: no limit."""

    def __init__(self, *, per_s: float | None, burst: int | None, clock: Clock) -> None:
        self.refused = 0
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}

    def take(self, caller: Caller, *, spare: int = 0) -> Standing | None:
        """Count one request, which leaves `spare` more of the burst. None where the key has no
        limit."""
        own = caller.allowance
        per_s = self._per_s if own.requests_per_second is None else own.requests_per_second
        if per_s is None:
            return None
        burst = own.request_burst
        if burst is None and own.requests_per_second is None:
            burst = self._burst
        if burst is None:
            burst = math.ceil(BURST_S * per_s)
        return self._standing(caller.key_id, per_s, burst, needed=1 + min(spare, burst - 1))

    def _standing(self, key_id: str, per_s: float, burst: int, *, needed: int) -> Standing:
        now_s = self._clock.monotonic_s()
        bucket = self._buckets.setdefault(key_id, _Bucket(burst, now_s))
        filled = bucket.tokens + (now_s - bucket.at_s) * per_s
        bucket.tokens, bucket.at_s = min(filled, burst), now_s
        retry_after_s = None
        if bucket.tokens >= needed:
            bucket.tokens -= 1
        else:
            self.refused += 1
            retry_after_s = (needed - bucket.tokens) / per_s
        return Standing(
            limit=burst,
            remaining=math.floor(bucket.tokens),
            reset_s=(burst - bucket.tokens) / per_s,
            retry_after_s=retry_after_s,
        )


class RatedAnswers:
    """`Answers` to questions that come by no request of their own: each counts as one, and leaves one,
    so that whoever has too many of them can end some."""

    def __init__(self, answers: Answers, rates: Rates) -> None:
        self._answers = answers
        self._rates = rates

    async def answer(self, question: Question) -> AsyncGenerator[AnswerEvent, None]:
        """As `Answers.answer`; raises RateLimited."""
        caller = question.caller
        standing = None if caller is None else self._rates.take(caller, spare=1)
        if caller is not None and standing is not None and standing.retry_after_s is not None:
            raise too_often(standing, caller)
        async with aclosing(self._answers.answer(question)) as events:
            async for event in events:
                yield event


def too_often(standing: Standing, caller: Caller) -> RateLimited:
    """The refusal of one request too many."""
    assert standing.retry_after_s is not None, "it was let in"
    whose = "of this key" if caller.allowance.requests_per_second else "of every key"
    return RateLimited(
        f"this key has sent {standing.limit} requests at once already (requests_per_second and"
        f" request_burst {whose}); wait {standing.retry_after_s:.1f} s",
        retry_after_s=standing.retry_after_s,
    )
