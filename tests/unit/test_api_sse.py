"""Event streams: heartbeats only in silence, one end."""

from liveedge.api.sse import PING, EventStream, event
from liveedge.testing.clock import FakeClock


class Sent:
    """What went out, by time."""

    def __init__(self, clock):
        self._clock = clock
        self.parts = []

    async def __call__(self, message):
        body = message.get("body", message["type"].encode())
        self.parts.append((self._clock.monotonic_s(), body))


async def test_a_heartbeat_comes_after_fifteen_seconds_of_silence():
    clock = FakeClock(monotonic_s=0.0)
    sent = Sent(clock)
    async with EventStream(sent, clock=clock) as stream:
        await clock.advance(14)
        await stream.send(b"x")
        await clock.advance(31)
    pings = [at for at, body in sent.parts if body == PING]
    assert pings == [29, 44]
    assert clock.n_sleepers == 0
    assert sent.parts[-1][1] == b""


async def test_a_failure_inside_leaves_the_response_open_for_nobody():
    clock = FakeClock()
    sent = Sent(clock)
    try:
        async with EventStream(sent, clock=clock):
            raise KeyError
    except KeyError:
        pass
    assert [body for _, body in sent.parts] == [b"http.response.start"]
    assert clock.n_sleepers == 0


def test_an_event_is_one_line_of_real_utf8():
    assert event({"text": "grün\n\N{SNOWMAN}"}) == 'data: {"text":"grün\\n☃"}\n\n'.encode()
