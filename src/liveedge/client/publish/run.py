"""Publishes until it is told to stop: keeps the stream alive, connects again, says what goes on.

Owns    the stream that it made (deleted at the end), one thread that makes pictures.
Never   fights with another publisher: who is replaced stops.
"""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from liveedge.client.http import Refused as ServerRefused
from liveedge.client.publish.livekit import send_by_livekit
from liveedge.client.publish.newest import Newest
from liveedge.client.publish.pictures import NoPictures, Pictures, Wanted, open_pictures
from liveedge.client.publish.sending import Codec, Lost, Refused, Send, Target
from liveedge.client.publish.whip import send_by_whip
from liveedge.core.clock import Clock
from liveedge.core.tasks import OwnedThread, TaskSet

KEEPALIVE_EVERY_S = 60.0  # a lease is five minutes long
LOOK_EVERY_S = 2.0
REPORT_EVERY_S = 30.0
BACKOFF_FIRST_S = 0.5
BACKOFF_MAX_S = 10.0
JITTER = 0.3
STOP_WITHIN_S = 5.0
NOT_FOUND = 404
MAIN_THREAD = threading.main_thread()

T = TypeVar("T")
Say: TypeAlias = Callable[[str], None]
Via: TypeAlias = Literal["livekit", "whip"]
SENDERS: Mapping[Via, Send] = {"livekit": send_by_livekit, "whip": send_by_whip}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOptions:
    """What the user asks for."""

    source: str
    stream_id: str | None = None  # None: one is made, and deleted at the end
    via: Via = "whip"
    codec: Codec = "vp8"
    wanted: Wanted = field(default_factory=Wanted)
    seconds: float | None = None
    is_local: bool  # the server is on this machine


class PublishFailed(Exception):
    """Publishing has ended before it should; the text is for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hear:
    """Where the program speaks to."""

    created: Say  # the id of a stream that was made
    state: Say  # a line for people


def publish(
    options: PublishOptions, client: StreamClient, *, clock: Clock, rng: random.Random, hear: Hear
) -> None:
    """Publish until the end of the pictures, of `seconds`, or SIGTERM. Blocks.

    Raises PublishFailed, KeyboardInterrupt, and what `client` raises at the start.
    """
    try:
        pictures = open_pictures(options.source, options.wanted, clock=clock)
    except NoPictures as error:
        raise PublishFailed(str(error)) from error
    backoff = Backoff(rng)
    asyncio.run(Run(options, pictures, client, clock=clock, backoff=backoff, hear=hear).run())


class Backoff:
    """Waits that double up to a limit, each a little longer by chance."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._step_s = BACKOFF_FIRST_S

    def next_s(self) -> float:
        wait_s = self._step_s * (1 + JITTER * self._rng.random())
        self._step_s = min(2 * self._step_s, BACKOFF_MAX_S)
        return wait_s

    def reset(self) -> None:
        self._step_s = BACKOFF_FIRST_S


class StreamClient(Protocol):
    """What is used of `client.http.Client`."""

    def create_stream(self, source: Mapping[str, Any]) -> dict[str, Any]: ...

    def keep_alive(self, stream_id: str) -> dict[str, Any]: ...

    def stream(self, stream_id: str) -> dict[str, Any]: ...

    def delete_stream(self, stream_id: str) -> None: ...


