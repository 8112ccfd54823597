"""UDP ports of publishers: any, a range, one for all; announced addresses; forged checks."""

from __future__ import annotations

import asyncio
import random
import socket
from typing import cast

import pytest
from aioice import Candidate, stun

from liveedge.core.clock import SystemClock
from liveedge.core.errors import SettingsInvalid
from liveedge.media.webrtc.engine import WebRtc, WebRtcSettings
from liveedge.media.webrtc.private import Link, _StunEnd, host_addresses, new_certificate
from liveedge.media.webrtc.session import IceServer, OfferInvalid
from liveedge.media.webrtc.udp import Address, PortsExhausted, UdpPort, UdpPorts
from tests.webrtc_offers import offer, video
from tests.webrtc_publisher import NumberedTrack, Stage, stage, until

pytestmark = pytest.mark.component


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("0.0.0.0", 0))
        return int(probe.getsockname()[1])


def candidates(answer: str) -> list[tuple[str, int]]:
    found = [line.split() for line in answer.split("\r\n") if line.startswith("a=candidate:")]
    return [(words[4], int(words[5])) for words in found]


async def test_one_port_serves_many_publishers_at_the_same_time() -> None:
    port = free_port()
    async with stage(WebRtcSettings(udp_ports=(port, port))) as first:
        second = Stage(first.engine)
        second.start()
        await until(lambda: bool(second.sink.states))
        one = await first.peer(NumberedTrack(), codec="vp8")
        two = await second.peer(NumberedTrack(first=5000), codec="h264")
        assert {number for _, number in candidates(one.pc.remoteDescription.sdp)} == {port}
        assert {number for _, number in candidates(two.pc.remoteDescription.sdp)} == {port}
        mine, others = await first.frames(20), await second.frames(20)
        assert all((frame.number or 0) < 5000 for frame in mine)
        assert all((frame.number or 0) >= 5000 for frame in others)
        await one.session.close("leaves")
        n = len(second.sink.frames)
        await second.frames(n + 10)
        third = await first.peer(NumberedTrack(first=9000), codec="vp8")
        await first.number(9000)
        for peer in (one, two, third):
            await peer.close()
        await asyncio.to_thread(second.stop)


async def test_a_port_that_is_taken_is_told_at_the_start() -> None:
    ip = host_addresses()[0]
    with socket.socket(
        socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_DGRAM
    ) as other:
        other.bind((ip, 0))
        port = int(other.getsockname()[1])
        engine = WebRtc(WebRtcSettings(udp_ports=(port, port)), clock=SystemClock())
        with pytest.raises(SettingsInvalid, match=f"UDP port {port} cannot be opened"):
            await asyncio.to_thread(engine.start)


async def test_ports_of_a_range_are_used_and_given_back() -> None:
    low = free_port()
    settings = WebRtcSettings(udp_ports=(low, low + 1))
    async with stage(settings) as scene:
        sessions = [await scene.open() for _ in range(3)]
        answers = [await session.answer(offer(video("0"))) for session in sessions[:2]]
        used = {number for answer in answers for _, number in candidates(answer)}
        assert used <= {low, low + 1}
        with pytest.raises(OfferInvalid, match=f"all UDP ports from {low} to {low + 1} are in use"):
            await sessions[2].answer(offer(video("0")))
        await sessions[0].close("gone")
        assert candidates(await sessions[2].answer(offer(video("0"))))


async def test_announced_addresses_stand_in_for_the_machines_own() -> None:
    port = free_port()
    settings = WebRtcSettings(udp_ports=(port, port), announced_ips=("203.0.113.7",))
    async with stage(settings) as scene:
        session = await scene.open()
        answer = await session.answer(offer(video("0")))
        assert candidates(answer) == [("203.0.113.7", port)]


async def test_an_announced_address_of_our_own_is_the_only_one_listened_on() -> None:
    async with stage(WebRtcSettings(announced_ips=("127.0.0.1",))) as scene:
        peer = await scene.peer(NumberedTrack(), codec="vp8")
        found = candidates(peer.pc.remoteDescription.sdp)
        assert [ip for ip, _ in found] == ["127.0.0.1"]
        await scene.frames(3)
        await peer.close()


class StunServer(asyncio.DatagramProtocol):
    """Tells everybody that they come from 198.51.100.9."""

    transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        answer = stun.Message(
            message_method=stun.Method.BINDING,
            message_class=stun.Class.RESPONSE,
            transaction_id=data[8:20],
        )
        answer.attributes["XOR-MAPPED-ADDRESS"] = ("198.51.100.9", addr[1])
        self.transport.sendto(bytes(answer), addr)


@pytest.mark.parametrize("is_shared", [True, False])
async def test_a_stun_server_tells_the_address_behind_a_nat(is_shared: bool) -> None:
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        StunServer, local_addr=("0.0.0.0", 0)
    )
    port = free_port()
    ip = next(address for address in host_addresses() if ":" not in address)
    settings = WebRtcSettings(
        udp_ports=(port, port) if is_shared else None,
        ice_servers=(
            IceServer(url=f"stun:{ip}:{transport.get_extra_info('sockname')[1]}"),
            IceServer(url="turn:127.0.0.1:9?transport=udp", username="u", credential="p"),
        ),
    )
    async with stage(settings) as scene:
        session = await scene.open()
        answer = await session.answer(offer(video("0")))  # although nobody answers as TURN server
        assert "198.51.100.9" in [address for address, _ in candidates(answer)]
        assert " typ srflx raddr " in answer
        await session.close("done")
    transport.close()
    await asyncio.sleep(0)  # asyncio closes its sockets in the next turn


