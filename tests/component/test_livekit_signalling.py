"""A LiveKit client's whole life at the signalling, over a socket and media connections that a test drives."""

import asyncio
import itertools
from contextlib import asynccontextmanager

import pytest
from livekit.protocol import models, rtc

from liveedge.core.errors import (
    ModelUnavailable,
    QueueFull,
    RequestInvalid,
    StreamNotFound,
    Unauthorized,
)
from liveedge.media.livekit.sdp import sections
from liveedge.media.livekit.signal import LEFT, MAX_SECTIONS
from liveedge.service.ingest import LOST, Ingest
from liveedge.service.tokens import PublishTokens
from liveedge.testing.clock import FakeClock
from liveedge.testing.webrtc import FakeMediaSessions
from tests.livekit_clients import (
    ROOM,
    SECRET,
    FakeSocket,
    add_track,
    empty_offer,
    join_query,
    offer,
    offer_sdp,
    published_stream,
)
from tests.serving import until

OFFER = rtc.SessionDescription(type="offer", sdp=empty_offer(), id=3)
CAMERA = offer_sdp(("a0", "recvonly", ""), ("7", "sendonly", "cam"))


class World:
    """An ingest, one stream, and clients."""

    def __init__(self, stream, clock, **options):
        self.clock, self.stream = clock, stream
        self.tokens = PublishTokens(SECRET, clock=clock)
        self.sessions = FakeMediaSessions(max_sessions=options.pop("max_sessions", 64))
        numbers = itertools.count()
        self.ingest = Ingest(
            entrance=stream.entrance,
            tokens=self.tokens,
            sessions=self.sessions,
            clock=clock,
            new_id=lambda: str(next(numbers)),
            **options,
        )
        self.serving = []

    def call(self, socket=None, *, token=None, way="v1", query=None):
        socket = socket or FakeSocket()
        work = self.ingest.livekit(
            socket,
            token=self.tokens.make(ROOM, valid_s=300) if token is None else token,
            way=way,
            query=join_query() if query is None else query,
        )
        task = asyncio.create_task(work)
        self.serving.append(task)
        return socket, task

    async def client(self, **options):
        """A client that has joined."""
        socket, _ = self.call(**options)
        await socket.wait_for("join")
        return socket

    async def camera(self, **options):
        """A client that publishes a camera, whose media connection is up."""
        socket = await self.client(**options)
        socket.put(add_track("cam", codec="vp8"))
        socket.put(offer(CAMERA))
        await socket.wait_for("answer")
        session = self.sessions.newest
        session.connect()
        return socket, session

    async def settled(self):
        await self.clock.advance(0.001)

    async def closed(self, socket):
        await until(lambda: socket.closed is not None)


@asynccontextmanager
async def world(**options):
    clock = FakeClock()
    with published_stream(clock) as stream:
        it = World(stream, clock, **options)
        try:
            yield it
        finally:
            await it.ingest.close()
            await asyncio.gather(*it.serving, return_exceptions=True)
            assert it.ingest.sockets.used == 0
            assert it.ingest.n_publishers == 0
            assert it.sessions.n_open == 0
            assert clock.n_sleepers == 0


# ── coming in ──


async def test_a_client_is_welcomed_and_its_offer_answered_with_its_id():
    async with world() as it:
        socket = await it.client(query=join_query(publisher_offer=OFFER))
        answered = (await socket.wait_for("answer")).answer
        assert (answered.type, answered.id) == ("answer", 3)
        assert answered.sdp.count("m=") == 3
        assert socket.kinds() == ["join", "answer"]


async def test_the_welcome_holds_what_sdks_need():
    async with world() as it:
        join = (await it.client()).got("join")[0].join
        assert join.room.name == ROOM
        assert join.participant.sid.startswith("PA_")
        assert join.participant.identity.startswith("publisher-")
        assert join.participant.permission.can_publish
        assert not join.participant.permission.can_subscribe
        assert (join.ping_interval, join.ping_timeout) == (5, 15)
        assert not join.subscriber_primary
        assert join.fast_publish
        mimes = [codec.mime for codec in join.enabled_publish_codecs]
        assert mimes == ["video/VP8", "video/H264", "audio/opus"]


