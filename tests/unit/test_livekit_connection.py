"""One signalling socket under its bounds: silence, floods, size, clients that do not read."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from livekit.protocol import rtc

from liveedge.media.livekit.connection import Bounds, Connection
from liveedge.media.livekit.messages import MessageInvalid
from liveedge.testing.clock import FakeClock
from tests.livekit_clients import FakeSocket

PONG = rtc.SignalResponse(pong=1).SerializeToString()


class Served:
    """A connection while it is served."""

    def __init__(self, **bounds):
        self.clock = FakeClock()
        self.socket = FakeSocket()
        self.connection = Connection(self.socket, clock=self.clock, bounds=Bounds(**bounds))
        self.handled = []
        self.may_handle = asyncio.Event()
        self.may_handle.set()
        self.task = asyncio.create_task(self.connection.serve(self.handle))

    async def handle(self, message):
        await self.may_handle.wait()
        if message == b"garbage":
            raise MessageInvalid("garbage")
        self.handled.append(message)

    async def over(self):
        return await asyncio.wait_for(asyncio.shield(self.task), 10)


@asynccontextmanager
async def served(**bounds):
    it = Served(**bounds)
    try:
        yield it
    finally:
        it.task.cancel()
        await asyncio.gather(it.task, return_exceptions=True)
        assert it.clock.n_sleepers == 0


async def test_messages_are_handled_in_order_until_the_client_leaves():
    async with served() as it:
        for message in (b"1", b"2", b"3", None):
            it.socket.put(message)
        assert await it.over() == "left"
        assert it.handled == [b"1", b"2", b"3"]


async def test_texts_are_ignored():
    async with served() as it:
        for message in ("hello", b"1", None):
            it.socket.put(message)
        assert await it.over() == "left"
        assert it.handled == [b"1"]


async def test_what_was_sent_before_the_end_arrives():
    async with served() as it:
        it.connection.send(PONG)
        it.connection.send(PONG)
        it.connection.finish()
        it.connection.send(PONG)  # too late
        assert await it.over() == "told"
        assert it.socket.kinds() == ["pong", "pong"]
        assert it.socket.closed == (1000, "")


async def test_a_silent_client_is_given_up_after_the_deadline():
    async with served() as it:
        await it.clock.advance(14)
        assert not it.task.done()
        await it.clock.advance(2)
        assert await it.over() == "silent"
        assert it.socket.closed == (1001, "no message for 15 s")


async def test_a_client_that_speaks_is_kept():
    async with served() as it:
        for _ in range(20):
            await it.clock.advance(10)
            it.socket.put(b"ping")
        await it.clock.advance(1)
        assert not it.task.done()
        assert len(it.handled) == 20


async def test_a_flood_ends_the_connection():
    async with served(burst=10, messages_per_s=1) as it:
        for _ in range(20):
            it.socket.put(b"x")
        assert await it.over() == "flood"
        assert len(it.handled) == 10
        assert it.socket.closed == (1008, "too many messages")


async def test_many_messages_over_a_long_time_are_no_flood():
    async with served(burst=10, messages_per_s=5) as it:
        for _ in range(50):
            for _ in range(5):
                it.socket.put(b"x")
            await it.clock.advance(1)
        assert len(it.handled) == 250


@pytest.mark.parametrize("message", [b"x" * 101, "x" * 101])
async def test_a_large_message_ends_the_connection(message):
    async with served(max_message_bytes=100) as it:
        it.socket.put(b"x" * 100)
        it.socket.put(message)
        assert await it.over() == "too_large"
        assert it.handled == [b"x" * 100]
        assert it.socket.closed == (1009, "the message is too large")


async def test_garbage_ends_the_connection():
    async with served() as it:
        it.socket.put(b"garbage")
        assert await it.over() == "malformed"
        assert it.socket.closed == (1007, "not a message of a LiveKit client")


async def test_a_client_that_does_not_read_is_dropped():
    async with served() as it:
        it.socket.may_send.clear()
        it.connection.send(PONG)
        await it.clock.advance(7)
        assert await it.over() == "slow"
        assert it.socket.closed is None  # it would not read that either


async def test_messages_that_wait_are_bounded():
    async with served(max_waiting=8) as it:
        it.socket.may_send.clear()
        for _ in range(100):
            it.connection.send(PONG)
        await it.clock.advance(7)
        assert await it.over() == "slow"
        assert it.socket.sent == []


async def test_work_that_never_ends_does_not_hold_the_socket():
    async with served() as it:
        it.may_handle.clear()
        it.socket.put(b"x")
        await it.clock.advance(19)
        assert not it.task.done()  # at work, so its client may be silent
        await it.clock.advance(2)
        assert await it.over() == "slow"


async def test_a_cancelled_connection_leaves_nothing_running():
    async with served() as it:
        await it.clock.advance(1)
        it.task.cancel()
        await asyncio.gather(it.task, return_exceptions=True)
        assert it.socket.closed == (1000, "")
