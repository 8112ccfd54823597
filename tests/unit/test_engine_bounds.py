"""Case 18: what the scheduler keeps does not grow with what has passed through it."""

from __future__ import annotations

import sys
from functools import _lru_cache_wrapper
from itertools import chain

import pytest

from tests.reachable import held_bytes
from tests.scheduling import LIMITS, SIZES, Bench, prepare

N_PICTURES = 1000
MAX_GROWTH = 20  # bytes per picture: less than any object takes


def pass_through(bench: Bench, names: range) -> None:
    """Distinct pictures of varied sizes: answered, given up, failed, late, and in windows."""
    for n in names:
        letter = sorted(SIZES)[n % len(SIZES)]
        name = f"request {n}"
        pieces: list[int | str] = [10 + n % 7, f"{letter}{n}", 10]
        if n % 5 == 4:
            bench.warm(f"window {n % 3 % 2}", prepare(name, pieces))
        else:
            late_s = bench.now_s + 0.02 if n % 7 == 3 else None
            bench.submit(prepare(name, pieces, max_tokens=2, deadline_s=late_s))
        bench.step()
        if n % 11 == 5:
            bench.abort(name)
        bench.load_all()
        bench.step(failing={name} if n % 13 == 6 else set())
    bench.finish()
    bench.forget()


def kept(bench: Bench) -> int:
    """Bytes that the scheduler and the modules of its decisions hold on to."""
    modules = [m for name, m in sys.modules.items() if name.startswith("liveedge.engine.decide.")]
    values = chain.from_iterable(vars(module).values() for module in modules)
    containers = (dict, list, set, _lru_cache_wrapper)
    return held_bytes(bench.scheduler, *(one for one in values if isinstance(one, containers)))


def test_thousands_of_distinct_pictures_leave_nothing_behind():
    bench = Bench()
    pass_through(bench, range(400))  # fills every cache
    before = kept(bench)
    pass_through(bench, range(400, 400 + N_PICTURES))
    assert kept(bench) - before < MAX_GROWTH * N_PICTURES
    gauges = bench.scheduler.stats(row_bytes=1)
    assert gauges.finished > 400
    assert gauges.failed > 30
    assert gauges.cancelled > 30
    assert gauges.warm_updates > 50
    assert gauges.encoder_cache_bytes <= gauges.encoder_cache_capacity_bytes
    assert LIMITS.max_loading >= gauges.loads_in_flight == 0


@pytest.mark.parametrize(
    "hold",
    [lambda left: {"a": [left]}, lambda left: left.append, lambda left: lambda: left],
    ids=["containers", "a bound method", "a closure"],
)
def test_what_is_left_behind_is_counted_wherever_it_is_held(hold):
    left: list[object] = []
    holder = hold(left)
    before = held_bytes(holder)
    left += [prepare(f"request {n}", [10, f"a{n}"]) for n in range(50)]
    assert held_bytes(holder) - before > 50 * 1000