async def test_the_older_way_in_is_the_same_with_a_later_offer():
    async with world() as it:
        socket = await it.client(way="v0", query={"protocol": "17"})
        socket.put(offer(offer_sdp(("d", "", "")), 1))
        assert (await socket.wait_for("answer")).answer.id == 1


async def test_tracks_may_be_announced_at_the_door():
    async with world() as it:
        asked = add_track("cam").add_track
        socket = await it.client(query=join_query(add_track_requests=[asked]))
        published = (await socket.wait_for("track_published")).track_published
        assert published.cid == "cam"


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"token": ""}, Unauthorized, "no publish token"),
        ({"token": "x.y.z"}, Unauthorized, "no JSON Web Token"),
        ({"query": {}}, RequestInvalid, "join_request is missing"),
    ],
)
async def test_who_may_not_come_in_is_told_why_before_the_socket_is_accepted(options, error, text):
    async with world() as it:
        socket, task = it.call(**options)
        with pytest.raises(error, match=text):
            await task
        assert not socket.is_accepted
        assert it.sessions.opened == []
        assert it.ingest.counters[f"refused_{error.code}"] == 1


async def test_a_token_of_a_stream_that_is_gone_leads_nowhere():
    async with world() as it:
        it.stream.end()
        socket, task = it.call()
        with pytest.raises(StreamNotFound):
            await task
        assert not socket.is_accepted


async def test_sockets_are_bounded():
    async with world(max_sockets=2) as it:
        first = await it.client()
        await it.client()
        _, refused = it.call()
        with pytest.raises(QueueFull, match="2 of 2 signalling connections"):
            await refused
        await it.closed(first)  # it was replaced
        await it.client()


async def test_a_server_without_room_for_media_refuses_before_the_socket_is_accepted():
    async with world(max_sessions=0) as it:
        socket, task = it.call()
        with pytest.raises(QueueFull, match="its limit"):
            await task
        assert not socket.is_accepted
        assert it.stream.health[0] == "waiting_for_publisher"
        assert "no room" in it.stream.health[1]


# ── publishing ──


async def test_a_camera_is_published_and_its_frames_reach_the_stream():
    async with world() as it:
        socket, session = await it.camera()
        published = socket.got("track_published")[0].track_published
        assert (published.cid, published.track.width) == ("cam", 640)
        assert "a=recvonly" in socket.got("answer")[0].answer.sdp
        assert session.deliver() is not None
        assert len(it.stream.sink.pixels) == 1


async def test_the_wanted_codec_is_put_first_for_the_answer():
    async with world() as it:
        socket = await it.client()
        socket.put(add_track("cam", codec="h264"))
        both = offer_sdp(("7", "sendonly", "cam"), codecs="96 VP8,97 rtx,102 H264")
        socket.put(offer(both))
        await socket.wait_for("answer")
        assert "SAVPF 102 96 97" in it.sessions.newest.offers[0]


async def test_offers_that_come_at_once_are_answered_one_by_one():
    async with world() as it:
        socket = await it.client()
        session = it.sessions.newest
        session.may_answer.clear()
        for offer_id in (5, 6, 7):
            socket.put(offer(CAMERA, offer_id))
        await it.settled()
        assert len(session.offers) == 1
        session.may_answer.set()
        await socket.wait_for("answer", n=3)
        assert [message.answer.id for message in socket.got("answer")] == [5, 6, 7]


async def test_candidates_reach_the_media_connection_and_nonsense_does_not():
    async with world() as it:
        socket = await it.client()
        good = (
            '{"candidate":"candidate:1 1 udp 1 10.0.0.1 5 typ host","sdpMid":"0","sdpMLineIndex":0}'
        )
        nonsense = ("{", "[]", '{"candidate": 7}', '{"candidate": ""}', "x" * 9000, "[" * 2000)
        for text in (good, *nonsense):
            socket.put(rtc.SignalRequest(trickle=rtc.TrickleRequest(candidateInit=text)))
        theirs = rtc.TrickleRequest(candidateInit=good, target=rtc.SUBSCRIBER)
        socket.put(rtc.SignalRequest(trickle=theirs))
        socket.put(rtc.SignalRequest(ping=1))
        await socket.wait_for("pong")
        taken = it.sessions.newest.candidates
        assert taken == [("candidate:1 1 udp 1 10.0.0.1 5 typ host", "0", 0)]


