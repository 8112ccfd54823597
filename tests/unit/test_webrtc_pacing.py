"""When a picture is late, and when a key frame is asked for (cases 27, 31)."""

from __future__ import annotations

import itertools

import pytest

from liveedge.media.webrtc.key_requests import KeyRequests
from liveedge.media.webrtc.lateness import SenderClock

pytestmark = pytest.mark.unit


def _run(clock: SenderClock, stamps_s: list[float], arrivals_s: list[float]) -> list[bool]:
    late = []
    for stamp_s, arrived_s in zip(stamps_s, arrivals_s, strict=True):
        time_s = clock.time_s(round(stamp_s * 90_000) & 0xFFFFFFFF)
        late.append(clock.is_late(time_s, arrived_s))
    return late


def test_timestamps_wrap_after_thirteen_hours_and_time_goes_on() -> None:
    clock = SenderClock()
    start = 2**32 - 9000
    times = [clock.time_s((start + n * 3000) & 0xFFFFFFFF) for n in range(7)]
    assert times == pytest.approx([n / 30 for n in range(7)])
    assert clock.time_s((start - 3000) & 0xFFFFFFFF) == pytest.approx(-1 / 30)


def test_a_steady_sender_is_never_late() -> None:
    stamps = [n / 30 for n in range(300)]
    assert not any(_run(SenderClock(), stamps, [100 + s + 0.05 for s in stamps]))


def test_what_piled_up_during_a_pause_is_late_until_it_has_drained() -> None:
    before = [n / 30 for n in range(60)]
    # Nothing arrives for 3 s, then twice as fast as it was made.
    piled = [2 + n / 30 for n in range(150)]
    arrivals = [2 + 3 + n / 60 for n in range(150)]
    after = [7.5 + n / 30 for n in range(30)]
    late = _run(SenderClock(), before + piled + after, before + arrivals + after)
    assert not any(late[:60])
    assert late[60]
    assert sum(late[60:210]) > 90
    assert not any(late[210:])


def test_a_longer_way_that_stays_is_no_backlog_for_ever() -> None:
    stamps = [n / 30 for n in range(600)]
    arrivals = [s + (1.5 if s > 3 else 0) for s in stamps]
    late = _run(SenderClock(), stamps, arrivals)
    assert any(late)
    assert not any(late[-300:])


def test_a_clock_that_is_set_and_single_outliers_do_no_harm() -> None:
    stamps = [n / 30 for n in range(200)]
    claimed = [s + (37_600 if n == 50 else -9_800 if n == 90 else 0) for n, s in enumerate(stamps)]
    claimed = [s - (5_000 if n > 150 else 0) + 20_000 for n, s in enumerate(claimed)]
    assert not any(_run(SenderClock(), claimed, stamps))


def test_a_slow_clock_of_the_sender_is_followed() -> None:
    stamps = list(range(20_000))  # one picture a second, for hours
    assert not any(_run(SenderClock(), [s * 0.9995 for s in stamps], [float(s) for s in stamps]))


def test_a_key_frame_is_asked_for_soon_if_none_comes_by_itself() -> None:
    keys = KeyRequests(every_s=2)
    assert not keys.is_due(9.0)
    keys.packet_came(10.0)
    assert not keys.is_due(10.05)
    assert keys.is_due(10.11)
    assert not keys.is_due(10.2)
    assert keys.is_due(10.7)
    assert keys.n_sent == 2


def test_a_publisher_that_begins_with_a_key_frame_is_asked_every_two_seconds() -> None:
    keys = KeyRequests(every_s=2)
    keys.packet_came(10.0)
    keys.key_came(10.01)
    asked = []
    for n in range(1000):
        now_s = 10 + n / 100
        if keys.is_due(now_s):
            asked.append(now_s)
            keys.key_came(now_s + 0.05)
    assert len(asked) == 4
    assert asked[0] == pytest.approx(12.01, abs=0.02)


def test_requests_after_losses_are_limited_in_rate_and_slow_down_without_an_answer() -> None:
    keys = KeyRequests(every_s=2)
    keys.packet_came(0.0)
    keys.key_came(0.0)
    asked = []
    for n in range(3000):
        keys.want()
        if keys.is_due(n / 100):
            asked.append(n / 100)
    gaps = [b - a for a, b in itertools.pairwise(asked)]
    assert min(gaps) >= 0.5
    assert gaps[-1] >= 2.0
    keys.key_came(30.0)
    assert not keys.is_due(31.0)
