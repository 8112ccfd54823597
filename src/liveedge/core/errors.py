"""The error tree: everything that can be told to a user.

Every class has a wire `code` and `type`; `api/errors.py` maps each class to a status and a shape,
and a test fails if one is missing there. A message names the thing, the value and the way out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class LiveEdgeError(Exception):
    """Base of the tree. Raise a subclass."""

    code = "internal_error"
    type = "internal_error"

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s


class InternalError(LiveEdgeError):
    """A defect of ours, reported without its details."""


class SettingsInvalid(LiveEdgeError):
    """A flag, variable or configuration key is unknown or has a wrong value."""

    code = "settings_invalid"
    type = "validation_error"


class CheckpointInvalid(LiveEdgeError):
    """A model folder lacks a file, or its content does not fit its configuration."""

    code = "checkpoint_invalid"
    type = "validation_error"


class Unauthorized(LiveEdgeError):
    """No key, or an unknown one."""

    code = "unauthorized"
    type = "authentication_error"


class PermissionDenied(LiveEdgeError):
    """The key is a good one and does not open this; says which scope it lacks."""

    code = "permission_denied"
    type = "permission_error"


class RequestInvalid(LiveEdgeError):
    """The body has a wrong shape: answered as 422 with `loc` per detail."""

    code = "validation_error"
    type = "validation_error"

    def __init__(self, message: str, *, loc: tuple[str | int, ...] = ("body",)) -> None:
        super().__init__(message)
        self.loc = loc


class ParameterUnsupported(LiveEdgeError):
    """A request field that would change the answer and that this server cannot honour."""

    code = "parameter_unsupported"
    type = "validation_error"


class StreamError(LiveEdgeError):
    """Something about an `ovs://` reference or the stream it names."""

    type = "stream_error"


class StreamUrlInvalid(StreamError):
    """Scheme, host, path or fragment of a reference is wrong."""

    code = "stream_url_invalid"


class QueryParamInvalid(StreamError):
    """A key of a reference is unknown, repeated, empty, malformed, missing or one too many."""

    code = "query_param_invalid"


class StreamNotFound(StreamError):
    """Unknown, ended or expired stream."""

    code = "stream_not_found"


class StreamUnauthorized(StreamError):
    """The stream belongs to another key."""

    code = "stream_unauthorized"


class FrameNotYetProduced(StreamError):
    """The reference points beyond the newest frame."""

    code = "frame_not_yet_produced"


class FrameEvicted(StreamError):
    """The frame existed and is no longer retained."""

    code = "frame_evicted"


class FrameStale(StreamError):
    """The newest frame is older than `max_age_ms` allows."""

    code = "frame_stale"


class SegmentEmpty(StreamError):
    """No retained frame lies in the segment or near the anchor."""

    code = "segment_empty"


class SegmentInvalid(StreamError):
    """The end of the segment is not after its start."""

    code = "segment_invalid"


class SourceUnavailable(StreamError):
    """The camera or file could not be opened; says why, never with its URL."""

    code = "source_unavailable"


class StreamLimitReached(StreamError):
    """No room for another stream: by count or by memory; says which."""

    code = "stream_limit_reached"


class WindowLimitReached(StreamError):
    """No slot for another warm window; says how many there are and what frees one."""

    code = "window_limit_reached"


class WindowNotFound(StreamError):
    """The stream has no warm window of that name."""

    code = "window_not_found"


class WatchLimitReached(LiveEdgeError):
    """No room for another watch; says which limit and what frees one."""

    code = "watch_limit_reached"
    type = "rate_limit_error"


class WatchNotFound(LiveEdgeError):
    """No watch of that id, or one of another key, or one that ended long ago."""

    code = "watch_not_found"
    type = "not_found_error"


class StreamStateInvalid(StreamError):
    """The stream exists and cannot do this, such as a push into a camera's stream."""

    code = "stream_state_invalid"


