"""Several event streams as one: in the order of events, and all of them closed."""

import asyncio
from contextlib import aclosing

from liveedge.core.errors import QueueFull
from liveedge.engine.request import Delta, Failed
from liveedge.service.merge import merged
from liveedge.testing.clock import FakeClock


class Source:
    """Events at given times."""

    def __init__(self, clock, *at_s, fails=False):
        self.closed = False
        self._clock, self._at_s, self._fails = clock, at_s, fails

    async def events(self):
        began_s = self._clock.monotonic_s()
        try:
            for at_s in self._at_s:
                await self._clock.sleep(began_s + at_s - self._clock.monotonic_s())
                yield Delta(text=str(at_s), n_tokens=1)
            if self._fails:
                raise QueueFull("no room")
        finally:
            self.closed = True


async def collect(sources, seen):
    async with aclosing(merged([source.events() for source in sources])) as events:
        async for i, event in events:
            seen.append((i, event.text if isinstance(event, Delta) else event))


async def test_events_come_in_the_order_in_which_they_happen():
    clock = FakeClock()
    sources = [Source(clock, 1, 4), Source(clock, 2, 3), Source(clock)]
    seen: list[tuple[int, object]] = []
    task = asyncio.ensure_future(collect(sources, seen))
    await clock.advance(5)
    await task
    assert seen == [(0, "1"), (1, "2"), (1, "3"), (0, "4")]
    assert all(source.closed for source in sources)


async def test_an_error_of_one_source_is_an_event_of_that_source():
    clock = FakeClock()
    seen: list[tuple[int, object]] = []
    task = asyncio.ensure_future(collect([Source(clock, 1, fails=True), Source(clock, 2)], seen))
    await clock.advance(3)
    await task
    assert [i for i, _ in seen] == [0, 0, 1]
    assert isinstance(seen[1][1], Failed)


async def test_leaving_closes_every_source_also_one_that_is_waiting():
    clock = FakeClock()
    sources = [Source(clock, 1), Source(clock, 100)]
    before = asyncio.all_tasks()
    events = merged([source.events() for source in sources])
    first = asyncio.ensure_future(anext(events))
    await clock.advance(1)
    assert (await first)[0] == 0
    await events.aclose()
    assert all(source.closed for source in sources)
    assert asyncio.all_tasks() == before


async def test_cancelling_the_reader_closes_every_source():
    clock = FakeClock()
    sources = [Source(clock, 50), Source(clock, 100)]
    task = asyncio.ensure_future(collect(sources, []))
    await clock.advance(1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert all(source.closed for source in sources)
    assert clock.n_sleepers == 0
