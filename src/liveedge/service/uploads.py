"""Pictures and clips that come inside a request: decoded before the answer starts, in a worker.

All of a request are read first (`read`): what its pictures take is known from their headers, and
too much is refused before the first is decoded. What fails here fails as a plain answer that names
the part.
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field, replace

from liveedge.core.errors import MediaTooLarge
from liveedge.frames.frame import Pixels, RgbPixels
from liveedge.media.clip import Clip, ClipLimits, decode_clip
from liveedge.media.data_url import parse_data_url
from liveedge.media.picture import PictureLimits, check_picture, decode_picture
from liveedge.service.parts import Upload

WHOLE_CLIP_FRAMES = 8  # a clip of up to so many frames is shown whole
CLIP_MAX_FPS = 2.0  # a longer one is sampled: the first frame at or after every half second


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadLimits:
    """What one upload may cost."""

    picture: PictureLimits = field(default_factory=PictureLimits)
    clip: ClipLimits = field(default_factory=ClipLimits)


@dataclass(frozen=True, slots=True, eq=False)
class UploadedFrame:
    """One frame; `key` stands for the upload's bytes and the frame's place in them."""

    key: str
    pixels: Pixels
    time_s: float = 0.0  # since the beginning of the clip
    corrupt: bool = False  # may show remains of a broken frame before it


@dataclass(frozen=True, slots=True)
class Uploaded:
    """What an upload holds."""

    frames: tuple[UploadedFrame, ...]
    n_broken: int = 0  # frames of a clip that could not be decoded

    @property
    def nbytes(self) -> int:
        """Decoded, in memory."""
        return sum(frame.pixels.nbytes for frame in self.frames)


@dataclass(frozen=True, slots=True)
class Encoded:
    """The bytes of an upload, not decoded yet."""

    upload: Upload
    data: bytes = field(repr=False)
    announced_bytes: int  # decoded, as the header says; 0 for a clip, whose header proves nothing


def read(upload: Upload, *, limits: UploadLimits, fetched: bytes | None = None) -> Encoded:
    """Blocking, a few ms per MB. `fetched` are the bytes of a remote one.

    Raises MediaInvalid or MediaTooLarge.
    """
    where = upload.where
    if upload.kind == "video":
        return Encoded(upload, _data(upload, limits.clip.max_bytes, fetched), 0)
    data = _data(upload, limits.picture.max_bytes, fetched)
    header = check_picture(data, limits=limits.picture, what=where)
    return Encoded(upload, data, 3 * header.width * header.height)


def decode(
    encoded: Encoded, *, limits: UploadLimits, room_bytes: int, stopping: threading.Event
) -> Uploaded:
    """Blocking; ends early once `stopping` is set. Raises MediaInvalid or MediaTooLarge.

    A clip takes no more than `room_bytes`; for a picture that has been looked at before.
    """
    data, where = encoded.data, encoded.upload.where
    digest = hashlib.sha256(data).hexdigest()
    if encoded.upload.kind == "image":
        rgb = decode_picture(data, limits=limits.picture, what=where)
        return Uploaded((UploadedFrame(digest, RgbPixels(rgb)),))
    fitting = replace(limits.clip, max_kept_bytes=min(limits.clip.max_kept_bytes, room_bytes))
    clip = _sampled_clip(data, limits=fitting, what=where, stopping=stopping)
    frames = tuple(
        # The time is part of the key: how a clip is sampled may change, its frames would not.
        UploadedFrame(f"{digest}@{frame.time_s:.6f}", frame.pixels, frame.time_s, frame.corrupt)
        for frame in clip.frames
    )
    return Uploaded(frames, clip.n_broken)


def _data(upload: Upload, max_bytes: int, fetched: bytes | None) -> bytes:
    if fetched is not None:  # its size and what it is are looked at by whoever decodes it
        return fetched
    return parse_data_url(upload.url, max_bytes=max_bytes, what=upload.where)


def _sampled_clip(data: bytes, *, limits: ClipLimits, what: str, stopping: threading.Event) -> Clip:
    whole = replace(limits, max_frames=min(WHOLE_CLIP_FRAMES, limits.max_frames))
    try:
        return decode_clip(data, limits=whole, what=what, stopping=stopping)
    except MediaTooLarge:  # too many frames to show them all; any other reason comes up again
        return decode_clip(data, limits=limits, what=what, max_fps=CLIP_MAX_FPS, stopping=stopping)
