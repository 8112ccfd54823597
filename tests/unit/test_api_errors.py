"""The error table: complete, in the shapes of the wire, and bounded."""

import inspect

import pytest

from liveedge.api.errors import MAX_DETAILS, MAX_MESSAGE_CHARS, RULES, answer, invalid
from liveedge.core import errors as e

CLASSES = [c for _, c in inspect.getmembers(e, inspect.isclass) if issubclass(c, e.LiveEdgeError)]


def make(cls, message="told"):
    if cls is e.RegionMismatch:
        return cls(message, expected="us", requested="eu")
    return cls(message)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_class_has_its_own_rule(cls):
    assert cls in RULES


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_is_readable_by_both_kinds_of_client(cls):
    for face in ("chat", "flat"):
        body = answer(make(cls), face=face).body
        if cls is e.RegionMismatch:
            assert body == {
                "detail": {
                    "error": "region_error", "expected_region": "us", "requested_region": "eu"
                }
            }  # fmt: skip
        elif cls is e.RequestInvalid and face == "chat":
            assert body == {
                "error": "validation_error",
                "message": "Request validation failed",
                "details": [{"loc": ["body"], "msg": "told", "type": "value_error"}],
            }
        else:
            assert body["error"]["code"]
            assert body["error"]["type"]
            if face == "flat" or RULES[cls].flat:
                assert isinstance(body["detail"], str)
            else:
                assert body["detail"] == {"error": body["error"]}


# Codes, types and statuses as the wire specification lists them, not as the table repeats them.
@pytest.mark.parametrize(
    ("cls", "status", "kind", "code"),
    [
        (e.Unauthorized, 401, "authentication_error", "unauthorized"),
        (e.StreamUrlInvalid, 400, "stream_error", "stream_url_invalid"),
        (e.QueryParamInvalid, 400, "stream_error", "query_param_invalid"),
        (e.StreamNotFound, 404, "stream_error", "stream_not_found"),
        (e.StreamUnauthorized, 403, "stream_error", "stream_unauthorized"),
        (e.FrameNotYetProduced, 409, "stream_error", "frame_not_yet_produced"),
        (e.FrameStale, 409, "stream_error", "frame_stale"),
        (e.FrameEvicted, 410, "stream_error", "frame_evicted"),
        (e.SegmentEmpty, 404, "stream_error", "segment_empty"),
        (e.SegmentInvalid, 400, "stream_error", "segment_invalid"),
        (e.MediaInvalid, 400, "validation_error", "media_invalid"),
        (e.MediaTooLarge, 413, "validation_error", "media_too_large"),
        (e.ModelNotFound, 404, "provider_error", "model_not_found"),
        (e.ModelUnavailable, 503, "provider_error", "model_unavailable"),
        (e.ModelVideoUnsupported, 400, "validation_error", "model_video_unsupported"),
        (e.ContextLengthExceeded, 400, "validation_error", "context_length_exceeded"),
        (e.ResponseFormatUnsupported, 400, "validation_error", "response_format_unsupported"),
        (e.RateLimited, 429, "rate_limit_error", "rate_limit_exceeded"),
        (e.QueueFull, 429, "rate_limit_error", "queue_full"),
        (e.DeadlineExceeded, 504, "timeout_error", "deadline_exceeded"),
        (e.InternalError, 500, "internal_error", "internal_error"),
    ],
)
def test_statuses_types_and_codes_are_those_of_the_wire(cls, status, kind, code):
    answered = answer(cls("told"), face="chat")
    assert answered.status == status
    assert answered.body["error"] == {"message": "told", "type": kind, "code": code}


@pytest.mark.parametrize("cls", [e.QueueFull, e.RateLimited, e.ModelUnavailable])
def test_a_client_is_told_when_to_come_back(cls):
    assert int(answer(cls("told"), face="chat").headers["retry-after"]) >= 1
    assert answer(cls("told", retry_after_s=2.3), face="chat").headers["retry-after"] == "3"


def test_only_what_a_retry_cannot_cure_says_so():
    def says(error):
        return answer(error, face="chat").headers.get("x-should-retry")

    assert says(e.StreamUrlInvalid("x")) == "false"
    assert says(e.FrameEvicted("x")) == "false"
    assert says(make(e.RegionMismatch)) == "false"
    assert says(e.WindowLimitReached("x")) == "false"
    assert says(e.StreamLimitReached("x")) is None
    assert says(e.FrameNotYetProduced("x")) is None
    assert says(e.QueueFull("x")) is None
    assert says(e.InternalError("x")) is None


def test_messages_and_details_are_bounded():
    shown = answer(e.MediaInvalid("x" * 10**6), face="chat").body["error"]["message"]
    assert len(shown) == MAX_MESSAGE_CHARS
    many = [{"loc": ("body", i), "msg": "m", "type": "t"} for i in range(1000)]
    assert len(invalid(many, face="chat").body["details"]) == MAX_DETAILS


def test_an_unknown_subclass_is_answered_like_its_base():
    class Newer(e.FrameStale):
        pass

    assert answer(Newer("x"), face="chat").status == 409
