"""A publisher that means harm costs the others nothing: what it makes us hold is bounded."""

from __future__ import annotations

import asyncio
import random
import time
from struct import pack
from typing import Any, cast

import pylibsrtp
import pytest
from aioice import stun
from aiortc.rtcdtlstransport import RTCDtlsTransport
from aiortc.rtcsctptransport import (
    DATA_CHANNEL_OPEN,
    WEBRTC_BINARY,
    WEBRTC_DCEP,
    Chunk,
    DataChunk,
    ForwardTsnChunk,
    HeartbeatChunk,
    InitChunk,
    RTCSctpCapabilities,
    SackChunk,
    serialize_packet,
)

from liveedge.media.webrtc import private
from liveedge.media.webrtc.private import DataChannels, Link, has_end, new_certificate
from liveedge.media.webrtc.sdp import RemoteTransport, read_candidate
from liveedge.media.webrtc.udp import UdpPorts

pytestmark = pytest.mark.component
PASSWORD = "a-password-of-the-publisher"


class Wire:
    """What SCTP needs of DTLS."""

    state = "connected"
    _role = "server"

    def __init__(self) -> None:
        self.n_sent = 0

    def _register_data_receiver(self, _receiver: object) -> None: ...

    def _unregister_data_receiver(self, _receiver: object) -> None: ...

    async def _send_data(self, _data: bytes) -> None:
        self.n_sent += 1


async def channels() -> DataChannels:
    """An association whose other end begins with packet 1."""
    sctp = DataChannels(cast(RTCDtlsTransport, Wire()))
    await sctp.start(RTCSctpCapabilities(maxMessageSize=65536), 5000)
    sctp._last_received_tsn = 0
    sctp._ssthresh = 1 << 20
    sctp._set_state(sctp.State.ESTABLISHED)
    return sctp


def piece(tsn: int, *, stream: int = 0, flags: int = 2, kind: int = WEBRTC_BINARY) -> DataChunk:
    """By default the first of a message that never ends."""
    chunk = DataChunk(flags)
    chunk.tsn, chunk.stream_id, chunk.protocol, chunk.user_data = tsn, stream, kind, b"x" * 1000
    return chunk


def opening(tsn: int, *, stream: int) -> DataChunk:
    chunk = piece(tsn, stream=stream, flags=3, kind=WEBRTC_DCEP)
    chunk.user_data = pack("!BBHLHH", DATA_CHANNEL_OPEN, 0, 0, 0, 1, 0) + b"c"
    return chunk


async def test_messages_of_data_channels_that_never_end_are_not_held() -> None:
    sctp = await channels()
    for tsn in range(1, 3000):
        await sctp._receive_chunk(piece(tsn, stream=tsn % 500))
    assert sctp._last_received_tsn == 2999
    assert not sctp._inbound_streams
    await sctp.stop()


async def test_packets_of_data_channels_behind_a_hole_are_bounded_until_it_is_filled() -> None:
    sctp = await channels()
    for tsn in range(2, 3000):
        await sctp._receive_chunk(piece(tsn))
    assert len(sctp._sack_misordered) == private.MAX_OUT_OF_ORDER
    await sctp._receive_chunk(piece(1))
    assert sctp._last_received_tsn == private.MAX_OUT_OF_ORDER + 1
    assert not sctp._sack_misordered
    await sctp.stop()


def packet(kind: int, body: bytes, *, tag: int = 0) -> bytes:
    chunk = Chunk(body=body)
    chunk.type = kind
    return serialize_packet(5000, 5000, tag, chunk)


@pytest.mark.parametrize("kind", [1, 2, 4, 5, 6, 9, 130])
@pytest.mark.parametrize("before", [b"", b"\x00\x01\x00\x05a\x00\x00\x00"])
def test_a_parameter_without_a_length_would_never_end_and_is_refused(
    kind: int, before: bytes
) -> None:
    fixed = bytes(16) if kind in (1, 2) else b""
    assert has_end(packet(kind, fixed + before))
    assert not has_end(packet(kind, fixed + before + b"\x00\x01\x00\x00"))


def test_no_bytes_of_sctp_take_long_or_raise() -> None:
    chance = random.Random(3)
    heart, first = HeartbeatChunk(), InitChunk()
    heart.params = first.params = [(1, b"abc"), (2, b"")]
    for chunk in (heart, first, piece(1)):
        whole = serialize_packet(5000, 5000, 1, chunk)
        assert has_end(whole)
        for _ in range(300):
            data = bytearray(whole)
            data[chance.randrange(len(data))] = chance.randrange(256)
            has_end(bytes(data[: chance.randrange(len(data) + 1)]))


