"""Who answers a question: the model that was asked, or where it is not available the next of its
fallbacks.

Never tries another one for a question that is wrong, late or too much, or once an answer has begun.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

from liveedge.core.clock import Clock
from liveedge.core.errors import LiveEdgeError, ModelUnavailable, UpstreamError
from liveedge.service.parts import Reference
from liveedge.service.providers.catalog import Catalog
from liveedge.service.question import AnsweredBy, AnswerEvent, ChoiceEnd, Fallback, Question

log = logging.getLogger("liveedge.providers")


class Router:
    """Answers questions, whoever has the model."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        fallbacks: Mapping[str, Sequence[str]],
        timeout_ms: int,
        clock: Clock,
    ) -> None:
        self.fallbacks = {model: tuple(others) for model, others in fallbacks.items()}
        self.n_fallbacks: Counter[tuple[str, str]] = Counter()  # (asked, answered)
        self._catalog = catalog
        self._timeout_ms = timeout_ms
        self._clock = clock

    async def answer(self, question: Question) -> AsyncGenerator[AnswerEvent, None]:
        """As `Answers.answer`."""
        now_s = self._clock.monotonic_s()
        question = replace(question, admitted_s=question.admitted_s or now_s)
        models = self._models(question)
        failed: LiveEdgeError | None = None
        for model in models:
            answers = self._catalog.answers(model)
            async with aclosing(answers.answer(replace(question, model=model))) as events:
                try:
                    first = await anext(events)
                except LiveEdgeError as error:
                    failed = failed or error
                    if model == models[-1] or not self._may_fall_back(error, question):
                        raise (failed if _is_unavailable(error) else error) from None
                    continue
                fallback = self._noted(question.model, model, failed)
                if fallback is not None:
                    yield AnsweredBy(model=model)
                yield _marked(first, fallback)
                async for event in events:
                    yield _marked(event, fallback)
                return

    async def check(self, question: Question) -> Sequence[Reference]:
        """As of the model that is asked, or where it is not available the next of its fallbacks."""
        failed: LiveEdgeError | None = None
        for model in self._models(question):
            try:
                return await self._catalog.answers(model).check(replace(question, model=model))
            except LiveEdgeError as error:
                if not _is_unavailable(error):
                    raise
                failed = failed or error
        assert failed is not None, "there is one model at least"
        raise failed

    def _models(self, question: Question) -> list[str]:
        """In the order in which they are asked."""
        return list(dict.fromkeys((question.model, *self.fallbacks.get(question.model, ()))))

    def _may_fall_back(self, error: LiveEdgeError, question: Question) -> bool:
        timeout_ms = question.timeout_ms or self._timeout_ms
        deadline_s = (question.admitted_s or 0.0) + timeout_ms / 1000
        return _is_unavailable(error) and self._clock.monotonic_s() < deadline_s

    def _noted(self, asked: str, model: str, failed: LiveEdgeError | None) -> Fallback | None:
        if failed is None:
            return None
        self.n_fallbacks[asked, model] += 1
        log.info("%s is not available (%s): %s answers", asked, failed.code, model)
        return Fallback(requested=asked, because=failed.code)


def _is_unavailable(error: LiveEdgeError) -> bool:
    """Loading, failed, away or left alone: not a refusal, and nothing that had begun."""
    return isinstance(error, ModelUnavailable) or (
        isinstance(error, UpstreamError) and error.is_unavailable
    )


def _marked(event: AnswerEvent, fallback: Fallback | None) -> AnswerEvent:
    if fallback is None or not isinstance(event, ChoiceEnd):
        return event
    return replace(event, report=replace(event.report, fallback=fallback))
