"""Axes: where a value lies, which values are written, and how."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)  # of round numbers
TINY = 1e-12  # a span below it is none
MOST_RATIO = 1e9  # of a logarithmic axis; what is lower lies at its edge
LOG_FROM = 25.0  # highest to lowest: from here on a linear axis would hide the low end


@dataclass(frozen=True, slots=True)
class Tick:
    """A value with its text; without text, a line alone."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Scale:
    """From a value to its place, 0 to 1. What lies outside is drawn at the edge."""

    low: float
    high: float
    log: bool = False

    def share(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(max(value, self.low))
        if high <= low:
            return 0.5
        return min(max((at - low) / (high - low), 0.0), 1.0)


def linear(values: Iterable[float], *, zero: bool = True, headroom: float = 0.06) -> Scale:
    """Holds all values; from 0 where `zero`. Without a value: 0 to 1."""
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= TINY:
        high = low + (abs(low) if abs(low) > TINY else 1.0)
    room = (high - low) * headroom
    return Scale(low if zero and low == 0 else low - room, high + room)


def logarithmic(values: Iterable[float], *, headroom: float = 0.04) -> Scale:
    """Holds all values above 0, over nine decades at most. Without one: 1 to 10."""
    known = [value for value in values if math.isfinite(value) and value > 0]
    low, high = min(known, default=1.0), max(known, default=10.0)
    high = max(high, TINY)
    low = max(low, high / MOST_RATIO)
    if high < low * 2:
        low, high = low / 1.5, high * 1.5
    room = math.exp((math.log(high) - math.log(low)) * headroom)
    return Scale(low / room, high * room, log=True)


def fitting(values: Sequence[float]) -> Scale:
    """Logarithmic where a linear axis would press the low values together."""
    known = [value for value in values if math.isfinite(value) and value > 0]
    if known and max(known) / min(known) >= LOG_FROM:
        return logarithmic(known)
    return linear(values)


def ticks(scale: Scale, written: Callable[[float], str], *, wanted: int = 5) -> tuple[Tick, ...]:
    """About `wanted` round values of a scale."""
    values = _round_logs(scale, wanted) if scale.log else _round_linear(scale, wanted)
    return tuple(Tick(value, written(value)) for value in values)


def _round_linear(scale: Scale, wanted: int) -> list[float]:
    span = scale.high - scale.low
    rough = span / max(wanted, 1)
    decade = 10.0 ** math.floor(math.log10(rough))
    step = next(one * decade for one in STEPS if one * decade >= rough * 0.999)
    first, last = math.ceil(scale.low / step - 1e-9), math.floor(scale.high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _round_logs(scale: Scale, wanted: int) -> list[float]:
    decades = math.log10(scale.high / scale.low)
    for digits in ((1.0, 2.0, 5.0), (1.0, 3.0), (1.0,)):
        found = _digits(scale, digits, every=1)
        if len(found) <= wanted + 2:
            break
    else:
        found = _digits(scale, (1.0,), every=math.ceil(decades / wanted))
    return found if len(found) >= 2 else _round_linear(scale, wanted)


def _digits(scale: Scale, digits: Sequence[float], *, every: int) -> list[float]:
    first, last = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
    values = [
        digit * 10.0**power
        for power in range(first, last + 1)
        if power % every == 0
        for digit in digits
    ]
    return [value for value in values if scale.low * 0.999 <= value <= scale.high * 1.001]


TIME_STEPS_S = (
    1,
    2,
    5,
    10,
    20,
    30,
    60,
    120,
    300,
    600,
    1200,
    1800,
    3600,
    7200,
    10800,
    21600,
    43200,
    86400,
)


def time_ticks(scale: Scale, *, wanted: int = 8) -> tuple[Tick, ...]:
    """Of seconds, at steps that clocks have: 30 s, 2 min, 1 h."""
    span = scale.high - scale.low
    if span < wanted:
        return ticks(scale, clock_text, wanted=wanted)
    day = TIME_STEPS_S[-1]
    days = math.ceil(span / day / wanted)
    step = next((one for one in TIME_STEPS_S if span / one <= wanted), day * days)
    first, last = math.ceil(scale.low / step), math.floor(scale.high / step)
    return tuple(Tick(n * step, clock_text(n * step)) for n in range(first, last + 1))


def clock_text(seconds: float) -> str:
    """12 s, 1:30, 2:05:00."""
    if seconds < 60:
        return f"{plain(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d}"
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def plain(value: float) -> str:
    """Three digits and no more than needed: 0.25, 1.5, 12, 1,200."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(digits, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def duration(ms: float) -> str:
    """Milliseconds with the unit that reads best: 0.4 ms, 250 ms, 1.5 s, 20 s."""
    return f"{plain(ms / 1000)} s" if abs(ms) >= 1000 else f"{plain(ms)} ms"


def duration_between(ms: float, low_ms: float, high_ms: float) -> str:
    """A value with its interval, all in the unit of the value: 250 [230, 1,020] ms."""
    unit, per = ("s", 1000.0) if abs(ms) >= 1000 else ("ms", 1.0)
    return f"{plain(ms / per)} [{plain(low_ms / per)}, {plain(high_ms / per)}] {unit}"


def percent_between(share: float, low: float, high: float) -> str:
    """The same of shares: 97.5 [95, 98.8] %."""
    texts = [percent(one).removesuffix(" %") for one in (share, low, high)]
    return f"{texts[0]} [{texts[1]}, {texts[2]}] %"


def percent(share: float) -> str:
    """A share of 1. Never 0 or 100 % unless it is exactly that."""
    if 0 < share < 0.001:
        return "<0.1 %"
    if 0.999 < share < 1:
        return ">99.9 %"
    return f"{share * 100:.1f}".removesuffix(".0") + " %"
