"""How much other work may stand between two tokens of the answers in progress. Pure.

While nothing is decoded a slice is as large as the limits allow (background work excepted, so that a
question that arrives waits for little). While answers run:

- A slice is sized by what lately fitted into `SLICE_STEPS` decoding steps, but does at least one
  group or `min_piece` tokens. It is the longest pause an answer gets.
- Two of three tokens come without any slice before them (`REST_STEPS`), so the median time between
  tokens is that of an engine that does nothing else.
- After a slice, decoding gets its share of the time before the next one: a third beside interactive
  requests, four fifths beside batch and background work. What the smallest slice takes beyond its
  size is paid back that way.
- A request that would miss its deadline at that pace ignores the last two rules, and whoever was
  passed over long enough (`turns`) goes at the pace of interactive requests.

The price: while answers run, a question with much to encode takes up to half as long again as
without them, and background work up to five times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from liveedge.engine.decide.limits import Limits
from liveedge.engine.decide.rates import Rates, Ratio
from liveedge.engine.decide.turns import Rank

SLICE_STEPS: Final = 4.0  # decoding steps that a slice may take
REST_STEPS: Final = 2  # steps without a slice after each slice
# Seconds of other work per second of decoding.
WORK_PER_DECODE: Final = {Rank.INTERACTIVE: 2.0, Rank.BATCH: 0.25, Rank.WARM: 0.25}


@dataclass(frozen=True, slots=True)
class Budget:
    """Bounds of one slice: prompt tokens, or pixels of groups (one group at least)."""

    tokens: int
    pixels: int


class Pace:
    """Remembers the last slice and how much was decoded since."""

    def __init__(self, limits: Limits, rates: Rates) -> None:
        self._limits = limits
        self._rates = rates
        self._slice_s = 0.0
        self._rest_s = 0.0
        self._rest_steps = REST_STEPS

    def record(self, *, decode_s: float, slice_s: float) -> None:
        """What a step took; zero for a part that it had not."""
        if slice_s:
            self._slice_s, self._rest_s, self._rest_steps = slice_s, 0.0, 0
        elif decode_s:
            self._rest_s += decode_s
            self._rest_steps += 1

    def budget(
        self, rank: Rank, *, decoding: bool, urgent: bool = False, due: bool = False
    ) -> Budget | None:
        """How large the next slice may be; None: not in this step."""
        limits = self._limits
        tokens, pixels = limits.prefill_chunk, limits.encode_pixels
        if rank is Rank.WARM:
            tokens, pixels = min(tokens, limits.warm_chunk), 1
        if not decoding:
            return Budget(tokens, pixels)
        if not urgent and not self._has_rested(Rank.INTERACTIVE if due else rank):
            return None
        budget_s = SLICE_STEPS * (self._rates.decode.value or 0.0)
        fitting = _fitting(budget_s, self._rates.prefill, limits.min_piece)
        return Budget(
            tokens=min(tokens, max(limits.min_piece, fitting)),
            pixels=min(pixels, _fitting(budget_s, self._rates.encode, 1)),
        )

    def _has_rested(self, rank: Rank) -> bool:
        enough_s = self._slice_s / WORK_PER_DECODE[rank]
        return self._rest_steps >= REST_STEPS and self._rest_s >= enough_s


def _fitting(budget_s: float, rate: Ratio, least: int) -> int:
    """Amount of work that takes so long; the least where that was never measured."""
    return int(budget_s / rate.value) if rate.value else least