class End:
    """A connection's end that remembers."""

    def __init__(self, ufrag: str, password: str) -> None:
        self.ufrag = ufrag
        self.password = password
        self.transaction = b""
        self.checks: list[Address] = []
        self.packets: list[bytes] = []

    def is_authentic(self, check: bytes) -> bool:
        return stun.parse_message(check).check_message_integrity(self.password.encode())

    def expects(self, transaction: bytes) -> bool:
        return transaction == self.transaction

    def stun(self, data: bytes, address: Address) -> None:
        self.checks.append(address)

    def packet(self, data: bytes) -> None:
        self.packets.append(data)


def check(username: str, password: str, *, answer: bool = False) -> bytes:
    message = stun.Message(
        message_method=stun.Method.BINDING,
        message_class=stun.Class.RESPONSE if answer else stun.Class.REQUEST,
    )
    if not answer:
        message.attributes["PRIORITY"] = 5
        message.attributes["USERNAME"] = username
    message.add_message_integrity(password.encode())
    return bytes(message)


class Shared:
    """A port with two ends, and sockets that send to it."""

    def __init__(self) -> None:
        bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        bound.bind(("127.0.0.1", 0))
        self.port = UdpPort(bound, filter_in=lambda _datagram: True)
        self.one, self.two = End("one", "password-of-one"), End("two", "password-of-two")
        self.port.attach(self.one)
        self.port.attach(self.two)
        self.port.open()
        self.sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(3)]
        for sender in self.sockets:
            sender.bind(("127.0.0.1", 0))

    def send(self, data: bytes, *, by: int = 0) -> None:
        self.sockets[by].sendto(data, self.port.address)

    def close(self) -> None:
        self.port.close()
        for sender in self.sockets:
            sender.close()


async def test_datagrams_go_to_whom_a_signed_check_from_their_address_named() -> None:
    shared = Shared()
    shared.send(b"\x80 before any check")
    shared.send(check("one:x", "password-of-one"))
    shared.send(b"\x80 of one")
    shared.send(check("two:x", "password-of-two"), by=1)
    shared.send(b"\x80 of two", by=1)
    await until(lambda: len(shared.two.packets) == 1)
    assert shared.one.packets == [b"\x80 of one"]
    assert shared.two.packets == [b"\x80 of two"]
    assert shared.port.counts.unknown == 1
    shared.close()


async def test_a_forged_check_takes_over_nobodys_address() -> None:
    shared = Shared()
    shared.send(check("one:x", "password-of-one"))
    shared.send(check("two:x", "guessed"))
    shared.send(b"\x80 still of one")
    shared.send(check("nobody:x", "guessed"))
    await until(lambda: bool(shared.one.packets))
    assert shared.one.packets == [b"\x80 still of one"]
    assert shared.port.counts.forged == 1
    shared.close()


async def test_answers_to_our_checks_find_their_way_by_number() -> None:
    shared = Shared()
    answer = check("", "x", answer=True)
    shared.two.transaction = answer[8:20]
    shared.send(answer, by=2)
    shared.send(check("", "x", answer=True), by=2)
    await until(lambda: bool(shared.two.checks) and shared.port.counts.unknown == 1)
    assert shared.one.checks == []
    shared.close()


async def test_a_publisher_may_have_some_addresses_and_not_any_number() -> None:
    shared = Shared()
    for n in range(40):
        shared.port._dispatch(check("one:x", "password-of-one"), ("10.0.0.1", 1000 + n))
    assert len(shared.port._by_address) == 16
    shared.port.detach(shared.one)
    assert shared.port._by_address == {}
    shared.close()


async def test_no_bytes_make_a_port_or_its_ends_fail() -> None:
    shared = Shared()
    link = Link(
        ports=UdpPorts(None, rng=random.Random(1), filter_in=lambda _datagram: True),
        certificate=new_certificate(),
        ice_servers=(),
        on_rtp=lambda _packet: None,
        on_rtcp=lambda _packet: None,
        wants=lambda _packet: True,
        on_down=lambda _reason: None,
    )
    end = _StunEnd(link._connection, shared.port)
    end.local_candidate = Candidate("f", 1, "udp", 5, "127.0.0.1", 9, "host")
    chance = random.Random(8)
    whole = check(f"{end.ufrag}:x", link.password)
    assert end.is_authentic(whole)
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(4, len(data))] = chance.randrange(256)
        shared.port._dispatch(bytes(data[: chance.randrange(2, len(data) + 1)]), ("10.0.0.9", 9))
        # Signed by the publisher itself, and still nonsense.
        end.stun(bytes(data), ("127.0.0.1", 9))
    bare = stun.Message(message_method=stun.Method.BINDING, message_class=stun.Class.REQUEST)
    bare.attributes["USERNAME"] = f"{end.ufrag}:x"
    bare.add_message_integrity(link.password.encode())
    link._connection._early_checks_done = True
    shared.port._dispatch(bytes(bare), ("127.0.0.1", 9))  # has no priority
    await link.close()
    shared.close()


async def test_a_machine_without_an_address_says_so() -> None:
    ports = UdpPorts(None, rng=random.Random(1), filter_in=lambda _datagram: True)
    with pytest.raises(PortsExhausted, match="no usable address"):
        ports.take(["203.0.113.200"])
