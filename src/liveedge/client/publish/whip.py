"""Sends pictures by WHIP: an offer over HTTP, media by aiortc."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import urljoin

import httpx
from aiortc import RTCConfiguration, RTCPeerConnection, RTCRtpSender, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError, MediaStreamTrack
from av import VideoFrame

from liveedge.client.publish.newest import EndOfPictures, Newest
from liveedge.client.publish.sending import Lost, Refused, Target

CONNECT_WITHIN_S = 15.0
HTTP_TIMEOUT_S = 20.0
LEAVE_WITHIN_S = 2.0
LAST_PACKETS_S = 0.3  # of a file that has ended are still being sent
TEMPORARY = frozenset({401, 408, 425, 429, 500, 502, 503, 504})  # 401: with a newer token it may do
NOT_FOUND = 404


async def send_by_whip(target: Target, pictures: Newest, *, connected: Callable[[], None]) -> None:
    """One connection: returns when the pictures are over. Raises Lost or Refused."""
    # SSL_CERT_FILE holds for this machine too, as in `client.http`.
    verify = httpx.create_ssl_context() if target.whip_url.startswith("https:") else True
    async with httpx.AsyncClient(
        timeout=HTTP_TIMEOUT_S, trust_env=not target.is_local, verify=verify
    ) as http:
        session = _Session(target, pictures, http)
        try:
            await session.connect()
            connected()
            await session.until_over()
        except Lost as lost:
            raise Lost(str(lost), is_gone=not await session.leave()) from lost
        finally:
            await session.leave()


class _Session:
    """One WHIP session and its peer connection."""

    def __init__(self, target: Target, pictures: Newest, http: httpx.AsyncClient) -> None:
        self._target = target
        self._http = http
        self._changed = asyncio.Event()
        self._track = _Track(pictures, self._changed)
        self._url: str | None = None
        # Without servers of its own it would ask one of Google's.
        self._peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._peer.on("connectionstatechange", self._changed.set)
        self._left: bool | None = None

    async def connect(self) -> None:
        transceiver = self._peer.addTransceiver(self._track, direction="sendonly")
        codecs = RTCRtpSender.getCapabilities("video").codecs
        wanted = (f"video/{self._target.codec}", "video/rtx")
        transceiver.setCodecPreferences([c for c in codecs if c.mimeType.lower() in wanted])
        await self._peer.setLocalDescription(await self._peer.createOffer())
        answer = await self._answer(self._peer.localDescription.sdp)
        await self._peer.setRemoteDescription(RTCSessionDescription(sdp=answer, type="answer"))
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                await self._until(lambda state: state != "connecting" and state != "new")
        except TimeoutError as error:
            raise Lost(f"no media connection within {CONNECT_WITHIN_S:g} s") from error
        if self._peer.connectionState != "connected":
            raise Lost("the media connection could not be made (ICE failed)")

    async def until_over(self) -> None:
        await self._until(lambda state: state != "connected" or self._track.is_over)
        if not self._track.is_over:
            raise Lost("the media connection was lost")
        await asyncio.sleep(LAST_PACKETS_S)

    async def leave(self) -> bool:
        """End both; whether the server still had the session. Again gives the same."""
        if self._left is None:
            self._left = False
            self._left = await self._deleted()
            await self._peer.close()
        return self._left

    async def _until(self, condition: Callable[[str], bool]) -> None:
        while not condition(self._peer.connectionState):
            self._changed.clear()
            await self._changed.wait()

    async def _answer(self, offer: str) -> str:
        headers = {
            "Content-Type": "application/sdp",
            "Authorization": f"Bearer {self._target.token}",
        }
        try:
            answer = await self._http.post(self._target.whip_url, content=offer, headers=headers)
        except httpx.HTTPError as error:
            place = httpx.URL(self._target.whip_url)
            raise Lost(
                f"no answer from {place.scheme}://{place.netloc.decode()}, where the server says that"
                f" it takes publishers (--public-url): {str(error) or type(error).__name__}"
            ) from error
        if answer.status_code != httpx.codes.CREATED:
            raise _refusal(answer)
        self._url = urljoin(self._target.whip_url, answer.headers.get("location", ""))
        return answer.text

    async def _deleted(self) -> bool:
        if self._url is None:
            return True  # the server has never had it
        try:
            answer = await self._http.delete(self._url, timeout=LEAVE_WITHIN_S)
        except httpx.HTTPError:  # it is not there to be told
            return True
        return answer.status_code != NOT_FOUND


class _Track(MediaStreamTrack):
    """The newest pictures as aiortc takes them."""

    kind = "video"

    def __init__(self, pictures: Newest, changed: asyncio.Event) -> None:
        super().__init__()
        self.is_over = False
        self._pictures = pictures
        self._changed = changed

    async def recv(self) -> VideoFrame:
        try:
            return await self._pictures.next()
        except EndOfPictures as error:
            self.is_over = True
            self._changed.set()
            raise MediaStreamError from error


def _refusal(answer: httpx.Response) -> Exception:
    try:
        text = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        text = f"the server answered with status {answer.status_code}"
    return Lost(text) if answer.status_code in TEMPORARY else Refused(text)
