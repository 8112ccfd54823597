"""`data:` URLs as clients really write them: line breaks, odd case, missing padding, URL-safe base64.

The declared media type is not trusted; whoever decodes the bytes looks at them. The payload is
never repeated in a message: it may be megabytes of somebody's picture.
"""

from __future__ import annotations

import base64
import binascii
from urllib.parse import unquote_to_bytes

from liveedge.core.errors import MediaInvalid, MediaTooLarge

_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_IGNORED = b" \t\r\n\f\v="  # white space anywhere; padding is put back by count


def parse_data_url(url: str, *, max_bytes: int, what: str) -> bytes:
    """The bytes of a `data:` URL; `what` names it in errors. Refuses by length before decoding."""
    scheme, colon, rest = url.partition(":")
    if not colon or scheme.strip().lower() != "data":
        raise MediaInvalid(f"{what} is not a data: URL; expected data:<type>;base64,<data>")
    header, comma, payload = rest.partition(",")
    if not comma:
        raise MediaInvalid(
            f"{what} has no comma before its data; expected data:<type>;base64,<data>"
        )
    if not payload.isascii():
        raise MediaInvalid(f"{what} holds characters that do not belong into a data: URL")
    is_base64 = "base64" in "".join(header.lower().split()).split(";")
    # 3 bytes out of 4 characters, and some slack for line breaks (checked again after decoding).
    if len(payload) > (3 if not is_base64 else 2) * max_bytes + 64:
        raise _too_large(what, max_bytes)
    data = _from_base64(payload, what=what) if is_base64 else unquote_to_bytes(payload)
    if not data:
        raise MediaInvalid(f"{what} is empty")
    if len(data) > max_bytes:
        raise _too_large(what, max_bytes)
    return data


def _from_base64(payload: str, *, what: str) -> bytes:
    raw = unquote_to_bytes(payload) if "%" in payload else payload.encode("ascii")
    digits = raw.translate(_URL_SAFE, _IGNORED)
    try:
        return base64.b64decode(digits + b"=" * (-len(digits) % 4), validate=True)
    except binascii.Error as error:
        raise MediaInvalid(f"{what} is not valid base64") from error


def _too_large(what: str, max_bytes: int) -> MediaTooLarge:
    return MediaTooLarge(
        f"{what} is larger than the limit of {max_bytes} bytes; send a smaller one"
    )
