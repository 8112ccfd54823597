"""WHIP (RFC 9725): a publisher's offer by POST, late candidates by PATCH, the end by DELETE.

The key of the offer is the stream's publish token. The session that it makes has a URL that nobody
can guess, which is all that PATCH and DELETE need, so that a client can leave with an expired token.
ICE restarts are refused (501): a client whose network has changed offers anew.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

from fastapi import APIRouter, Request, Response

from liveedge.api.body import Bodies
from liveedge.api.errors import ErrorAnswer, flat_body
from liveedge.api.gate import Gate
from liveedge.api.public_url import PublicUrl
from liveedge.api.reply import error_reply
from liveedge.core.errors import StreamNotFound
from liveedge.service.publishing import Publishing

if TYPE_CHECKING:
    from liveedge.service.ingest import Ingest

SDP = "application/sdp"
FRAGMENT = "application/trickle-ice-sdpfrag"
MAX_OFFER_BYTES = 256 * 1024
MAX_FRAGMENT_BYTES = 64 * 1024
LARGE_BYTES = 64 * 1024  # looked at beside the event loop; browsers send 6 kB
_SDP_LINE = re.compile(r"[a-z]=.*")
_UFRAG = re.compile(r"^a=ice-ufrag:(\S+)", re.MULTILINE)


class WhipRefused(Exception):
    """What HTTP alone finds wrong. Caught by the handlers, which answer it."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        body = flat_body(message, "invalid_request_error", code)
        self.answer = ErrorAnswer(status, body, {"x-should-retry": "false"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WhipRoutes:
    """Handlers; each parses, calls the entrance and encodes."""

    gate: Gate
    bodies: Bodies
    publishing: Publishing
    public_url: PublicUrl
    ice_links: Sequence[str] = field(default=(), repr=False)  # made by `ice_link`

    def router(self) -> APIRouter:
        router = APIRouter(tags=["publishing"])
        add = router.add_api_route
        add("/whip/{stream_id}", self.offer, methods=["POST"])
        add("/whip/{stream_id}", self.options, methods=["OPTIONS"], include_in_schema=False)
        add("/whip/{stream_id}/{session_id}", self.trickle, methods=["PATCH"])
        add("/whip/{stream_id}/{session_id}", self.leave, methods=["DELETE"])
        return router

    async def offer(self, request: Request, stream_id: str) -> Response:
        """Publish into a stream by WHIP: an SDP offer, answered with SDP."""
        token = self.gate.open_publisher(request)
        ingest = await self.publishing.ingest()
        ingest.check_whip(stream_id, token)  # before anything is read: that is for publishers only
        try:
            sdp = await self._text(request, stream_id, kind=SDP, max_bytes=MAX_OFFER_BYTES)
        except WhipRefused as refused:
            return error_reply(refused.answer)
        session = await ingest.whip_offer(stream_id, token, sdp)
        prefix = self.public_url.prefix(request, "/whip/")
        headers = {
            "content-type": SDP,
            "location": f"{prefix}/whip/{quote(stream_id, safe='')}/{session.id}",
            "etag": _etag(session.id, sdp),
            "accept-patch": FRAGMENT,
        }
        if self.ice_links:
            headers["link"] = ", ".join(self.ice_links)
        return Response(session.answer, status_code=201, headers=headers)

    async def options(self, request: Request, stream_id: str) -> Response:
        """What can be posted here. What browsers ask before (CORS) never comes this far."""
        return Response(status_code=204, headers={"accept-post": SDP, "allow": "OPTIONS, POST"})

    async def trickle(self, request: Request, stream_id: str, session_id: str) -> Response:
        """Candidates that a publisher found after its offer."""
        self.gate.open_session(request)
        ingest = await self._ingest_with(stream_id, session_id)
        try:
            text = await self._text(request, stream_id, kind=FRAGMENT, max_bytes=MAX_FRAGMENT_BYTES)
            _check_if_match(request.headers.get("if-match"), session_id, text)
        except WhipRefused as refused:
            return error_reply(refused.answer)
        await ingest.whip_patch(session_id, text)
        return Response(status_code=204)

    async def leave(self, request: Request, stream_id: str, session_id: str) -> Response:
        """End a publisher's session."""
        self.gate.open_session(request)
        ingest = await self._ingest_with(stream_id, session_id)
        await ingest.whip_delete(session_id)
        return Response(status_code=200)

    async def _ingest_with(self, stream_id: str, session_id: str) -> Ingest:
        ingest = self.publishing.loaded
        if ingest is None or ingest.whip_stream(session_id) != stream_id:
            raise StreamNotFound("there is no such WHIP session: its publisher is not connected")
        return ingest

    async def _text(self, request: Request, stream_id: str, *, kind: str, max_bytes: int) -> str:
        """The body, if it is SDP of this kind."""
        sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if sent != kind:
            raise WhipRefused(
                415,
                "content_type_unsupported",
                f"the body needs the header `Content-Type: {kind}`, not {sent[:80] or 'none'}",
            )
        async with self.bodies.read(request, owner=stream_id, max_bytes=max_bytes) as data:
            if len(data) < LARGE_BYTES:
                return _sdp_text(data)
            return await asyncio.to_thread(_sdp_text, data)


def _sdp_text(data: bytes) -> str:
    text = data.decode(errors="replace")
    lines = text.splitlines()
    if not lines or not all(_SDP_LINE.fullmatch(line) for line in lines if line.strip()):
        raise WhipRefused(
            400,
            "sdp_invalid",
            "the body is not SDP: every line of it is a letter, = and a value",
        )
    return text


def ice_link(url: str, username: str | None, credential: str | None) -> str:
    """A STUN or TURN server as a value of the header `Link`."""
    link = f'<{url}>; rel="ice-server"'
    if username is None or credential is None:
        return link
    return (
        f'{link}; username="{_quoted(username)}"; credential="{_quoted(credential)}";'
        ' credential-type="password"'
    )


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _etag(session_id: str, sdp: str) -> str:
    """Of the session's ICE: another one where the client's part of it is another one."""
    found = _UFRAG.search(sdp)
    ufrag = "" if found is None else found[1]
    return f'"{hashlib.sha256(f"{session_id} {ufrag}".encode()).hexdigest()[:24]}"'


def _check_if_match(header: str | None, session_id: str, fragment: str) -> None:
    """Raises WhipRefused unless the fragment belongs to the ICE of the session's offer."""
    if header is None:
        raise WhipRefused(
            428, "precondition_required", "send the ETag of the session as the header If-Match"
        )
    if header.strip() == "*":
        raise WhipRefused(
            501,
            "not_supported",
            "ICE cannot be restarted here; end the session with DELETE and POST a new offer",
        )
    if _etag(session_id, fragment) not in [one.strip() for one in header.split(",")]:
        raise WhipRefused(
            412, "precondition_failed", "the candidates belong to another ICE than the session's"
        )
