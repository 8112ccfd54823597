"""One session with a camera: asking for its video (RFC 2326), then taking it in.

1. `open`: OPTIONS, DESCRIBE; if there is a video that we can read ourselves, SETUP over TCP and PLAY.
2. `units`: coded pictures as they become whole; the session is kept alive on the way.
3. `close`: TEARDOWN, unheard.

Thread  the attempt's own.
Never   connects anywhere but where its link leads, follows a redirect, or shows the URL: what the
        camera calls things is only said to itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote, urlsplit

from liveedge.core.clock import Clock
from liveedge.media import refusals
from liveedge.media.rtsp_auth import Authorizer, credentials_of
from liveedge.media.rtsp_link import Link
from liveedge.media.rtsp_sdp import VideoMedium, control_url, is_name, read_description
from liveedge.media.rtsp_units import ASSEMBLERS, AccessUnit, Assembler
from liveedge.media.rtsp_wire import Inbox, Message, NotRtsp, refusal_of, request
from liveedge.media.source import SourceLost

NOT_A_CAMERA = refusals.NOT_A_CAMERA.format(what="an RTSP camera")
NO_VIDEO = "no video track"
_MAX_ASKED = 3  # times one thing, because of challenges: the first, the answer, a nonce too old
_DEFAULT_TIMEOUT_S = 60.0  # of a session, where the camera does not tell
_SHORTEST_BEAT_S = 1.0
_BEHIND_S = 3.0  # so long there was always more to read: what is decoded is as old by now
_INTERLEAVED = re.compile(r"interleaved=(\d{1,3})")
_TIMEOUT = re.compile(r"timeout=(\d{1,6})")
_URL_SAFE = "%/:=&?#~+!$,;'@()*[]"


class OtherCodec(Exception):
    """The camera has a video, but none that this reads. Caught by the source."""


class Session:
    """One camera on one connected link."""

    def __init__(
        self, link: Link, url: str, *, clock: Clock, open_by_s: float, read_timeout_s: float
    ) -> None:
        self._link = link
        self._url = address_of(url)
        self._clock = clock
        self._by_s = open_by_s
        self._read_timeout_s = read_timeout_s
        self._authorizer = Authorizer(credentials_of(url))
        self._inbox = Inbox()
        self._taker: Assembler | _Nobody = _Nobody()
        self._n_asked = 0
        self._session = ""
        self._control = self._url
        self._beat = "OPTIONS"  # what keeps the session alive
        self._beat_every_s = _DEFAULT_TIMEOUT_S / 2
        self._beat_at_s = 0.0
        self._caught_up_s = 0.0  # when nothing was waiting to be read

    # ── asking ──

    def open(self) -> VideoMedium:
        """Have the video play. Raises `SourceLost`, `Stopped` and `OtherCodec`."""
        options = self._ask("OPTIONS", self._url)
        if options.status is not None and 300 <= options.status < 400:
            raise refusals.by_status(options.status)
        if "GET_PARAMETER" in options.header("public").upper():
            self._beat = "GET_PARAMETER"
        video, track = self._describe()
        self._set_up(track)
        # Pictures may come before the answer that they will.
        self._taker = ASSEMBLERS[video.encoding](video.payload_type)
        self._succeed("PLAY", self._control, ("Range", "npt=0.000-"))
        now_s = self._clock.monotonic_s()
        self._by_s = now_s + self._read_timeout_s
        self._beat_at_s = now_s + self._beat_every_s
        self._caught_up_s = now_s
        return video

    def _describe(self) -> tuple[VideoMedium, str]:
        """The video and what its track is called."""
        answer = self._succeed("DESCRIBE", self._url, ("Accept", "application/sdp"))
        description = read_description(answer.body)
        video = description.video
        if video is None:
            raise SourceLost(NO_VIDEO, hopeless=True)
        if not _is_ours(video):
            raise OtherCodec
        told = (answer.header("content-base"), answer.header("content-location"))
        base = next((name for name in told if is_name(name)), self._url)
        control = control_url(base, description.control)
        track = control_url(base, video.control)
        if control is None or track is None:
            raise SourceLost(NOT_A_CAMERA)
        self._control = control
        return video, track

    def _set_up(self, track: str) -> None:
        answer = self._succeed("SETUP", track, ("Transport", "RTP/AVP/TCP;unicast;interleaved=0-1"))
        transport = answer.header("transport")
        if transport and "/TCP" not in transport.upper():
            raise SourceLost(refusals.NOT_OVER_TCP, hopeless=True)
        channel = _INTERLEAVED.search(transport)
        self._inbox.channel = int(channel[1]) if channel else 0
        session, _, rest = answer.header("session").partition(";")
        self._session = session.strip()
        if told := _TIMEOUT.search(rest):
            self._beat_every_s = max(int(told[1]) / 2, _SHORTEST_BEAT_S)

    def _succeed(self, method: str, url: str, *headers: tuple[str, str]) -> Message:
        """The answer to a request that must succeed."""
        answer = self._ask(method, url, *headers)
        if answer.status is None or not 200 <= answer.status < 300:
            raise refusals.by_status(answer.status or 0)
        return answer

    def _ask(self, method: str, url: str, *headers: tuple[str, str]) -> Message:
        """Its answer, whatever it is; challenges are answered."""
        answer = self._ask_once(method, url, headers)
        for _ in range(_MAX_ASKED - 1):
            if answer.status != 401:
                break
            if not self._authorizer.challenged(answer.all_of("www-authenticate")):
                break
            answer = self._ask_once(method, url, headers)
        if answer.status == 401:
            raise refusals.by_status(401)
        self._authorizer.accepted()
        return answer

    def _ask_once(self, method: str, url: str, headers: tuple[tuple[str, str], ...]) -> Message:
        self._link.send(self._request(method, url, headers), by_s=self._by_s)
        while True:
            answer = self._next_message()
            if answer is None:
                raise SourceLost(refusals.CLOSED)
            if answer.status is None:
                self._refuse(answer)
            elif answer.status >= 200:  # to whatever request it says: one is under way at a time
                return answer

    def _request(self, method: str, url: str, headers: tuple[tuple[str, str], ...] = ()) -> bytes:
        self._n_asked += 1
        own = [("CSeq", str(self._n_asked)), ("User-Agent", "liveedge")]
        if self._session:
            own.append(("Session", self._session))
        return request(method, url, [*own, *self._authorizer.header(method, url), *headers])

    def _next_message(self) -> Message | None:
        """Wait for it; None at the end of the connection."""
        while True:
            message = self._take()
            if message is not None:
                return message
            if not self._receive():
                return None

    def _refuse(self, asked: Message) -> None:
        self._link.send(refusal_of(asked), by_s=self._by_s)

    # ── taking in ──

    def units(self) -> Iterator[AccessUnit]:
        """Pictures until the camera closes the connection. Raises `SourceLost` and `Stopped`."""
        ready = self._taker.ready
        while True:
            message, garbage = None, None
            try:
                message = self._take()
            except SourceLost as loss:  # after the pictures that came before it
                garbage = loss
            if ready:
                units, ready[:] = tuple(ready), ()
                yield from units
                self._by_s = self._clock.monotonic_s() + self._read_timeout_s
            if garbage is not None:
                raise garbage
            if message is not None:
                self._note(message)
                continue
            self._keep_alive()
            waits = not self._link.has_more()
            if not self._receive():
                break
            if waits:
                self._caught_up_s = self._clock.monotonic_s()
        self._taker.flush()
        yield from tuple(ready)

    @property
    def is_behind(self) -> bool:
        """Whether the pictures come faster than they are taken, so that they grow old unseen."""
        return self._clock.monotonic_s() - self._caught_up_s > _BEHIND_S

    def _take(self) -> Message | None:
        try:
            return self._inbox.take(self._taker)
        except NotRtsp:
            raise SourceLost(NOT_A_CAMERA) from None

    def _receive(self) -> int:
        n_bytes = self._link.receive_into(self._inbox.room(), by_s=self._by_s)
        self._inbox.filled(n_bytes)
        return n_bytes

    def _note(self, message: Message) -> None:
        """A message between the packets: mostly the answer to a beat."""
        if message.status is None:
            self._refuse(message)
        elif message.status == 401 and self._authorizer.challenged(
            message.all_of("www-authenticate")
        ):
            # Again, with the camera's new nonce; not at once, as it may refuse for ever.
            self._beat_at_s = self._clock.monotonic_s() + _SHORTEST_BEAT_S

    def _keep_alive(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s >= self._beat_at_s:
            self._beat_at_s = now_s + self._beat_every_s
            self._link.send(self._request(self._beat, self._control), by_s=self._by_s)

    def close(self) -> None:
        """The camera may give up the session; whether it heard that is not waited for."""
        self._link.close(self._request("TEARDOWN", self._control) if self._session else b"")


class _Nobody:
    """Takes packets before a video was asked for."""

    is_holding = False

    def __init__(self) -> None:
        self.ready: list[AccessUnit] = []

    def packet(self, view: memoryview, at: int, end: int) -> None:
        pass

    def settle(self) -> None:
        pass

    def flush(self) -> None:
        pass


def address_of(url: str) -> str:
    """The URL without who asks, as it stands in requests."""
    parts = urlsplit(url)
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    return quote(bare.geturl(), safe=_URL_SAFE)


def _is_ours(video: VideoMedium) -> bool:
    """Whether its packets hold pictures in the order of decoding, in a format that is read here."""
    parameters = video.parameters
    is_in_order = parameters.get("sprop-max-don-diff", "0") == "0" and (
        parameters.get("packetization-mode", "0") != "2"
    )
    return video.encoding in ASSEMBLERS and is_in_order
