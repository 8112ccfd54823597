"""Which way up a picture is: the one tag that is read of its metadata. Pure.

Read here and not by the library, which reads every tag of a block that a stranger wrote, and writes
a line into the log for each that is wrong.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any

UPRIGHT = 1
_TAG = 0x0112
_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_ENTRY_BYTES = 12
_SHORT, _LONG = 3, 4
_IN_XMP = re.compile(r'tiff:Orientation(?:="|>)([0-9])')


def orientation_of(info: Mapping[Any, Any]) -> int:
    """By what a library found beside the pixels (`Image.info`); 1 where nothing is said."""
    block = info.get("exif")
    if not isinstance(block, bytes):
        block = _unpacked(info.get("Raw profile type exif"))
    found = _in_exif(block)
    return _in_xmp(info) if found is None else found


def _in_exif(block: bytes) -> int | None:
    block = block.removeprefix(b"Exif\0\0").removeprefix(b"Exif\0\0")
    order = _ORDERS.get(block[:4])
    if order is None or len(block) < 8:
        return None
    (at,) = struct.unpack_from(f"{order}I", block, 4)
    if at + 2 > len(block):
        return None
    (n_entries,) = struct.unpack_from(f"{order}H", block, at)
    entries = block[at + 2 : at + 2 + n_entries * _ENTRY_BYTES]
    whole = len(entries) // _ENTRY_BYTES * _ENTRY_BYTES
    for tag, kind, _, value in struct.iter_unpack(f"{order}HHI4s", entries[:whole]):
        if tag == _TAG and kind in (_SHORT, _LONG):
            size = "H" if kind == _SHORT else "I"
            return int(struct.unpack_from(f"{order}{size}", value)[0])
    return None


def _unpacked(text: object) -> bytes:
    """As ImageMagick writes it into a PNG: some lines, then hexadecimal digits."""
    if not isinstance(text, str):
        return b""
    try:
        return bytes.fromhex("".join(text.split("\n")[3:]))
    except ValueError:
        return b""


def _in_xmp(info: Mapping[Any, Any]) -> int:
    text = info.get("XML:com.adobe.xmp") or info.get("xmp") or ""
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    found = _IN_XMP.search(text) if isinstance(text, str) else None
    return UPRIGHT if found is None else int(found[1])