async def test_both_kinds_of_ping_are_answered():
    async with world() as it:
        socket = await it.client()
        socket.put(rtc.SignalRequest(ping=1))
        socket.put(rtc.SignalRequest(ping_req=rtc.Ping(timestamp=77, rtt=3)))
        assert (await socket.wait_for("pong")).pong == it.clock.wall_ms()
        pong = (await socket.wait_for("pong_resp")).pong_resp
        assert (pong.last_ping_timestamp, pong.timestamp) == (77, it.clock.wall_ms())


async def test_muting_the_camera_is_passed_on():
    async with world() as it:
        socket, session = await it.camera()
        sid = socket.got("track_published")[0].track_published.track.sid
        for n, muted in enumerate((True, True, False)):
            socket.put(rtc.SignalRequest(mute=rtc.MuteTrackRequest(sid=sid, muted=muted)))
            socket.put(rtc.SignalRequest(ping=1))
            await socket.wait_for("pong", n=n + 1)
            assert session.is_muted is muted
        assert it.stream.health == ("stalled", "muted by the publisher")


async def test_muting_the_microphone_leaves_the_picture_alone():
    async with world() as it:
        socket, session = await it.camera()
        socket.put(add_track("mic", type=models.AUDIO))
        sid = (await socket.wait_for("track_published", n=2)).track_published.track.sid
        socket.put(rtc.SignalRequest(mute=rtc.MuteTrackRequest(sid=sid, muted=True)))
        socket.put(rtc.SignalRequest(ping=1))
        await socket.wait_for("pong")
        assert not session.is_muted


async def test_a_second_video_takes_over_and_the_first_is_told_to_stop():
    async with world() as it:
        socket, session = await it.camera()
        socket.put(add_track("screen", source=models.SCREEN_SHARE))
        socket.put(offer(offer_sdp(("7", "sendonly", "cam"), ("8", "sendonly", "screen")), 2))
        await socket.wait_for("answer", n=2)
        sends = {section.mid: section.sends for section in sections(session.offers[-1])}
        assert sends == {"7": False, "8": True}
        assert it.ingest.counters["tracks_ignored"] == 1


async def test_a_video_that_ends_is_said_and_may_come_back_many_times():
    async with world() as it:
        socket, session = await it.camera()
        for i in range(20):
            socket.put(offer(offer_sdp(("7", "inactive", "cam")), 10 + i))
            await socket.wait_for("answer", n=2 * i + 2)
            assert it.stream.health[1] == "connected; the publisher sends no video"
            socket.put(add_track("cam"))
            socket.put(offer(offer_sdp(("7", "sendonly", "cam")), 100 + i))
            await socket.wait_for("answer", n=2 * i + 3)
        assert len(socket.got("track_published")) == 21
        assert len(it.sessions.opened) == 1
        assert session.deliver() is not None


async def test_messages_for_subscribers_and_from_the_future_are_tolerated():
    async with world() as it:
        socket = await it.client()
        socket.put(rtc.SignalRequest(subscription=rtc.UpdateSubscription(track_sids=["x"])))
        socket.put(rtc.SignalRequest(sync_state=rtc.SyncState()))
        socket.put(rtc.SignalRequest(subscription_permission=rtc.SubscriptionPermission()))
        socket.put(rtc.SignalRequest(track_setting=rtc.UpdateTrackSettings()))
        socket.put(b"\xfa\x3f\x02hi")  # field 1023
        socket.put(b"")
        socket.put(rtc.SignalRequest(ping=1))
        await socket.wait_for("pong")
        assert socket.kinds() == ["join", "pong"]


async def test_what_a_publisher_may_not_do_is_answered():
    async with world() as it:
        socket = await it.client()
        metadata = rtc.UpdateParticipantMetadata(metadata="x", request_id=9)
        socket.put(rtc.SignalRequest(update_metadata=metadata))
        refused = (await socket.wait_for("request_response")).request_response
        assert (refused.request_id, refused.reason) == (9, rtc.RequestResponse.NOT_ALLOWED)
        data_track = rtc.PublishDataTrackRequest(pub_handle=4)
        socket.put(rtc.SignalRequest(publish_data_track_request=data_track))
        refused = (await socket.wait_for("request_response", n=2)).request_response
        assert refused.publish_data_track.pub_handle == 4


# ── codecs that cannot be taken ──


