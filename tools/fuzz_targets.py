"""What `fuzz.py` feeds: examples, words of each format, what may be raised, and what must hold.

A check that fails raises AssertionError, which no target declares.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from urllib.parse import quote

from livekit.protocol import models, rtc

from liveedge.api.body import BodyInvalid, parse
from liveedge.api.chat import to_question
from liveedge.api.encode import Head, text_chunk, tool_call_chunk
from liveedge.api.errors import error_object
from liveedge.api.schema import ChatBody
from liveedge.api.sse import DONE, PING, event
from liveedge.api.whip import WhipRefused, _sdp_text
from liveedge.core.errors import (
    LiveEdgeError,
    MediaInvalid,
    MediaTooLarge,
    ParameterUnsupported,
    QueryParamInvalid,
    RequestInvalid,
    StreamUrlInvalid,
)
from liveedge.frames.refs import ImageRef, SegmentRef, parse_ref
from liveedge.media.data_url import parse_data_url
from liveedge.media.livekit import messages
from liveedge.media.livekit.join import MAX_PACKED_CHARS, parse_join
from liveedge.media.livekit.messages import MessageInvalid
from liveedge.media.livekit.sdp import narrowed, sections
from liveedge.media.livekit.signal import _candidate
from liveedge.media.livekit.tracks import MAX_TRACKS, TrackRefused, Tracks
from liveedge.media.rtsp_sdp import control_url, read_description
from liveedge.media.rtsp_units import H264Assembler, H265Assembler
from liveedge.media.rtsp_wire import Inbox, NotRtsp
from liveedge.media.webrtc.answer import LocalTransport, decide, write_answer
from liveedge.media.webrtc.sdp import read_candidate, read_offer
from liveedge.media.webrtc.session import OfferInvalid
from liveedge.service.keys import OPEN
from liveedge.service.parts import parse_turns
from liveedge.service.question import TextDelta, ToolCallDelta

MAX_DATA_BYTES = 4096
STREAM_ID = "5b3f6f64-6f0b-4f0e-8d6f-000000000001"


@dataclass(frozen=True, slots=True)
class Target:
    """One parser."""

    name: str
    what: str
    corpus: Sequence[bytes]
    words: Sequence[bytes]
    declared: tuple[type[Exception], ...]
    check: Callable[[bytes], None] = field(repr=False)


def _text(data: bytes) -> str:
    """Any bytes as text; those that are no UTF-8 become lone surrogates, as JSON can hold them."""
    return data.decode("utf-8", "surrogateescape")


def _require(kept: bool, promise: str) -> None:  # noqa: FBT001  an assertion in an except block
    if not kept:
        raise AssertionError(promise)


# ── ovs:// references ──


def refs() -> Target:
    """The grammar of section 3 of the API."""
    base = f"ovs://streams/{STREAM_ID}?"
    queries = [
        "frame_index=-1",
        "frame_index=12&max_pixels=90000",
        "timestamp_ms=1200&tolerance_ms=50&direction=forward",
        "offset_ms=-500&max_age_ms=2000",
        "start_offset_ms=-10000&max_fps=2",
        "start_frame_index=3&end_timestamp_ms=900&max_fps=5.0&edge=grid",
        "start_timestamp_ms=0&end_offset_ms=0&max_fps=1e0&edge=newest&max_age_ms=100",
        "start%5Foffset_ms=%2D10000&max_fps=.5",
    ]
    words = b"frame_index= timestamp_ms= offset_ms= start_ end_ max_fps= max_age_ms= &".split()
    words += b"tolerance_ms= direction= backward edge= ovs:// streams %00 %ff %2 1e999 -0".split()
    words += [
        b"9" * 15,
        b"9" * 16,
        "٣".encode(),
        b"\xed\xa0\x80",
        b"1/2",
        b"nan",
        b"inf",
        b"0" * 70,
    ]
    return Target(
        "refs",
        "ovs:// references",
        [*((base + query).encode() for query in queries), *(f"?{q}".encode() for q in queries)],
        words,
        (StreamUrlInvalid, QueryParamInvalid),
        _check_ref,
    )


def _check_ref(data: bytes) -> None:
    url = _text(data)
    if url.startswith("?"):  # most changes of a whole URL spoil its head, and the rest is not read
        url = f"ovs://streams/{STREAM_ID}{url}"
    refusals: list[LiveEdgeError] = []
    for kind in ("image", "video"):
        try:
            ref = parse_ref(url, kind=kind)
        except (StreamUrlInvalid, QueryParamInvalid) as error:
            refusals.append(error)
            continue
        assert parse_ref(written(ref), kind=kind) == ref, "what is written reads back"
    for refusal in refusals:
        assert len(refusal.message) < 700, "a message may not repeat a whole URL"
    if len(refusals) == 2:
        raise refusals[0]


def written(ref: ImageRef | SegmentRef) -> str:
    """A reference as a URL."""
    query: dict[str, object] = {"max_age_ms": ref.max_age_ms, "max_pixels": ref.max_pixels}
    if isinstance(ref, ImageRef):
        query |= {ref.anchor.kind: ref.anchor.value, "tolerance_ms": ref.tolerance_ms}
        query["direction"] = ref.direction
    else:
        query |= {f"start_{ref.start.kind}": ref.start.value, "edge": ref.edge}
        if ref.end is not None:
            query[f"end_{ref.end.kind}"] = ref.end.value
        query["max_fps"] = _decimal(ref.max_fps)
    pieces = [f"{key}={value}" for key, value in query.items() if value is not None]
    return f"ovs://streams/{ref.stream_id}?{'&'.join(pieces)}"


def _decimal(value: Fraction) -> str:
    """Exactly, without a point: digits and an exponent."""
    digits, exponent = value.numerator, 0
    denominator = value.denominator
    while denominator % 10 == 0:
        denominator, exponent = denominator // 10, exponent - 1
    while denominator > 1:  # of twos and fives only
        digits, exponent = digits * (10 // _factor(denominator)), exponent - 1
        denominator //= _factor(denominator)
    while digits % 10 == 0:
        digits, exponent = digits // 10, exponent + 1
    return f"{digits}e{exponent}"


def _factor(denominator: int) -> int:
    return 2 if denominator % 2 == 0 else 5


# ── server-sent events ──


def sse() -> Target:
    """Chunks and errors to events, read by a reader of its own."""
    texts = [
        "The door is open.",
        "data: [DONE]\n\ndata: {}",
        "\r\n\r\n: ping\nevent: x\nid: 1\nretry: 5\n\n",
        "line\u2028separator\u2029next\x85\x0b\x0c\x1c\x00",
        "\ufeff \U0001f6aa grün \u202e \ud7ff \ue000 \uffff",
        '{"a": "b\\u0000\\ud800"}\\',
    ]
    words = [
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b"data:",
        b"data: [DONE]",
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
    ]
    words += [
        b"\xe2\x80\xa8",
        b"\xc2\x85",
        b"\x00",
        b'"',
        b"\\",
        b"\\u0000",
        b": ping",
        b"event: error",
    ]
    words += [b"\xf0\x9f\x9a\xaa", b"\xff", b"</script>"]
    corpus = [text.encode("utf-8", "surrogatepass") for text in texts]
    return Target("sse", "server-sent events, written and read back", corpus, words, (), _check_sse)


HEAD = Head(id="chatcmpl-1", created_s=1_700_000_000, model="liveedge/workcell-tiny")


def _check_sse(data: bytes) -> None:
    text = _text(data)
    half = len(text) // 2
    sent = [
        text_chunk(HEAD, TextDelta(choice=0, text=text), logprobs=False),
        tool_call_chunk(
            HEAD, ToolCallDelta(choice=0, index=0, id="c", name=text[:half], arguments=text[half:])
        ),
        {"error": error_object(MediaInvalid(text))},
        {text[:20]: [text[20:40], {"nested": text}]},
    ]
    stream = b"".join((event(sent[0]), PING, *map(event, sent[1:]), DONE))
    found = read_events(stream)
    assert found[-1] == "[DONE]", "the end mark is the last event"
    assert [json.loads(one) for one in found[:-1]] == [_plain(one) for one in sent]


def _plain(value: object) -> object:
    """Without lone surrogates, which UTF-8 cannot carry."""
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(text.encode("utf-8", "replace"))


_LINE_END = re.compile("\r\n|\r|\n")


def read_events(stream: bytes) -> list[str]:
    """The data of every event, as the HTML standard reads them, and no field but what is ours."""
    lines = _LINE_END.split(stream.decode("utf-8", "strict").removeprefix("\ufeff"))
    assert lines[-1] == "", "the last line is ended"
    events: list[str] = []
    held: list[str] = []
    for line in lines[:-1]:
        if not line:
            if held:
                events.append("\n".join(held))
            held = []
            continue
        name, colon, value = line.partition(":")
        assert colon, "a line without a colon is not ours"
        assert name in ("data", ""), f"the field {name[:20]!r} is not ours"
        if name == "data":
            held.append(value.removeprefix(" "))
    assert not held, "the last event is ended"
    return events


# ── data: URLs and bodies ──


def data_url() -> Target:
    """The URL, and the body around it."""
    raw = bytes(range(256)) * 2
    plain = base64.b64encode(raw)
    urls = [
        b"data:image/png;base64," + plain,
        b"DATA:image/png;charset=utf-8;BASE64," + base64.encodebytes(raw),
        b"data:;base64," + base64.urlsafe_b64encode(raw).rstrip(b"="),
        b"data:image/jpeg;base64," + plain.replace(b"+", b"%2B").replace(b"/", b"%2f"),
        b"data:image/png," + quote(raw).encode(),
    ]
    bodies = [json.dumps(body).encode() for body in _bodies(urls[0].decode())]
    words = b"data: ;base64, , = == %00 %2 %zz -_ +/ \r\n \\u0000 \\ud800 http:// https:// ovs://".split()
    words += [
        b'"type":"image_url"',
        b'"video_url":',
        b'{"url":',
        b"null",
        b"[[[[[[",
        b"1e999",
        b"NaN",
    ]
    words += [
        b'"role":"tool"',
        b'"content":[]',
        b"-1",
        b"9" * 40,
        b'"n":9',
        b"\xff",
        b"\xed\xa0\x80",
    ]
    return Target(
        "data-url",
        "data: URLs, and the bodies of questions around them",
        [*urls, *bodies],
        words,
        (MediaInvalid, MediaTooLarge, BodyInvalid, StreamUrlInvalid, QueryParamInvalid),
        _check_body,
    )


def _bodies(url: str) -> list[object]:
    image = {"type": "image_url", "image_url": {"url": url, "detail": "auto"}}
    video = {
        "type": "video_url",
        "video_url": {"url": f"ovs://streams/{STREAM_ID}?start_offset_ms=-9"},
    }
    text = {"type": "text", "text": "Is the door open?"}
    plain = {"model": "m/m", "messages": [{"role": "user", "content": "hi"}]}
    full = {
        "model": "m/m",
        "messages": [
            {"role": "system", "content": [text]},
            {"role": "user", "content": [image, video, text]},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function"}]},
            {"role": "tool", "content": "42", "tool_call_id": "c"},
        ],
        "temperature": 0.5,
        "max_tokens": 5,
        "stop": ["a", "b"],
        "n": 2,
        "logprobs": True,
        "top_logprobs": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    }
    return [plain, full, {**plain, "structured_outputs": {"json": "{}"}, "seed": -1, "min_p": 0.1}]


def _check_body(data: bytes) -> None:
    if data.lstrip()[:1] != b"{":
        _check_data_url(_text(data))
        return
    body = parse(data, ChatBody)
    try:
        question = to_question(
            body, caller=OPEN, request_id="r", region=None, default_max_tokens=16
        )
    except (ParameterUnsupported, RequestInvalid) as error:  # forms and tools that are none
        raise MediaInvalid(error.message) from error
    for turn in parse_turns(question.turns):
        for part in turn:
            url = getattr(part, "url", None)
            if isinstance(url, str) and url.lstrip()[:5].lower() == "data:":
                _check_data_url(url)


def _check_data_url(url: str) -> None:
    try:
        found = parse_data_url(url, max_bytes=MAX_DATA_BYTES, what="the picture")
    except (MediaInvalid, MediaTooLarge) as error:
        _require(len(error.message) < 200, "a message may not repeat the data")
        raise
    assert 0 < len(found) <= MAX_DATA_BYTES
    again = f"data:;base64,{base64.b64encode(found).decode()}"
    assert parse_data_url(again, max_bytes=MAX_DATA_BYTES, what="the picture") == found


# ── LiveKit signalling ──


def livekit() -> Target:
    """Requests as their bytes, and what stands in the URL."""
    offer = rtc.SessionDescription(type="offer", sdp=OFFER, id=3)
    track = rtc.AddTrackRequest(
        cid="cam",
        name="camera",
        type=models.VIDEO,
        width=640,
        height=480,
        source=models.CAMERA,
        simulcast_codecs=[rtc.SimulcastCodec(codec="video/vp8", cid="cam")],
        layers=[models.VideoLayer(width=320, height=240)],
    )
    candidate = json.dumps(
        {"candidate": CANDIDATE, "sdpMid": "0", "sdpMLineIndex": 0, "usernameFragment": "u"}
    )
    requests = [
        rtc.SignalRequest(offer=offer),
        rtc.SignalRequest(add_track=track),
        rtc.SignalRequest(
            trickle=rtc.TrickleRequest(candidateInit=candidate, target=rtc.PUBLISHER)
        ),
        rtc.SignalRequest(mute=rtc.MuteTrackRequest(sid="TR_V1", muted=True)),
        rtc.SignalRequest(ping=1_700_000_000_000),
        rtc.SignalRequest(ping_req=rtc.Ping(timestamp=5, rtt=7)),
        rtc.SignalRequest(leave=rtc.LeaveRequest()),
        rtc.SignalRequest(subscription=rtc.UpdateSubscription(track_sids=["TR_V1"])),
    ]
    join = rtc.JoinRequest(publisher_offer=offer, add_track_requests=[track], metadata="m")
    wrapped = rtc.WrappedJoinRequest(join_request=join.SerializeToString())
    packed = rtc.WrappedJoinRequest(
        compression=rtc.WrappedJoinRequest.GZIP,
        join_request=gzip.compress(join.SerializeToString()),
    )
    words = [b"\x0a\x00", b"\x12\xff\xff\xff\xff\x0f", b"\x08\x80\x80\x80\x80\x10", b"\xff" * 10]
    words += [
        b"m=video 9 x 96\r\n",
        b"a=mid:7\r\n",
        b"a=sendonly\r\n",
        b"a=rtpmap:96 VP8/90000\r\n",
    ]
    words += [b'{"candidate":', b"[" * 200, b"\x1f\x8b\x08", b"\x00", b"null", b"video/av1"]
    texts = [b"offer:" + OFFER.encode(), b"trickle:" + candidate.encode(), b"track:video/vp8"]
    return Target(
        "livekit",
        "LiveKit signalling: requests, join parameters, offers, candidates",
        [*(one.SerializeToString() for one in (*requests, wrapped, packed)), *texts],
        words,
        (MessageInvalid, TrackRefused, OfferInvalid, RequestInvalid),
        _check_signal,
    )


def _within(data: bytes) -> bytes:
    """Changed texts inside a well-formed message: most changes of bytes break its lengths."""
    kind, colon, rest = data.partition(b":")
    text = rest.decode("utf-8", "replace")
    if not colon or kind not in (b"offer", b"trickle", b"track"):
        return data
    if kind == b"offer":
        names = {text[-8:-4]: text[-4:]}
        offer = rtc.SessionDescription(sdp=text, mid_to_track_id=names)
        return rtc.SignalRequest(offer=offer).SerializeToString()
    if kind == b"trickle":
        trickle = rtc.TrickleRequest(candidateInit=text, target=rtc.PUBLISHER)
        return rtc.SignalRequest(trickle=trickle).SerializeToString()
    codec = rtc.SimulcastCodec(codec=text, cid=text[:5])
    track = rtc.AddTrackRequest(cid=text[:9], type=models.VIDEO, simulcast_codecs=[codec])
    return rtc.SignalRequest(add_track=track).SerializeToString()


def _check_signal(data: bytes) -> None:
    data = _within(data)
    packed = base64.urlsafe_b64encode(data).decode()
    if len(packed) < MAX_PACKED_CHARS:
        try:
            joined = parse_join("v1", {"join_request": packed})
        except RequestInvalid:
            pass
        else:
            _take_in(Tracks(new_id=lambda: "1"), joined.add_tracks)
    request = messages.request(data)
    messages.not_allowed(request)
    kind = request.WhichOneof("message")
    if kind == "trickle":
        _check_trickle(request.trickle)
    elif kind == "add_track":
        _take_in(Tracks(new_id=lambda: "1"), [request.add_track] * 3)
    elif kind == "offer":
        _check_livekit_offer(request.offer)
    again = messages.request(request.SerializeToString())
    assert again.WhichOneof("message") == kind


def _take_in(tracks: Tracks, asked: Sequence[rtc.AddTrackRequest]) -> None:
    for one in asked:
        try:
            messages.track_published(one.cid, tracks.announce(one).info).SerializeToString()
        except TrackRefused as refusal:
            messages.track_refused(one, refusal.message, refusal.reason).SerializeToString()
        assert len(tracks.infos()) <= MAX_TRACKS


def _check_trickle(asked: rtc.TrickleRequest) -> None:
    found = _candidate(asked)
    if found is not None:
        text, mid, line = found
        assert isinstance(text, str)
        assert mid is None or isinstance(mid, str)
        assert line is None or isinstance(line, int)
        read_candidate(text)


def _check_livekit_offer(offer: rtc.SessionDescription) -> None:
    found = sections(offer.sdp)
    choice = Tracks(new_id=lambda: "1").choose(found, offer.mid_to_track_id)
    assert choice.section is None or choice.section in found
    smaller = sections(narrowed(offer.sdp, keep=choice.mid, codec="vp8"))
    assert [one.mid for one in smaller] == [one.mid for one in found]


# ── cameras ──


def rtsp() -> Target:
    """What a camera sends: answers, descriptions, packets."""
    body = DESCRIPTION.encode()
    described = f"RTSP/1.0 200 OK\r\nCSeq: 2\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    packets = b"".join(_framed(_rtp(n, payload)) for n, payload in enumerate(PAYLOADS))
    corpus = [
        described,
        b'RTSP/1.0 401 Unauthorized\r\nCSeq: 3\r\nWWW-Authenticate: Digest realm="r", nonce="n"\r\n\r\n',
        b"OPTIONS * RTSP/1.0\r\nCSeq: 9\r\n\r\n" + packets,
        packets + described + packets,
        packets,
    ]
    words = [b"$\x00\x00\x00", b"$\x00\xff\xff", b"\r\n\r\n", b"\n\n", b"Content-Length: 65536\r\n"]
    words += [
        b"Content-Length: -1\r\n",
        b"RTSP/1.0 200 OK",
        b"\x7c\x85",
        b"\x7c\x05",
        b"\x62\x01\x93",
    ]
    words += [
        b"\x18\x00\x05",
        b"a=control:",
        b"m=video 0 RTP/AVP 96\r\n",
        b"a=fmtp:96 ",
        b"\x80\xe0",
    ]
    return Target(
        "rtsp",
        "what RTSP cameras send: answers, descriptions, packets",
        corpus,
        words,
        (NotRtsp,),
        _check_rtsp,
    )


class _Both:
    """Both assemblers behind one channel."""

    def __init__(self) -> None:
        self.assemblers = (H264Assembler(96), H265Assembler(96))

    @property
    def is_holding(self) -> bool:
        return any(one.is_holding for one in self.assemblers)

    def packet(self, view: memoryview, at: int, end: int) -> None:
        for one in self.assemblers:
            one.packet(view, at, end)

    def settle(self) -> None:
        for one in self.assemblers:
            one.settle()


def _check_rtsp(data: bytes) -> None:
    inbox, taker = Inbox(), _Both()
    inbox.channel = 0
    cut = 1 + data[0] * 8 if data else 1
    for at in range(0, len(data), cut):
        piece = data[at : at + cut]
        while (message := inbox.take(taker)) is not None:
            _check_description(message.body)
        room = inbox.room()
        room[: len(piece)] = piece
        inbox.filled(len(piece))
    while (message := inbox.take(taker)) is not None:
        _check_description(message.body)
    for one in taker.assemblers:
        one.flush()
        assert sum(len(unit.data) for unit in one.ready) <= 4 * len(data) + 64


def _check_description(body: bytes) -> None:
    found = read_description(body)
    control_url("rtsp://camera/stream", found.control)
    if found.video is not None:
        found.video.parameter_sets()
        assert control_url("rtsp://camera/", found.video.control) != ""


def _framed(packet: bytes) -> bytes:
    return struct.pack("!BBH", 0x24, 0, len(packet)) + packet


def _rtp(n: int, payload: bytes) -> bytes:
    return struct.pack("!BBHII", 0x80, 96 | 0x80 * (n % 3 == 2), n, n // 3 * 3000, 7) + payload


# ── publishers ──


def sdp() -> Target:
    """Offers of WebRTC publishers."""
    return Target(
        "sdp", "offers of WebRTC publishers", _OFFERS, _SDP_WORDS, (OfferInvalid,), _check_sdp
    )


def whip() -> Target:
    """The body of a WHIP request, then its offer."""
    return Target(
        "whip",
        "bodies of WHIP requests",
        _OFFERS,
        _SDP_WORDS,
        (WhipRefused, OfferInvalid),
        _check_whip,
    )


def _check_whip(data: bytes) -> None:
    _check_offer(_sdp_text(data))


def _check_sdp(data: bytes) -> None:
    _check_offer(data.decode("utf-8", "replace"))


def _check_offer(text: str) -> None:
    try:
        offer = read_offer(text)
        answer = write_answer(
            offer,
            decide(offer, is_first=True),
            local=LOCAL,
            session_id=1,
            version=1,
            max_bitrate_bps=6_000_000,
        )
    except OfferInvalid as error:
        _require(len(error.reason) < 300, "a reason may not repeat the offer")
        raise
    assert answer.startswith("v=0\r\n")
    assert answer.endswith("\r\n")
    assert answer.count("\nm=") == len(offer.sections), "every section is answered"


CANDIDATE = "candidate:1 1 udp 2122260223 192.168.1.5 50123 typ host generation 0"
LOCAL = LocalTransport(
    ufrag="ours",
    password="ourpasswordourpasswordour",
    fingerprint="AA:BB",
    setup="active",
    candidates=("candidate:1 1 udp 5 10.0.0.1 50000 typ host",),
)
_SECTION = (
    "m=video 9 UDP/TLS/RTP/SAVPF 96 97 102\r\nc=IN IP4 0.0.0.0\r\na=ice-ufrag:abcd\r\n"
    "a=ice-pwd:0123456789abcdefghijklmn\r\n"
    f"a=fingerprint:sha-256 {':'.join(['AB'] * 32)}\r\n"
    "a=setup:actpass\r\na=mid:0\r\na=extmap:4 urn:ietf:params:rtp-hdrext:sdes:mid\r\na=sendonly\r\n"
    "a=msid:stream track\r\na=rtcp-mux\r\na=rtpmap:96 VP8/90000\r\na=rtcp-fb:96 nack pli\r\n"
    "a=rtpmap:97 rtx/90000\r\na=fmtp:97 apt=96\r\na=rtpmap:102 H264/90000\r\n"
    "a=fmtp:102 packetization-mode=1;profile-level-id=42001f;sprop-parameter-sets=Z0IAH5Y=,aM4=\r\n"
    f"a=rid:q send\r\na=rid:h send\r\na=simulcast:send q;h\r\na={CANDIDATE}\r\n"
    "a=ssrc:1 cname:x\r\n"
)
OFFER = (
    "v=0\r\no=- 4611731400430051336 2 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\na=group:BUNDLE 0\r\n"
    "a=msid-semantic: WMS stream\r\n" + _SECTION
)
_AUDIO = _SECTION.replace("m=video", "m=audio").replace("a=mid:0", "a=mid:1").replace("VP8", "opus")
_OFFERS = [
    OFFER.encode(),
    (OFFER.replace("BUNDLE 0", "BUNDLE 0 1") + _AUDIO).encode(),
    OFFER.replace("a=sendonly", "a=recvonly").encode(),
]
_SDP_WORDS = [
    *(line.encode() + b"\r\n" for line in _SECTION.split("\r\n")),
    b"\x00",
    b"\r\n",
    b"99999",
    b"-1",
    "\u2028".encode(),
    b"a=bundle-only\r\n",
    b"m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\n",
]
DESCRIPTION = (
    "v=0\r\no=- 1 1 IN IP4 0.0.0.0\r\ns=Media\r\na=control:*\r\nm=video 0 RTP/AVP 96\r\n"
    "a=rtpmap:96 H264/90000\r\na=fmtp:96 packetization-mode=1;sprop-parameter-sets=Z0IAH5Y=,aM4=\r\n"
    "a=control:trackID=0\r\nm=audio 0 RTP/AVP 8\r\na=control:trackID=1\r\n"
)
PAYLOADS = (
    b"\x67\x42\x00\x1f\x96",
    b"\x68\xce\x3c\x80",
    b"\x65\x88" + b"p" * 40,
    b"\x7c\x85" + b"q" * 60,
    b"\x7c\x05" + b"r" * 60,
    b"\x7c\x45" + b"s" * 20,
    b"\x78\x00\x05\x41\x9a\x00\x01\x02\x00\x03\x41\x40\x05",
    b"\x40\x01\x0c\x01",
    b"\x62\x01\x93" + b"t" * 30,
    b"\x60\x01\x00\x04\x26\x01\xaf\x06",
)

TARGETS: Mapping[str, Callable[[], Target]] = {
    "refs": refs,
    "sse": sse,
    "data-url": data_url,
    "livekit": livekit,
    "rtsp": rtsp,
    "sdp": sdp,
    "whip": whip,
}
