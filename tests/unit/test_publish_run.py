"""`liveedge publish` beside its media: the stream it keeps, when it tries again, when it stops."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from liveedge.client.http import Refused as ServerRefused
from liveedge.client.publish.newest import Newest
from liveedge.client.publish.pictures import NoPictures
from liveedge.client.publish.run import Backoff, Hear, PublishFailed, PublishOptions, Run
from liveedge.client.publish.sending import Lost, Refused, Target
from liveedge.testing.clock import FakeClock

PUBLISH = {"url": "ws://h", "whip_url": "http://h/whip/made", "token": "first", "type": "livekit"}


class FakeServer:
    """What the server would say of one stream."""

    def __init__(self) -> None:
        self.publish: dict[str, Any] | None = dict(PUBLISH)
        self.health = "waiting_for_publisher"
        self.gone: int | None = None  # the status that every call gets
        self.calls: list[str] = []

    def create_stream(self, source: Any) -> dict[str, Any]:
        assert source == {"type": "livekit"}
        return self._answer("create", {"id": "made", "publish": self.publish})

    def keep_alive(self, stream_id: str) -> dict[str, Any]:
        if self.publish is not None:
            self.publish = self.publish | {"token": f"token-{len(self.calls)}"}
        return self._answer("keepalive", {"publish": self.publish})

    def stream(self, stream_id: str) -> dict[str, Any]:
        view = {"health": self.health, "health_reason": "", "recent_fps": 15.0}
        return self._answer("view", view | {"width": 64, "height": 48, "codec": "vp8"})

    def delete_stream(self, stream_id: str) -> None:
        self._answer("delete", {})

    def _answer(self, call: str, answer: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(call)
        if self.gone is not None:
            raise ServerRefused(self.gone, "stream_not_found", "there is no such stream")
        return answer


class Grey:
    """Pictures without a picture."""

    size = (64, 48)
    fps = 15.0

    def __init__(self, failure: str | None = None) -> None:
        self._failure = failure

    def run(self, deliver: object, stopping: threading.Event) -> None:
        if self._failure is not None:
            raise NoPictures(self._failure)
        stopping.wait()


class Desk:
    """One run, its server, its clock and its sender, driven by a test."""

    def __init__(self, *endings: Exception | None, pictures: Grey | None = None, **options: Any):
        self.server = FakeServer()
        self.clock = FakeClock()
        self.said: list[str] = []
        self.created: list[str] = []
        self.targets: list[Target] = []
        self.connects = True
        self.health_after = "waiting_for_publisher"  # once a connection has ended
        self._endings = list(endings)
        self.run = Run(
            PublishOptions(source="sim", is_local=True, **options),
            pictures or Grey(),
            self.server,
            clock=self.clock,
            backoff=Backoff(random.Random(1)),
            hear=Hear(created=self.created.append, state=self.said.append),
            senders={"whip": self._send, "livekit": self._send},
        )

    async def _send(
        self, target: Target, pictures: Newest, *, connected: Callable[[], None]
    ) -> None:
        self.targets.append(target)
        if self.connects:
            self.server.health = "live"
            connected()
        if not self._endings:
            await asyncio.Event().wait()
        ending = self._endings.pop(0)
        self.server.health = self.health_after
        if ending is not None:
            raise ending

    async def over(self) -> None:
        """To its end, in fake time."""
        running = asyncio.create_task(self.run.run())
        await asyncio.wait_for(self.passing(running.done), 20)
        await running

    async def passing(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.001)
            with suppress(RuntimeError):  # the run, and with it the thread, is over
                await self.run._server.call(lambda: None)  # time stands still while a call is out
            await self.clock.advance(0.5)


async def test_a_stream_is_made_told_and_deleted_at_the_end():
    desk = Desk(None)
    await desk.over()
    assert desk.created == ["made"]
    assert desk.server.calls[0] == "create"
    assert desk.server.calls[-1] == "delete"
    assert desk.said[0].startswith("publishing 64x48 at 15 frames/s by WHIP (VP8) into stream made")
    assert desk.said[-2] == "the file is over"
    assert desk.said[-1].startswith("the stream that was made for this is deleted")


async def test_a_given_stream_is_kept():
    desk = Desk(None, stream_id="theirs")
    await desk.over()
    assert desk.created == []
    assert "delete" not in desk.server.calls
    assert desk.server.calls[0] == "keepalive"


async def test_a_lost_connection_is_made_again_with_a_fresh_token():
    desk = Desk(Lost("the media connection was lost"), Lost("no answer"), None)
    await desk.over()
    tokens = [target.token for target in desk.targets]
    assert tokens[0] == "first"
    assert len(set(tokens)) == 3
    retries = [line for line in desk.said if "trying again in" in line]
    assert retries[0].startswith("the media connection was lost; trying again in 0.")
    assert len(retries) == 2


async def test_who_was_replaced_does_not_fight_back():
    desk = Desk(Lost("gone", is_gone=True))
    desk.health_after = "live"
    with pytest.raises(PublishFailed, match="another publisher has taken over"):
        await desk.over()
    assert len(desk.targets) == 1


async def test_a_session_that_the_server_gave_up_is_no_rival():
    desk = Desk(Lost("gone", is_gone=True), None)
    await desk.over()
    assert len(desk.targets) == 2


async def test_a_server_that_has_forgotten_the_connection_is_connected_to_again():
    """After its restart: the media connection itself would take half a minute to find out."""
    desk = Desk()
    running = asyncio.create_task(desk.run.run())
    await desk.passing(lambda: any(line.startswith("live:") for line in desk.said))
    desk.server.health = "waiting_for_publisher"
    await desk.passing(lambda: len(desk.targets) == 2)
    assert any(line.startswith("the server has lost the connection") for line in desk.said)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_time_in_which_it_never_connected_is_a_failure():
    desk = Desk(Lost("no answer from http://h"), seconds=5)
    desk.connects = False
    with pytest.raises(PublishFailed, match=r"not connected in 5 s: no answer from http://h"):
        await desk.over()


@pytest.mark.parametrize("reason", ["the publisher offers AV1", "another publisher"])
async def test_a_refusal_ends_it(reason: str):
    desk = Desk(Refused(reason))
    with pytest.raises(PublishFailed, match=reason):
        await desk.over()
    assert desk.server.calls[-1] == "delete"


async def test_a_stream_that_has_ended_ends_it():
    desk = Desk(Lost("gone"), stream_id="theirs")
    running = asyncio.create_task(desk.run.run())
    await desk.passing(lambda: bool(desk.targets))
    desk.server.gone = 404
    await asyncio.wait_for(desk.passing(running.done), 20)
    with pytest.raises(PublishFailed, match="stream theirs has ended"):
        await running


async def test_a_server_that_is_away_is_waited_for():
    desk = Desk(Lost("no answer from the server"), None, stream_id="theirs")
    running = asyncio.create_task(desk.run.run())
    await desk.passing(lambda: bool(desk.targets))
    desk.server.gone = 0
    await asyncio.wait_for(desk.passing(running.done), 20)
    await running
    assert len(desk.targets) == 2


async def test_a_stream_without_a_publisher_is_refused():
    desk = Desk(stream_id="pulled")
    desk.server.publish = None
    with pytest.raises(PublishFailed, match="nobody can publish into stream pulled"):
        await desk.over()


async def test_whip_where_the_server_takes_none_is_told():
    desk = Desk()
    assert desk.server.publish is not None
    desk.server.publish["whip_url"] = None
    with pytest.raises(PublishFailed, match="use --via livekit"):
        await desk.over()


async def test_pictures_that_cannot_be_read_end_it():
    desk = Desk(None, pictures=Grey("clip.mp4 holds no video"))
    with pytest.raises(PublishFailed, match=r"clip\.mp4 holds no video"):
        await desk.over()


async def test_the_lease_is_kept_while_it_runs_and_what_changes_is_said():
    desk = Desk()
    running = asyncio.create_task(desk.run.run())
    await desk.passing(lambda: bool(desk.targets))
    desk.server.health = "stalled"
    await desk.passing(lambda: any("stalled" in line for line in desk.said))
    desk.server.health = "live"
    await desk.passing(lambda: any(line.startswith("live: 15.0 frames/s") for line in desk.said))
    began_s = desk.clock.monotonic_s()
    await desk.passing(lambda: desk.server.calls.count("keepalive") >= 3)
    assert desk.clock.monotonic_s() - began_s <= 185
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert desk.server.calls[-1] == "delete"


def test_waits_grow_up_to_a_limit():
    backoff = Backoff(random.Random(3))
    waits = [backoff.next_s() for _ in range(8)]
    assert 0.5 <= waits[0] <= 0.65
    assert 10 <= waits[-1] <= 13
    backoff.reset()
    assert backoff.next_s() < 0.7