@pytest.mark.parametrize("codec", ["vp9", "av1", "h265"])
async def test_a_publisher_that_insists_on_another_codec_is_told_and_sent_away(codec):
    async with world() as it:
        socket = await it.client()
        socket.put(add_track("cam", codec=codec))
        refused = (await socket.wait_for("request_response")).request_response
        assert refused.reason == rtc.RequestResponse.UNSUPPORTED_TYPE
        assert refused.add_track.cid == "cam"
        assert codec.upper() in refused.message
        left = (await socket.wait_for("leave")).leave
        assert left.action == rtc.LeaveRequest.DISCONNECT
        assert it.stream.health[0] == "waiting_for_publisher"
        assert codec.upper() in it.stream.health[1]
        assert socket.got("track_published") == []


async def test_the_stream_says_why_before_the_client_is_told():
    """Once told, a client closes its media, and `the publisher closed the connection` says less."""
    async with world() as it:
        socket = await it.client()
        said: list[tuple[str | None, str]] = []
        socket.on_sent = lambda message: said.append(
            (message.WhichOneof("message"), it.stream.health[1])
        )
        socket.put(add_track("cam", codec="av1"))
        await socket.wait_for("leave")
        assert "AV1" in dict(said)["leave"]
        said.clear()
    async with world() as it:
        socket = await it.client()
        socket.on_sent = lambda message: said.append(
            (message.WhichOneof("message"), it.stream.health[1])
        )
        socket.put(add_track("cam"))
        socket.put(offer(offer_sdp(("7", "sendonly", "cam"), codecs="98 VP9,99 rtx")))
        await socket.wait_for("leave")
        assert "VP9" in dict(said)["leave"]


async def test_an_offer_of_another_codec_alone_is_told_too():
    async with world() as it:
        socket = await it.client()
        socket.put(add_track("cam"))
        socket.put(offer(offer_sdp(("7", "sendonly", "cam"), codecs="98 VP9,99 rtx")))
        refused = (await socket.wait_for("request_response")).request_response
        assert "VP9" in refused.message
        await socket.wait_for("leave")
        assert "VP9" in it.stream.health[1]


async def test_a_second_track_that_cannot_be_taken_does_not_end_the_first():
    async with world() as it:
        socket, session = await it.camera()
        socket.put(add_track("screen", codec="av1"))
        await socket.wait_for("request_response")
        assert socket.got("leave") == []
        assert session.deliver() is not None


async def test_an_offer_that_is_no_sdp_ends_the_publisher():
    async with world() as it:
        socket = await it.client()
        socket.put(offer("hello"))
        await socket.wait_for("leave")
        assert "not SDP" in it.stream.health[1]


async def test_an_offer_that_has_grown_without_end_makes_the_client_start_afresh():
    async with world() as it:
        socket = await it.client()
        many = [(str(mid), "inactive", "") for mid in range(MAX_SECTIONS + 1)]
        socket.put(offer(offer_sdp(*many)))
        assert (await socket.wait_for("leave")).leave.action == rtc.LeaveRequest.RECONNECT


# ── ends ──


async def test_a_client_that_leaves_is_gone_at_once():
    async with world() as it:
        socket, session = await it.camera()
        reason = rtc.LeaveRequest(reason=models.CLIENT_INITIATED)
        socket.put(rtc.SignalRequest(leave=reason))
        await it.closed(socket)
        assert session.ended == LEFT
        assert it.stream.health == ("waiting_for_publisher", LEFT)
        assert it.ingest.n_publishers == 0


async def test_the_newest_publisher_wins_and_the_older_is_told_to_stay_out():
    async with world() as it:
        first, old = await it.camera()
        _, new = await it.camera()
        left = (await first.wait_for("leave")).leave
        assert (left.action, left.reason) == (
            rtc.LeaveRequest.DISCONNECT,
            models.DUPLICATE_IDENTITY,
        )
        assert old.deliver() is None
        assert new.deliver() is not None
        await it.closed(first)
        assert it.ingest.n_publishers == 1


async def test_the_end_of_the_stream_is_told():
    async with world() as it:
        socket, session = await it.camera()
        it.stream.end()
        left = (await socket.wait_for("leave")).leave
        assert (left.action, left.reason) == (rtc.LeaveRequest.DISCONNECT, models.ROOM_DELETED)
        await it.closed(socket)
        assert session.ended is not None


