"""The bounded log of a watch: ids only rise, and what is gone is told."""

import pytest

from liveedge.service.watch_backoff import back_off_s
from liveedge.service.watch_log import WatchLog


def log(n, *, max_events=4, max_bytes=1000, size=10):
    made = WatchLog(max_events=max_events, max_bytes=max_bytes)
    for _ in range(n):
        made.append("result", b"x" * size)
    return made


def ids(resumed):
    return [event.id for event in resumed.events]


def test_ids_rise_by_one_and_are_never_used_again():
    assert ids(log(3).after(0)) == [1, 2, 3]
    assert ids(log(9).after(0)) == [6, 7, 8, 9]


def test_a_reader_goes_on_behind_the_id_it_has():
    assert ids(log(4).after(2)) == [3, 4]
    assert ids(log(4).after(4)) == []
    assert ids(log(4).after(1, at_most=2)) == [2, 3]


def test_a_reader_whose_next_event_is_gone_is_told_how_many():
    resumed = log(9).after(2)
    assert resumed.missed == 3  # 3, 4 and 5
    assert ids(resumed) == [6, 7, 8, 9]
    assert log(9).after(5).missed == 0


def test_bytes_are_bounded_too_and_drops_are_counted():
    full = log(5, max_bytes=25)
    assert (len(full), full.n_bytes, full.dropped) == (2, 20, 3)


def test_the_newest_event_is_kept_whatever_its_size():
    large = log(2, max_bytes=25, size=100)
    assert ids(large.after(0)) == [2]


def test_an_empty_log_has_nothing_and_misses_nothing():
    assert log(0).after(0).missed == 0
    assert (log(0).first_id, log(0).last_id) == (1, 0)


def back_off(n, *, every_s=1.0, retry_after_s=None, chance=0.0):
    return back_off_s(n, every_s=every_s, retry_after_s=retry_after_s, chance=chance)


def test_the_silence_after_failures_grows_to_a_bound():
    assert [back_off(n) for n in (1, 2, 3, 4)] == [1, 2, 4, 8]
    assert back_off(1000) == 60


def test_what_the_error_asks_for_is_kept_even_above_the_bound():
    assert back_off(1, retry_after_s=7) == 7
    assert back_off(1, retry_after_s=300) == 300


def test_a_watch_never_comes_back_before_its_own_time():
    assert back_off(1, every_s=300) == 300


def test_chance_only_makes_it_longer():
    assert back_off(1, retry_after_s=4, chance=1.0) == pytest.approx(5)