class _Server:
    """The blocking client, in one thread of its own."""

    def __init__(self, client: StreamClient) -> None:
        self.client = client
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="liveedge-publish-http")

    async def call(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


class Run:
    """One call of `publish`."""

    def __init__(
        self,
        options: PublishOptions,
        pictures: Pictures,
        client: StreamClient,
        *,
        clock: Clock,
        backoff: Backoff,
        hear: Hear,
        senders: Mapping[Via, Send] = SENDERS,
    ) -> None:
        self._options = options
        self._pictures = pictures
        self._server = _Server(client)
        self._clock = clock
        self._backoff = backoff
        self._hear = hear
        self._send_by = senders[options.via]
        self._stream_id = options.stream_id or ""
        self._publish: Mapping[str, Any] = {}
        self._failure: str | None = None  # of the source of pictures
        self._was_connected = False
        self._trouble = "the server does not answer"  # what went wrong last
        self._connection: asyncio.Timeout | None = None  # while there is one
        self._tasks = TaskSet("publish")

    async def run(self) -> None:
        newest = Newest(clock=self._clock)
        thread = OwnedThread("liveedge-pictures", lambda stopping: self._picture(newest, stopping))
        try:
            await self._begin()
            thread.start()
            self._tasks.start(self._keep_alive(), name="keepalive")
            self._tasks.start(self._watch(newest), name="watch")
            await self._until_told(newest)
        finally:
            thread.stop(STOP_WITHIN_S)
            await self._tasks.close()
            await self._end()
            self._server.close()

    def _picture(self, newest: Newest, stopping: threading.Event) -> None:
        try:
            self._pictures.run(newest.put, stopping)
        except NoPictures as error:
            self._failure = str(error)
        finally:
            newest.end()

    async def _until_told(self, newest: Newest) -> None:
        sending = self._tasks.start(self._send(newest), name="send")
        loop, is_main = asyncio.get_running_loop(), threading.current_thread() is MAIN_THREAD
        if is_main:
            loop.add_signal_handler(signal.SIGTERM, sending.cancel)
        done, _ = await asyncio.wait((sending,), timeout=self._options.seconds)
        if is_main:
            loop.remove_signal_handler(signal.SIGTERM)
        if done and not sending.cancelled():
            await sending  # raises what it has ended with
        elif not done and not self._was_connected:
            raise PublishFailed(f"not connected in {self._options.seconds:g} s: {self._trouble}")

    async def _send(self, newest: Newest) -> None:
        while True:
            try:
                await self._send_once(newest)
                break
            except Refused as error:
                raise PublishFailed(str(error)) from error
            except Lost as lost:
                if lost.is_gone and await self._is_taken():
                    raise PublishFailed("another publisher has taken over the stream") from lost
                wait_s = self._backoff.next_s()
                self._trouble = str(lost)
                self._hear.state(f"{lost}; trying again in {wait_s:.1f} s")
            await self._clock.sleep(wait_s)
            await self._renew()
        if self._failure is not None:
            raise PublishFailed(self._failure)
        self._hear.state("the file is over")

    async def _send_once(self, newest: Newest) -> None:
        """One connection. It may take half a minute to find out that the server has forgotten it, by a
        restart; the server itself says so at once."""
        try:
            async with asyncio.timeout(None) as connection:
                await self._send_by(
                    self._target(),
                    newest,
                    connected=lambda: self._connected(newest, connection),
                )
        except TimeoutError as error:
            raise Lost("the server has lost the connection", is_gone=True) from error
        finally:
            self._connection = None

    def _connected(self, newest: Newest, connection: asyncio.Timeout) -> None:
        self._connection = connection
        self._was_connected = True
        newest.count_anew()
        self._backoff.reset()
        self._hear.state("connected")

    def _target(self) -> Target:
        whip_url = self._publish.get("whip_url")
        if self._options.via == "whip" and not whip_url:
            raise Refused("the server takes no WHIP for this stream; use --via livekit")
        return Target(
            url=str(self._publish["url"]),
            whip_url=str(whip_url),
            token=str(self._publish["token"]),
            size=self._pictures.size,
            fps=self._pictures.fps,
            codec=self._options.codec,
            is_local=self._options.is_local,
        )

    # ── the stream ──

    async def _begin(self) -> None:
        client = self._server.client
        if self._options.stream_id is None:
            created = await self._server.call(lambda: client.create_stream({"type": "livekit"}))
            self._stream_id = created["id"]
            self._hear.created(self._stream_id)
        else:
            created = await self._server.call(lambda: client.keep_alive(self._stream_id))
        publish = created.get("publish")
        if publish is None:
            raise PublishFailed(
                f"nobody can publish into stream {self._stream_id}: it was created with another"
                " source; leave --stream out, and one is made"
            )
        self._publish = publish
        width, height = self._pictures.size
        self._hear.state(
            f"publishing {width}x{height} at {self._pictures.fps:g} frames/s by"
            f" {'LiveKit' if self._options.via == 'livekit' else 'WHIP'}"
            f" ({self._options.codec.upper()}) into stream {self._stream_id}; Ctrl-C ends it"
        )

    async def _end(self) -> None:
        if self._options.stream_id is not None or not self._stream_id:
            return
        try:
            await self._server.call(lambda: self._server.client.delete_stream(self._stream_id))
            self._hear.state(
                "the stream that was made for this is deleted, with its frames; --stream keeps one"
            )
        except ServerRefused:  # it has ended already, or ends by itself in five minutes
            return

    async def _renew(self) -> None:
        """Keep the stream alive, and take its new token. Raises PublishFailed when it has ended."""
        try:
            kept = await self._server.call(lambda: self._server.client.keep_alive(self._stream_id))
        except ServerRefused as error:
            if error.status == NOT_FOUND:
                raise PublishFailed(f"stream {self._stream_id} has ended") from error
            return  # the server is away: the next one may reach it
        self._publish = kept["publish"]

    async def _keep_alive(self) -> None:
        while True:
            await self._clock.sleep(KEEPALIVE_EVERY_S)
            try:
                await self._renew()
            except PublishFailed:  # its publisher is told too, and the next attempt says why
                return

    async def _is_taken(self) -> bool:
        view = await self._view()
        return view.get("health") in ("live", "waiting_for_keyframe")

    async def _view(self) -> Mapping[str, Any]:
        try:
            return await self._server.call(lambda: self._server.client.stream(self._stream_id))
        except ServerRefused:
            return {}

    async def _watch(self, newest: Newest) -> None:
        """Say what the server says of the stream: each change, and how it goes from time to time."""
        said, report_at_s = "", self._clock.monotonic_s() + LOOK_EVERY_S
        while True:
            await self._clock.sleep(LOOK_EVERY_S)
            connection = self._connection
            view = await self._view()
            health = str(view.get("health", "the server does not answer"))
            is_unknown = health == "waiting_for_publisher"
            if is_unknown and connection is not None and connection is self._connection:
                connection.reschedule(0.0)
            if health != said and health != "live":
                reason = view.get("health_reason") or ""
                self._hear.state(f"{health.replace('_', ' ')}{': ' if reason else ''}{reason}")
            elif health == "live" and (health != said or self._clock.monotonic_s() >= report_at_s):
                self._hear.state(
                    f"live: {view['recent_fps']:.1f} frames/s arrive, {view['width']}x"
                    f"{view['height']} {view['codec'] or ''}; {newest.sent} sent,"
                    f" {newest.skipped} skipped"
                )
                report_at_s = self._clock.monotonic_s() + REPORT_EVERY_S
            said = health