async def test_a_media_connection_that_fails_makes_the_client_start_afresh():
    async with world() as it:
        socket, session = await it.camera()
        session.fail("ICE failed: 1 pair tried")
        left = (await socket.wait_for("leave")).leave
        assert (left.action, left.reason) == (rtc.LeaveRequest.RECONNECT, models.MEDIA_FAILURE)
        assert it.stream.health == ("waiting_for_publisher", "ICE failed: 1 pair tried")


async def test_a_server_that_stops_says_so():
    async with world() as it:
        socket, session = await it.camera()
        await it.ingest.close()
        left = (await socket.wait_for("leave")).leave
        assert (left.action, left.reason) == (rtc.LeaveRequest.RECONNECT, models.SERVER_SHUTDOWN)
        assert session.ended is not None
        late, task = it.call()
        with pytest.raises(ModelUnavailable, match="is stopping"):
            await task
        assert not late.is_accepted
        with pytest.raises(ModelUnavailable):
            await it.ingest.whip_offer(ROOM, it.tokens.make(ROOM, valid_s=300), CAMERA)


async def test_a_client_that_floods_is_dropped_and_counted():
    async with world() as it:
        socket = await it.client()
        for _ in range(300):
            socket.put(rtc.SignalRequest(subscription=rtc.UpdateSubscription()))
        await it.closed(socket)
        assert socket.closed == (1008, "too many messages")
        await until(lambda: it.ingest.counters["socket_flood"] == 1)


# ── sockets that drop ──


async def test_the_media_goes_on_without_its_socket_while_packets_come():
    async with world() as it:
        socket, session = await it.camera()
        socket.put(None)
        await it.clock.advance(60)
        assert session.deliver() is not None
        assert it.ingest.n_publishers == 1
        session.connect(seconds_since_packet=10.0)
        await it.clock.advance(2)
        assert session.ended == LOST
        assert it.stream.health == ("waiting_for_publisher", LOST)


async def test_a_socket_that_drops_before_there_is_media_ends_the_publisher():
    async with world() as it:
        socket = await it.client()
        socket.put(None)
        await until(lambda: it.sessions.newest.ended == LOST)


async def test_a_silent_socket_is_given_up_but_not_its_media():
    async with world() as it:
        socket, session = await it.camera()
        await it.clock.advance(17)
        assert socket.closed == (1001, "no message for 15 s")
        assert session.ended is None


async def test_a_client_takes_up_its_media_over_another_socket():
    async with world() as it:
        socket, session = await it.camera()
        sid = socket.got("join")[0].join.participant.sid
        socket.put(None)
        await it.clock.advance(3)
        again, _ = it.call(query=join_query(reconnect=True, participant_sid=sid))
        await again.wait_for("reconnect")
        update = (await again.wait_for("update")).update
        assert [p.sid for p in update.participants] == [sid]
        assert [t.sid[:4] for t in update.participants[0].tracks] == ["TR_V"]
        again.put(offer(CAMERA, 9))
        assert (await again.wait_for("answer")).answer.id == 9
        assert session.deliver() is not None
        assert len(it.sessions.opened) == 1
        assert it.ingest.counters["resumed"] == 1


async def test_a_client_that_comes_and_goes_all_the_time_is_watched_once():
    async with world() as it:
        socket, _ = await it.camera()
        sid = socket.got("join")[0].join.participant.sid
        for _ in range(20):
            socket.put(None)
            await until(lambda: it.clock.n_sleepers > 0)
            await it.settled()
            socket, _ = it.call(query=join_query(reconnect=True, participant_sid=sid))
            await socket.wait_for("reconnect")
        socket.put(None)
        await it.settled()
        assert it.clock.n_sleepers == 1
        assert it.ingest.n_publishers == 1


async def test_a_token_that_was_renewed_without_a_socket_is_given_at_the_next_one():
    async with world() as it:
        socket, _ = await it.camera()
        sid = socket.got("join")[0].join.participant.sid
        socket.put(None)
        await it.settled()
        it.ingest.refresh(ROOM, "newest")
        again, _ = it.call(query=join_query(reconnect=True, participant_sid=sid))
        assert (await again.wait_for("refresh_token")).refresh_token == "newest"


