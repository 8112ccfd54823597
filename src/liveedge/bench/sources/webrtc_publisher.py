"""Publishes simulated cameras by WHIP or LiveKit: `python -m liveedge.bench.sources.webrtc_publisher`.

Into streams that exist already, with the tokens that the server gives; connects again by itself.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from liveedge.bench.sources.telling import read_job, tell, when_abandoned
from liveedge.client.http import Client, Refused
from liveedge.client.publish.pictures import SimPictures, SimScene, Wanted
from liveedge.client.publish.run import Backoff, Hear, PublishFailed, PublishOptions, Run
from liveedge.core.clock import Clock, SystemClock
from liveedge.core.tasks import TaskSet


async def publish_all(job: Mapping[str, Any], clock: Clock) -> None:
    """Until it is cancelled."""
    await asyncio.gather(*(_publish(n, job, clock) for n in range(len(job["streams"]))))


async def _publish(n: int, job: Mapping[str, Any], clock: Clock) -> None:
    wanted = Wanted(size=(job["width"], job["height"]), fps=job["fps"])
    options = PublishOptions(
        source="sim",
        stream_id=job["streams"][n],
        via=job["via"],
        wanted=wanted,
        is_local=job["is_local"],
    )
    pictures = SimPictures(SimScene(seed=job["seeds"][n]), wanted, clock=clock)
    scheme, _, key = job["headers"].get("Authorization", "").partition(" ")
    with Client(job["server"], clock=clock, api_key=key if scheme else None) as client:
        run = Run(
            options,
            pictures,
            client,
            clock=clock,
            backoff=Backoff(random.Random(job["seeds"][n])),
            hear=Hear(
                created=lambda stream_id: tell({"source": n, "created": stream_id}),
                state=lambda text: tell({"source": n, "said": text}),
            ),
        )
        try:
            await run.run()
        except (PublishFailed, Refused) as error:
            tell({"source": n, "ended": str(error)})


async def _until_abandoned(job: Mapping[str, Any], clock: Clock) -> None:
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    tasks = TaskSet("bench-publishers")
    publishing = tasks.start(publish_all(job, clock), name="publish")
    publishing.add_done_callback(lambda _task: over.set())
    when_abandoned(lambda: loop.call_soon_threadsafe(over.set))
    await over.wait()
    if publishing.done():
        publishing.result()
    await tasks.close()


def main() -> None:
    asyncio.run(_until_abandoned(read_job(), SystemClock()))


if __name__ == "__main__":
    main()
