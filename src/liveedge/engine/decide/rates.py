"""How fast this device was lately: seconds per token, per pixel, per load and per decoding step.

Pure; fed with what steps took. The newest observations weigh most, large ones more than small ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field

KEPT = 0.9  # weight of all earlier observations when one more comes


@dataclass(slots=True)
class Ratio:
    """A running ratio of two sums that fade.

    The first observation is left out: it pays for everything that starts at its first use.
    """

    kept: float = KEPT
    _above: float = 0.0
    _below: float = 0.0
    _started: bool = False

    def add(self, above: float, below: float) -> None:
        if self._started and below > 0:
            self._above = self.kept * self._above + above
            self._below = self.kept * self._below + below
        self._started = self._started or below > 0

    @property
    def value(self) -> float | None:
        """None until something was observed."""
        return self._above / self._below if self._below else None


@dataclass(slots=True)
class Rates:
    """What was measured since the start."""

    prefill: Ratio = field(default_factory=Ratio)  # seconds per prompt token
    encode: Ratio = field(default_factory=Ratio)  # seconds per pixel of a group
    decode: Ratio = field(default_factory=Ratio)  # seconds per step
    load: Ratio = field(default_factory=Ratio)  # seconds per group, from order to arrival
    answer: Ratio = field(default_factory=Ratio)  # tokens per finished answer

    def work_s(self, *, n_tokens: int, n_pixels: int) -> float | None:
        """Time to prefill and encode so much; None where that was never measured."""
        total_s = 0.0
        for ratio, amount in ((self.prefill, n_tokens), (self.encode, n_pixels)):
            if amount:
                if ratio.value is None:
                    return None
                total_s += ratio.value * amount
        return total_s
