"""Messages over a socket: whole, in order, bounded, and ended by either side."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator

import pytest

from liveedge.engine.process.channel import LENGTH, MAX_MESSAGE, Channel, ChannelClosed

LIMIT_S = 20.0


class Pair:
    """Two ends; what arrives at the second is collected by a thread once `listen` is called."""

    def __init__(self, *, capacity: int = 1 << 20, blocking: bool = False) -> None:
        ours, theirs = socket.socketpair()
        self.near = Channel(ours, name="near", capacity=capacity, blocking=blocking)
        self.far = Channel(theirs, name="far", capacity=capacity, blocking=blocking)
        self.received: list[bytes] = []
        self.ended = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)

    def listen(self) -> None:
        self._reader.start()

    def _read(self) -> None:
        self.received += self.far.messages()
        self.ended.set()

    def close(self) -> None:
        self.near.close()
        self.far.close()


def send_often(channel: Channel, message: bytes) -> None:
    for _ in range(100):
        channel.send(message)


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair(capacity=64 << 20)
    yield pair
    pair.close()


def test_messages_of_any_size_arrive_whole_and_in_order(pair: Pair) -> None:
    rng = random.Random(1)
    sizes = [rng.choice([0, 1, 3, 100, 70_000, 3_000_000]) for _ in range(60)]
    messages = [bytes([n % 256]) * size for n, size in enumerate(sizes)]
    for message in messages[:30]:  # more than the socket holds: the rest waits for the writer
        pair.near.send(message)
    pair.listen()
    for message in messages[30:]:
        pair.near.send(message)
    pair.near.flush(LIMIT_S)
    pair.near.close()
    assert pair.ended.wait(LIMIT_S)
    assert pair.received == messages


def test_threads_that_send_at_once_do_not_mix_their_messages(pair: Pair) -> None:
    def send(letter: bytes) -> None:
        for size in range(200):
            pair.near.send(letter * (size * 50))

    threads = [threading.Thread(target=send, args=(letter,)) for letter in (b"a", b"b", b"c")]
    pair.listen()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pair.near.flush(LIMIT_S)
    pair.near.close()
    assert pair.ended.wait(LIMIT_S)
    for letter in (b"a", b"b", b"c"):
        mine = [message for message in pair.received if message[:1] == letter]
        assert mine == [letter * (size * 50) for size in range(1, 200)]


def test_a_reader_that_does_not_read_breaks_a_channel_that_must_not_wait() -> None:
    pair = Pair(capacity=1 << 20, blocking=False)
    with pytest.raises(ChannelClosed):
        send_often(pair.near, bytes(1 << 20))
    with pytest.raises(ChannelClosed):
        pair.near.send(b"later")
    pair.close()


def test_a_reader_that_does_not_read_makes_the_other_kind_wait() -> None:
    pair = Pair(capacity=1 << 20, blocking=True)
    sent = threading.Event()

    def send() -> None:
        for _ in range(20):
            pair.near.send(bytes(1 << 20))
        sent.set()

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    thread.join(0.2)
    assert not sent.is_set()
    pair.listen()
    assert sent.wait(LIMIT_S)
    pair.close()


def test_a_sender_that_waits_ends_with_the_channel() -> None:
    pair = Pair(capacity=1, blocking=True)
    failed = threading.Event()

    def send() -> None:
        try:
            while True:
                pair.near.send(bytes(1 << 20))
        except ChannelClosed:
            failed.set()

    threading.Thread(target=send, daemon=True).start()
    pair.near.close()
    assert failed.wait(LIMIT_S)
    pair.close()


def test_the_end_of_one_side_ends_the_other(pair: Pair) -> None:
    pair.listen()
    pair.near.close()
    assert pair.ended.wait(LIMIT_S)
    with pytest.raises(ChannelClosed):
        send_often(pair.far, b"hello")


def test_a_stream_that_is_out_of_step_is_noticed() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours, name="near", capacity=1, blocking=False)
    theirs.sendall(LENGTH.pack(MAX_MESSAGE + 1))
    with pytest.raises(ValueError, match="the stream is broken"):
        next(channel.messages())
    channel.close()
    theirs.close()