async def test_the_older_way_resumes_too():
    async with world() as it:
        socket, _ = await it.camera(way="v0", query={})
        sid = socket.got("join")[0].join.participant.sid
        again, _ = it.call(way="v0", query={"reconnect": "1", "sid": sid})
        await again.wait_for("reconnect")
        await it.closed(socket)  # a publisher has one socket
        assert it.ingest.n_publishers == 1


@pytest.mark.parametrize("quiet_s", [10.0, None])
async def test_without_media_a_client_has_to_start_afresh(quiet_s):
    async with world() as it:
        socket, session = await it.camera()
        session.connect(seconds_since_packet=quiet_s)
        sid = socket.got("join")[0].join.participant.sid
        again, _ = it.call(query=join_query(reconnect=True, participant_sid=sid))
        left = (await again.wait_for("leave")).leave
        assert (left.action, left.reason) == (rtc.LeaveRequest.RECONNECT, models.STATE_MISMATCH)
        assert again.kinds() == ["leave"]
        await it.closed(again)


async def test_nobody_takes_up_the_media_of_somebody_else():
    async with world() as it:
        socket, session = await it.camera()
        sid = socket.got("join")[0].join.participant.sid
        again, task = it.call(
            token=it.tokens.make("another-stream", valid_s=300),
            query=join_query(reconnect=True, participant_sid=sid),
        )
        left = (await again.wait_for("leave")).leave
        assert (left.action, left.reason) == (rtc.LeaveRequest.DISCONNECT, models.ROOM_DELETED)
        await task
        assert session.ended is None
        assert socket.closed is None


async def test_an_answer_outlives_the_socket_that_asked_for_it():
    async with world() as it:
        socket, session = await it.camera()
        sid = socket.got("join")[0].join.participant.sid
        session.may_answer.clear()
        socket.put(offer(CAMERA, 2))
        await it.settled()
        socket.put(None)
        again, _ = it.call(query=join_query(reconnect=True, participant_sid=sid))
        await again.wait_for("reconnect")
        again.put(offer(CAMERA, 3))
        await it.settled()
        session.may_answer.set()  # the fake fails if both are answered at once
        await again.wait_for("answer", n=2)
        assert [message.answer.id for message in again.got("answer")] == [2, 3]


# ── tokens ──


async def test_a_connected_client_gets_the_newest_token():
    async with world() as it:
        socket = await it.client()
        it.ingest.refresh("another", "not for you")
        it.ingest.refresh(ROOM, "newest")
        assert (await socket.wait_for("refresh_token")).refresh_token == "newest"
        assert len(socket.got("refresh_token")) == 1


async def test_a_token_can_be_checked_without_coming_in():
    async with world() as it:
        token = it.tokens.make(ROOM, valid_s=300)
        assert it.ingest.validate(token).stream_id == ROOM
        it.stream.end()
        with pytest.raises(StreamNotFound):
            it.ingest.validate(token)
        with pytest.raises(Unauthorized):
            it.ingest.validate("x")


# ── WHIP ──


async def test_a_whip_client_is_connected_and_leaves():
    async with world() as it:
        token = it.tokens.make(ROOM, valid_s=300)
        made = await it.ingest.whip_offer(ROOM, token, CAMERA)
        assert made.answer.startswith("v=0")
        assert it.sessions.newest.deliver() is not None
        assert it.ingest.whip_stream(made.id) == ROOM
        await it.ingest.whip_delete(made.id)
        assert it.stream.health == ("waiting_for_publisher", LEFT)
        with pytest.raises(StreamNotFound, match="no such WHIP resource"):
            await it.ingest.whip_delete(made.id)


async def test_a_whip_client_trickles():
    async with world() as it:
        made = await it.ingest.whip_offer(ROOM, it.tokens.make(ROOM, valid_s=300), CAMERA)
        fragment = (
            "a=ice-ufrag:x\r\nm=video 9 x 0\r\na=mid:7\r\n"
            "a=candidate:1 1 udp 1 10.0.0.1 5 typ host\r\n"
            "a=candidate:2 1 tcp 1 10.0.0.1 9 typ host\r\n"
            "a=candidate:3 1 udp 1 abc.local 5 typ host\r\na=end-of-candidates\r\n"
        )
        await it.ingest.whip_patch(made.id, fragment)
        taken = it.sessions.newest.candidates
        assert taken == [("candidate:1 1 udp 1 10.0.0.1 5 typ host", "7", None)]
        with pytest.raises(RequestInvalid, match="65 candidates at once, at most 64"):
            await it.ingest.whip_patch(made.id, "a=candidate:1\r\n" * 65)
        with pytest.raises(StreamNotFound):
            await it.ingest.whip_patch("another", fragment)