class Unsupported(LiveEdgeError):
    """The server cannot do this as configured; says what would make it possible."""

    code = "not_supported"
    type = "not_supported"


class MediaInvalid(LiveEdgeError):
    """A picture or clip is empty, damaged or of an unsupported kind; names the part."""

    code = "media_invalid"
    type = "validation_error"


class MediaTooLarge(LiveEdgeError):
    """A picture or clip exceeds a limit on bytes, pixels or side; read from the header."""

    code = "media_too_large"
    type = "validation_error"


class BodyTooLarge(LiveEdgeError):
    """The request body exceeds the limit."""

    code = "request_too_large"
    type = "validation_error"


class ModelNotFound(LiveEdgeError):
    """No such model."""

    code = "model_not_found"
    type = "provider_error"


class ModelUnavailable(LiveEdgeError):
    """The model is loading, restarting or stopping."""

    code = "model_unavailable"
    type = "provider_error"


class ModelVideoUnsupported(LiveEdgeError):
    """A video reference to a model that takes none."""

    code = "model_video_unsupported"
    type = "validation_error"


class UpstreamError(LiveEdgeError):
    """Another server was to answer, and did not; `upstream` says what is known of it."""

    code = "upstream_request_failed"
    type = "upstream_error"

    def __init__(
        self,
        message: str,
        *,
        upstream: Mapping[str, Any] | None = None,
        retry_after_s: float | None = None,
        is_unavailable: bool = False,
        may_retry: bool = False,
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.upstream = dict(upstream or {})  # provider, status, body, rate_limits; never a key
        self.is_unavailable = is_unavailable  # not there at all: another model may answer instead
        self.may_retry = may_retry  # the same request may succeed in a moment


class UpstreamHttpError(UpstreamError):
    """It answered with a status that is no answer: `upstream_http_<status>`."""

    code = "upstream_http"  # and the status

    def __init__(
        self,
        message: str,
        *,
        status: int = 500,
        upstream: Mapping[str, Any] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(
            message,
            upstream=upstream,
            retry_after_s=retry_after_s,
            is_unavailable=status == 503,
            may_retry=status in (408, 429, 500, 502, 503, 504),
        )
        self.status = status
        self.code = f"upstream_http_{status}"


class UpstreamRejected(UpstreamHttpError):
    """It refused what was asked: 4xx."""


class UpstreamLimited(UpstreamHttpError):
    """It was asked too often: 429."""


class UpstreamRequestFailed(UpstreamError):
    """It cannot be reached, broke off, or answered what is no answer."""


class UpstreamTimeout(UpstreamError):
    """It was silent for too long, or the deadline passed while it answered."""

    code = "upstream_timeout"


class ProviderSafetyBlock(UpstreamError):
    """It refused for what the question or the answer holds."""

    code = "provider_safety_block"
    type = "provider_error"


class ContextLengthExceeded(LiveEdgeError):
    """The prompt does not fit; says the count, the limit and what would fit."""

    code = "context_length_exceeded"
    type = "validation_error"


class ResponseFormatUnsupported(LiveEdgeError):
    """The schema uses something the grammar engine cannot enforce."""

    code = "response_format_unsupported"
    type = "validation_error"


class RateLimited(LiveEdgeError):
    """The key asked too often."""

    code = "rate_limit_exceeded"
    type = "rate_limit_error"


class QueueFull(LiveEdgeError):
    """Too many requests wait already."""

    code = "queue_full"
    type = "rate_limit_error"


class DeadlineExceeded(LiveEdgeError):
    """The answer was not there in time."""

    code = "deadline_exceeded"
    type = "timeout_error"


class RegionMismatch(LiveEdgeError):
    """The request names another region."""

    code = "region_error"
    type = "region_error"

    def __init__(self, message: str, *, expected: str, requested: str) -> None:
        super().__init__(message)
        self.expected = expected
        self.requested = requested
