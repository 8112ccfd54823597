"""Small documents of a server that may be anything: read within a bound of size and time.

`httpx` alone bounds neither: its time-out is of one read, and a server may send a byte a second forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

MAX_BYTES = 4 << 20
TIMEOUT_S = 10.0  # of the whole exchange


@dataclass(frozen=True, slots=True)
class Told:
    """An answer that was read whole."""

    status: int
    headers: Mapping[str, str]
    text: str


async def told(http: httpx.AsyncClient, url: str) -> Told:
    """What a GET of `url` answers, whatever its status. Raises httpx.HTTPError."""
    try:
        async with asyncio.timeout(TIMEOUT_S), http.stream("GET", url) as answer:
            body = bytearray()
            async for piece in answer.aiter_bytes():
                body += piece
                if len(body) > MAX_BYTES:
                    raise httpx.RequestError(f"the answer is longer than {MAX_BYTES} bytes")
    except TimeoutError as error:
        raise httpx.ReadTimeout(f"no whole answer within {TIMEOUT_S:g} s") from error
    return Told(answer.status_code, answer.headers, bytes(body).decode(errors="replace"))