@pytest.mark.parametrize(
    ("sdp", "text"),
    [
        ("hello", "is not SDP"),
        (empty_offer(), "sends no video"),
        (offer_sdp(("7", "sendonly", "cam"), codecs="98 VP9"), "vp9"),
        ("v=0\n" + "m=\n" * 257, "257 media sections, at most 256"),
    ],
)
async def test_a_whip_offer_that_cannot_be_answered_is_refused_with_the_reason(sdp, text):
    async with world() as it:
        with pytest.raises(RequestInvalid, match=text):
            await it.ingest.whip_offer(ROOM, it.tokens.make(ROOM, valid_s=300), sdp)
        assert it.ingest.n_publishers == 0


async def test_a_whip_token_opens_no_other_stream():
    async with world() as it:
        with pytest.raises(Unauthorized, match="is for stream another"):
            await it.ingest.whip_offer(ROOM, it.tokens.make("another", valid_s=300), CAMERA)


async def test_whip_and_livekit_replace_each_other():
    async with world() as it:
        token = it.tokens.make(ROOM, valid_s=300)
        socket, _ = await it.camera()
        made = await it.ingest.whip_offer(ROOM, token, CAMERA)
        assert (await socket.wait_for("leave")).leave.reason == models.DUPLICATE_IDENTITY
        whip = it.sessions.newest
        _, camera = await it.camera()
        await until(lambda: whip.ended is not None)
        assert it.ingest.whip_stream(made.id) is None
        assert camera.deliver() is not None


async def test_whoever_is_replaced_while_coming_in_is_told():
    async with world() as it:
        it.sessions.may_open.clear()
        first, _ = it.call()
        second, _ = it.call()
        await it.settled()
        it.sessions.may_open.set()
        left = (await first.wait_for("leave")).leave
        assert left.reason == models.DUPLICATE_IDENTITY
        assert first.kinds() == ["leave"]
        await second.wait_for("join")
        await until(lambda: it.ingest.n_publishers == 1)


async def test_whip_clients_that_come_at_once_are_answered_one_after_the_other():
    async with world() as it:
        it.sessions.may_open.clear()
        token = it.tokens.make(ROOM, valid_s=300)
        first = asyncio.create_task(it.ingest.whip_offer(ROOM, token, CAMERA))
        await it.settled()
        second = asyncio.create_task(it.ingest.whip_offer(ROOM, token, CAMERA))
        await it.settled()
        with pytest.raises(QueueFull, match="2 offers for this stream"):
            await it.ingest.whip_offer(ROOM, token, CAMERA)
        it.sessions.may_open.set()
        assert (await first).answer.startswith("v=0")
        assert it.ingest.whip_stream((await second).id) == ROOM
        await until(lambda: it.ingest.n_publishers == 1)


async def test_whoever_publishes_goes_on_until_the_next_offer_is_answered():
    async with world() as it:
        _, camera = await it.camera()
        newcomer = await it.client()  # joins, and does not offer anything yet
        assert camera.deliver() is not None
        it.sessions.newest.may_answer.clear()
        newcomer.put(rtc.SignalRequest(offer=rtc.SessionDescription(type="offer", sdp=CAMERA)))
        await it.settled()
        assert camera.deliver() is not None
        assert it.sessions.newest.deliver() is None
        it.sessions.newest.may_answer.set()
        await newcomer.wait_for("answer")
        assert camera.deliver() is None
        assert it.sessions.newest.deliver() is not None


async def test_a_newcomer_that_finds_no_room_ends_nobody():
    async with world(max_sessions=1) as it:
        _, camera = await it.camera()
        token = it.tokens.make(ROOM, valid_s=300)
        with pytest.raises(QueueFull):
            await it.ingest.whip_offer(ROOM, token, CAMERA)
        _, refused = it.call()
        with pytest.raises(QueueFull):
            await refused
        assert camera.deliver() is not None
        assert camera.ended is None
