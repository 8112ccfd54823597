"""Several event streams as one, in the order in which events happen.

Holds no events: each source is asked for its next one only when its last has been taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing

from liveedge.core.errors import LiveEdgeError
from liveedge.core.tasks import TaskSet
from liveedge.engine.request import Event, Failed


async def merged(
    sources: Sequence[AsyncGenerator[Event, None]],
) -> AsyncGenerator[tuple[int, Event], None]:
    """Events with the number of their source. Leaving early closes every source."""
    async with AsyncExitStack() as stack:
        for source in sources:
            await stack.enter_async_context(aclosing(source))
        tasks = TaskSet("choices")
        stack.push_async_callback(tasks.close)  # before the sources: one may be waiting in its task
        waiting = {tasks.start(_next(s), name=str(i)): i for i, s in enumerate(sources)}
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda task: waiting[task]):
                i = waiting.pop(task)
                event: Event | None = task.result()
                if event is not None:
                    yield i, event
                    waiting[tasks.start(_next(sources[i]), name=str(i))] = i


async def _next(source: AsyncGenerator[Event, None]) -> Event | None:
    """The next event, or None at the end. An error is an event here: it belongs to the reader."""
    try:
        return await anext(source, None)
    except LiveEdgeError as error:
        return Failed(error=error)