@pytest.mark.timeout(10)
async def test_an_endless_packet_is_thrown_away_and_a_good_one_is_answered() -> None:
    sctp = await channels()
    wire = cast(Wire, sctp.transport)
    n = wire.n_sent
    refused = packet(4, b"\x00\x01\x00\x00", tag=sctp._local_verification_tag)
    assert not has_end(refused)
    await sctp._handle_data(refused)
    assert wire.n_sent == n
    await sctp._handle_data(packet(4, b"\x00\x01\x00\x04", tag=sctp._local_verification_tag))
    assert wire.n_sent == n + 1
    await sctp.stop()


async def test_one_packet_of_sctp_does_not_keep_the_thread_busy() -> None:
    sctp = await channels()
    begun_s = time.thread_time()
    acknowledged = SackChunk()
    acknowledged.cumulative_tsn = sctp._last_sacked_tsn
    acknowledged.gaps = [(0, 65535)] * 280
    await sctp._receive_chunk(acknowledged)
    skipped = ForwardTsnChunk()
    for tsn in range(1, 300):
        skipped.cumulative_tsn = tsn
        skipped.streams = [(tsn * 200 + n & 0xFFFF, 0) for n in range(280)]
        await sctp._receive_chunk(skipped)
    assert time.thread_time() - begun_s < 1
    assert sctp._last_received_tsn == 299
    assert not sctp._inbound_streams
    await sctp.stop()


async def test_only_so_many_data_channels_are_opened_and_strange_ones_end_nothing() -> None:
    sctp = await channels()
    for tsn, stream in enumerate([*range(500), *range(500)], start=1):
        await sctp._receive_chunk(opening(tsn, stream=stream))
    assert len(sctp._data_channels) == private.MAX_DATA_CHANNELS
    await sctp.stop()


def link(got: list[bytes]) -> Link:
    return Link(
        ports=UdpPorts(None, rng=random.Random(1), filter_in=lambda _datagram: True),
        certificate=new_certificate(),
        ice_servers=(),
        on_rtp=got.append,
        on_rtcp=got.append,
        wants=lambda _packet: True,
        on_down=lambda _reason: None,
    )


def keys(kind: int) -> pylibsrtp.Session:
    return pylibsrtp.Session(pylibsrtp.Policy(key=bytes(30), ssrc_type=kind))


async def test_a_flood_of_senders_is_forgotten_and_the_one_that_goes_on_is_not() -> None:
    got: list[bytes] = []
    ours = link(got)
    theirs = keys(pylibsrtp.Policy.SSRC_ANY_OUTBOUND)
    ours._dtls._rx_srtp = keys(pylibsrtp.Policy.SSRC_ANY_INBOUND)

    def send(ssrc: int, sequence: int) -> None:
        head = pack("!BBHLL", 0x80, 96, sequence & 0xFFFF, 0, ssrc)
        ours._connection.data_received(theirs.protect(head + b"picture"), 1)

    n = 3 * private.MAX_SENDERS
    for i in range(n):
        send(7, 65_000 + 10 * i)  # round once: what is known of it is needed
        send(1000 + i, 5)
    assert len(got) == 2 * n
    assert ours.n_undecryptable == 0
    assert len(ours._senders) == private.MAX_SENDERS
    with pytest.raises(pylibsrtp.Error):  # libsrtp does not hold it any more
        ours._dtls._rx_srtp.remove_stream(1000)
    ours._dtls._rx_srtp.remove_stream(7)


async def test_a_datagram_of_one_byte_through_a_relay_is_nobodys() -> None:
    ours = link([])
    for data in (b"", b"\x80", b"\x16"):
        ours._connection.data_received(data, 1)
    assert ours.n_unwanted == 3


def check(ours: Link) -> bytes:
    message = stun.Message(message_method=stun.Method.BINDING, message_class=stun.Class.REQUEST)
    message.attributes["USERNAME"] = f"{ours.ufrag}:theirs"
    message.attributes["PRIORITY"] = 5
    message.attributes["ICE-CONTROLLING"] = 9
    message.add_message_integrity(ours.password.encode())
    return bytes(message)


async def test_any_number_of_addresses_is_neither_remembered_nor_tried() -> None:
    ours = link([])
    await ours.gather(["127.0.0.1"])
    ours.remote(RemoteTransport(ufrag="theirs", password=PASSWORD))
    connecting = asyncio.create_task(ours._connection.connect())
    await asyncio.sleep(0)  # its first turn
    end = cast(Any, ours._connection._protocols[0])
    for port in range(2000, 3000):
        end.stun(check(ours), ("127.0.0.1", port))
        candidate = read_candidate(f"candidate:1 1 udp 5 127.0.0.1 {port + 5000} typ host")
        assert candidate is not None
        await ours.add_candidate(candidate)
    assert len(ours._connection._remote_candidates) == private.MAX_REMOTE_ADDRESSES
    assert len(ours._connection._check_list) <= private.MAX_REMOTE_ADDRESSES
    assert ours.n_unwanted > 800
    end.stun(check(ours), ("127.0.0.1", 2000))
    assert ours.n_unwanted < 1000, "known ones are heard"
    connecting.cancel()
    await asyncio.gather(connecting, return_exceptions=True)
    await ours.close()
