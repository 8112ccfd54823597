"""When requests are due: known before the first is sent, so that no answer can move them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from liveedge.bench.scenario import Load


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of one sweep: `rate_per_s` of an open loop or `concurrency` of a closed one."""

    repeat: int
    step: int
    rate_per_s: float | None = None
    concurrency: int | None = None
    warmup_s: float
    duration_s: float

    @property
    def seconds(self) -> float:
        return self.warmup_s + self.duration_s

    @property
    def n_expected(self) -> int | None:
        """Requests of an open loop, warm-up included, on average; None: as many as are answered."""
        return None if self.rate_per_s is None else math.ceil(self.rate_per_s * self.seconds)


def steps(load: Load) -> Iterator[Step]:
    """Every step in its order: the whole sweep, then again."""
    closed = load.kind == "closed"
    for repeat in range(load.repeats):
        for step, value in enumerate(load.concurrency if closed else load.rates_per_s):
            yield Step(
                repeat=repeat,
                step=step,
                rate_per_s=None if closed else float(value),
                concurrency=int(value) if closed else None,
                warmup_s=load.warmup_s,
                duration_s=load.duration_s,
            )


def arrivals(load: Load, step: Step, random: Random) -> Iterator[float]:
    """Seconds from the beginning of the step at which a request is due; ascending, below its end.

    Poisson: independent exponential gaps, so that requests come in bunches as they do in life.
    `random` is used by nothing else, so that a seed gives the same moments whatever the server does.
    """
    if step.rate_per_s is None:
        raise ValueError("a closed loop has no arrivals: its answers say when it asks again")
    if load.kind == "constant":
        return _constant(step.rate_per_s, step.seconds)
    return _poisson(step.rate_per_s, step.seconds, random)


def _constant(rate_per_s: float, seconds: float) -> Iterator[float]:
    n = 0
    while (due_s := n / rate_per_s) < seconds:  # no sum: gaps do not add their rounding
        yield due_s
        n += 1


def _poisson(rate_per_s: float, seconds: float, random: Random) -> Iterator[float]:
    due_s = random.expovariate(rate_per_s)
    while due_s < seconds:
        yield due_s
        due_s += random.expovariate(rate_per_s)
