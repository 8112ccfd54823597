"""How far the server's wall clock is from ours, and how well that is known.

Each exchange bounds the offset (server minus here) from both sides: the server read its clock after the
request left and before the answer came. Bounds hold together, so several exchanges narrow them; the
middle is the estimate and half the width its uncertainty. It is a bound, not a standard deviation.
"""

from __future__ import annotations

import email.utils
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import httpx

from liveedge.bench.answers import decoded, number
from liveedge.bench.documents import Told, told
from liveedge.core.clock import Clock

N_EXCHANGES = 12
BETWEEN_S = (
    0.11  # more than a second in all: so the `Date` header, in whole seconds, is seen to step
)
OUR_RESOLUTION_MS = 1.0  # Clock.wall_ms cuts fractions off
# Whole seconds, and some servers write the header anew once a second only.
DATE_RESOLUTION_MS = 2000.0
FIELD_RESOLUTION_MS = 1.0
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request for the time, in wall-clock ms. The server's clock was in
    [server_ms, server_ms + resolution_ms) when it answered."""

    sent_ms: float
    received_ms: float
    server_ms: float
    resolution_ms: float

    @property
    def bounds(self) -> tuple[float, float]:
        """Of the offset."""
        return (
            self.server_ms - self.received_ms - OUR_RESOLUTION_MS,
            self.server_ms + self.resolution_ms - self.sent_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOffset:
    """The server's wall clock minus ours."""

    offset_ms: float
    uncertainty_ms: float  # the offset is within this of it, both ways
    rtt_ms: float  # shortest round trip of the exchanges
    method: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> ClockOffset:
        """From its JSON, in which what is not known is null."""
        return cls(
            offset_ms=document.get("offset_ms") or 0.0,
            uncertainty_ms=_known(document.get("uncertainty_ms"), float("inf")),
            rtt_ms=_known(document.get("rtt_ms"), float("nan")),
            method=str(document.get("method", "unknown")),
        )


UNKNOWN = ClockOffset(
    offset_ms=0.0, uncertainty_ms=float("inf"), rtt_ms=float("nan"), method="unknown"
)


def estimated(exchanges: Sequence[Exchange], *, is_same_machine: bool = False) -> ClockOffset:
    """The offset that all exchanges allow.

    On one machine it is 0 by construction, as long as 0 is among what they allow: a server that
    anchored its clock at its start keeps what the machine's clock was corrected by since. Exchanges
    that contradict each other (a clock that was set, a cached answer) leave the one of the shortest
    round trip.
    """
    if not exchanges:
        if is_same_machine:
            return ClockOffset(
                offset_ms=0.0, uncertainty_ms=0.0, rtt_ms=float("nan"), method="same machine"
            )
        return UNKNOWN
    best = min(exchanges, key=lambda one: one.received_ms - one.sent_ms)
    rtt_ms = best.received_ms - best.sent_ms
    low = max(one.bounds[0] for one in exchanges)
    high = min(one.bounds[1] for one in exchanges)
    kind = "Date header" if best.resolution_ms == DATE_RESOLUTION_MS else "now_ms"
    method = f"{kind}, bounds of {len(exchanges)} exchanges"
    if low > high:
        low, high = best.bounds
        method = f"{kind}, shortest of {len(exchanges)} exchanges that contradict each other"
    if is_same_machine and low <= 0 <= high:
        return ClockOffset(offset_ms=0.0, uncertainty_ms=0.0, rtt_ms=rtt_ms, method="same machine")
    return ClockOffset(
        offset_ms=(low + high) / 2, uncertainty_ms=(high - low) / 2, rtt_ms=rtt_ms, method=method
    )


def combined(before: ClockOffset, after: ClockOffset) -> ClockOffset:
    """Of a run: both looks and the drift between them."""
    low = min(before.offset_ms - before.uncertainty_ms, after.offset_ms - after.uncertainty_ms)
    high = max(before.offset_ms + before.uncertainty_ms, after.offset_ms + after.uncertainty_ms)
    if not high - low < float("inf"):
        return before if before.uncertainty_ms < after.uncertainty_ms else after
    method = before.method if before.method == after.method else f"{before.method}; {after.method}"
    return ClockOffset(
        offset_ms=(low + high) / 2,
        uncertainty_ms=(high - low) / 2,
        rtt_ms=min(before.rtt_ms, after.rtt_ms),
        method=method,
    )


async def measure_clock(
    http: httpx.AsyncClient, base_url: str, clock: Clock, *, n: int = N_EXCHANGES
) -> ClockOffset:
    """Ask for the time `n` times, about a second together. Never raises: what is not known is told.

    Ours tells it at `/version` in milliseconds, any other server in the `Date` header of any answer.
    """
    url = f"{base_url.rstrip('/')}/version"
    exchanges = []
    for _ in range(n):
        exchange = await _exchange(http, url, clock)
        if exchange is not None:
            exchanges.append(exchange)
        await clock.sleep(BETWEEN_S)
    finest = min((one.resolution_ms for one in exchanges), default=0.0)
    return estimated(
        [one for one in exchanges if one.resolution_ms == finest],
        is_same_machine=httpx.URL(base_url).host in LOCAL,
    )


async def _exchange(http: httpx.AsyncClient, url: str, clock: Clock) -> Exchange | None:
    sent_ms = clock.wall_ms()
    try:
        answer = await told(http, url)
    except httpx.HTTPError:
        return None
    received_ms = clock.wall_ms()
    read = _now_ms(answer) or _date_ms(answer.headers)
    if read is None:
        return None
    server_ms, resolution_ms = read
    return Exchange(
        sent_ms=sent_ms,
        received_ms=received_ms,
        server_ms=server_ms,
        resolution_ms=resolution_ms,
    )


def _known(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def _now_ms(answer: Told) -> tuple[float, float] | None:
    document = decoded(answer.text)
    now_ms = number(document.get("now_ms")) if isinstance(document, dict) else None
    return None if now_ms is None else (float(now_ms), FIELD_RESOLUTION_MS)


def _date_ms(headers: Mapping[str, str]) -> tuple[float, float] | None:
    try:
        at_s = email.utils.parsedate_to_datetime(headers.get("date", "")).timestamp()
    except (ValueError, OverflowError, OSError):  # no date, or none of this calendar
        return None
    return at_s * 1000, DATE_RESOLUTION_MS
