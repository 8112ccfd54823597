"""The choice of the next token. Rows of a batch do not influence each other.

Order: penalties, grammar, temperature, min-p, top-k, top-p. Reported logprobs are the model's own,
before any of these. A temperature below MIN_TEMPERATURE is greedy. Random numbers are drawn on the CPU from one generator per request, so a seed
gives the same answer whatever else runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from liveedge.core.errors import InternalError, LiveEdgeError
from liveedge.engine.decide.plan import Sampled
from liveedge.engine.request import SamplingParams

if TYPE_CHECKING:
    from liveedge.engine.form.grammar import Matcher

log = logging.getLogger("liveedge.engine")

INF = float("inf")
MIN_TEMPERATURE = 1e-4  # below it the largest score has all the probability, ties apart


@dataclass(slots=True, eq=False)
class Chooser:
    """How one request chooses, and what it has chosen so far."""

    params: SamplingParams
    generator: torch.Generator | None = None  # None: greedy
    matcher: Matcher | None = None
    chosen: dict[int, int] = field(default_factory=dict)  # token: times, for the penalties

    @property
    def is_plain(self) -> bool:
        """The largest logit is the answer and nothing else is asked."""
        params = self.params
        return (
            self.generator is None
            and self.matcher is None
            and not self.has_penalties
            and not params.logprobs
        )

    @property
    def has_penalties(self) -> bool:
        return self.params.presence_penalty != 0 or self.params.frequency_penalty != 0


def new_chooser(
    params: SamplingParams, *, matcher: Matcher | None, entropy: Callable[[], int]
) -> Chooser:
    """`entropy` gives the seed where the request has none."""
    generator = None
    if params.temperature >= MIN_TEMPERATURE:
        generator = torch.Generator()
        generator.manual_seed(entropy() if params.seed is None else params.seed % (1 << 63))
    return Chooser(params=params, generator=generator, matcher=matcher)


def sample(
    logits: Tensor, choosers: Sequence[Chooser], best: Sequence[int] | None = None
) -> list[Sampled | LiveEdgeError]:
    """One token per row of [B, vocab] logits, or why that row has none.

    `best` where it is known already: see `best_tokens`.
    """
    if best is None and any(chooser.is_plain for chooser in choosers):
        best = best_tokens(logits)
    chosen: list[Sampled | LiveEdgeError] = []
    for number, chooser in enumerate(choosers):
        if best is None or not chooser.is_plain:
            chosen.append(_try_choose(logits[number].float().cpu(), chooser))
        else:
            chosen.append(_unusable() if best[number] < 0 else Sampled(best[number]))
    return chosen


def best_tokens(logits: Tensor) -> list[int]:
    """The first token with the largest logit of each row; -1 where that is not finite or a logit
    is not a number."""
    best = logits.max(-1)  # what is not a number counts as the largest
    return best.indices.masked_fill(~best.values.isfinite(), -1).tolist()


def _try_choose(row: Tensor, chooser: Chooser) -> Sampled | LiveEdgeError:
    try:
        return choose(row, chooser)
    except LiveEdgeError as error:
        return error
    except Exception:  # one row's trouble must not end the others
        log.exception("the choice of a token failed")
        return InternalError("the choice of the next token failed")


def _unusable() -> InternalError:
    return InternalError("the model gave no usable scores for the next token")


def choose(row: Tensor, chooser: Chooser) -> Sampled:
    """The next token of one request from its logits [vocab], float32 on the CPU.

    They may be changed: nobody reads them afterwards.
    """
    params = chooser.params
    scores = _penalised(row, chooser)
    if chooser.matcher is not None:
        scores = _masked(scores, chooser.matcher, in_place=scores is not row or not params.logprobs)
    if not scores.max().isfinite():
        raise _unusable()
    if chooser.generator is None:
        token = int(scores.argmax())
    else:
        token = _draw(scores, params, chooser.generator)
    complete = chooser.matcher is not None and chooser.matcher.accept(token)
    if chooser.has_penalties:
        chooser.chosen[token] = chooser.chosen.get(token, 0) + 1
    if not params.logprobs:
        return Sampled(token, complete=complete)
    logprobs = row.log_softmax(-1)
    return Sampled(
        token,
        logprob=float(logprobs[token]),
        top=_top(logprobs, params.top_logprobs),
        complete=complete,
    )


def _masked(scores: Tensor, matcher: Matcher, *, in_place: bool) -> Tensor:
    """Without the tokens that the grammar forbids."""
    forbidden = torch.from_numpy(matcher.forbidden())
    return scores.masked_fill_(forbidden, -INF) if in_place else scores.masked_fill(forbidden, -INF)


def _penalised(row: Tensor, chooser: Chooser) -> Tensor:
    if not chooser.has_penalties or not chooser.chosen:
        return row
    params = chooser.params
    tokens = torch.tensor(list(chooser.chosen))
    times = torch.tensor(list(chooser.chosen.values()), dtype=row.dtype)
    penalty = params.presence_penalty + params.frequency_penalty * times
    return row.index_add(0, tokens, -penalty)


def _draw(scores: Tensor, params: SamplingParams, generator: torch.Generator) -> int:
    probs = ((scores - scores.max()) / params.temperature).softmax(-1)
    if params.min_p > 0:
        probs = probs.masked_fill(probs < params.min_p * probs.max(), 0.0)
    if params.top_k > 0 or params.top_p < 1:
        return _draw_from_best(probs, params, generator)
    return int(torch.multinomial(probs, 1, generator=generator))


def _draw_from_best(probs: Tensor, params: SamplingParams, generator: torch.Generator) -> int:
    """Draw among the most probable tokens: at most top_k, together just reaching top_p."""
    n = min(params.top_k or len(probs), len(probs))
    best, tokens = torch.topk(probs, n) if n < len(probs) else torch.sort(probs, descending=True)
    if params.top_p < 1:
        before = best.cumsum(0) - best  # of all tokens more probable than this one
        best[1:].masked_fill_((before >= params.top_p * best.sum())[1:], 0.0)  # one always stays
    return int(tokens[torch.multinomial(best, 1, generator=generator)])


def _top(logprobs: Tensor, n: int) -> tuple[tuple[int, float], ...]:
    if n == 0:
        return ()
    values, tokens = torch.topk(logprobs, min(n, len(logprobs)))
    return tuple(zip(tokens.tolist(), values.tolist(), strict=True))
