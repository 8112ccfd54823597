"""Case 18: what the scheduler keeps does not grow with what has passed through it."""

from __future__ import annotations

import gc
import tracemalloc

from tests.scheduling import LIMITS, SIZES, Bench, prepare


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


def test_thousands_of_distinct_pictures_leave_nothing_behind():
    bench = Bench()
    tracemalloc.start()
    pass_through(bench, range(400))  # fills every cache
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    pass_through(bench, range(400, 1400))
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 20_000  # bytes: 20 per picture
    gauges = bench.scheduler.stats(row_bytes=1)
    assert gauges.finished > 400
    assert gauges.failed > 30
    assert gauges.cancelled > 30
    assert gauges.warm_updates > 50
    assert gauges.encoder_cache_bytes <= gauges.encoder_cache_capacity_bytes
    assert LIMITS.max_loading >= gauges.loads_in_flight == 0
