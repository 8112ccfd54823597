"""Hooks of schemathesis for `api_fuzz.py`: generated requests that get past the first check.

What a schema cannot say is put in here: ids of streams that live, references to them, the model
that answers, pictures and offers that are real. Only values that are valid anyway are replaced, so
that what is meant to be wrong stays wrong. Which values is decided by their own content, so that a
seed gives the same run.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import re
import zlib
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import strategies as st
from PIL import Image

STREAMS: dict[str, str] = json.loads(os.environ["API_FUZZ_STREAMS"])
MODEL = "liveedge/workcell-tiny"
QUESTIONS = ("/chat/completions", "/watches")
MAX_TOKENS = 8  # of an answer: the questions are what is tested
LEAST_TIMEOUT_MS = 20_000  # or the deadline passes on a busy machine, rightly
NETWORK = ("rtsp", "rtmp", "hls")  # sources that would look for cameras
ANCHORS = ("frame_index", "offset_ms", "timestamp_ms")
IMAGE_URLS = (
    "ovs://streams/{live}?frame_index=-1",
    "ovs://streams/{live}?offset_ms=-500&tolerance_ms=1000",
    "ovs://streams/{pushed}?frame_index=1",
    "ovs://streams/{pushed}?frame_index=99",
    "ovs://streams/{published}?frame_index=0",
)
VIDEO_URLS = (
    "ovs://streams/{live}?start_offset_ms=-3000&max_fps=2",
    "ovs://streams/{pushed}?start_frame_index=0",
    "ovs://streams/{pushed}?start_frame_index=2&end_frame_index=1",
)
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
OFFER = "".join(
    f"{line}\r\n"
    for line in (
        "v=0", "o=- 1 2 IN IP4 127.0.0.1", "s=-", "t=0 0", "a=group:BUNDLE 0",
        "m=video 9 UDP/TLS/RTP/SAVPF 96", "c=IN IP4 0.0.0.0", "a=rtcp-mux", "a=ice-ufrag:Fr4g",
        "a=ice-pwd:pa55word-of-22-letters", "a=fingerprint:sha-256 " + ":".join(["AB"] * 32),
        "a=setup:actpass", "a=mid:0", "a=sendonly", "a=rtpmap:96 VP8/90000",
    )
)  # fmt: skip
FRAGMENT = "a=ice-ufrag:Fr4g\r\na=ice-pwd:pa55word-of-22-letters\r\na=end-of-candidates\r\n"

calls: defaultdict[str, Counter[str]] = defaultdict(Counter)


def _picture(kind: str) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (64, 48), (200, 30, 30)).save(out, kind)
    return out.getvalue()


def _either(*real: bytes) -> st.SearchStrategy[bytes]:
    """Something real, something real with a wrong end or beginning, or noise."""
    whole = st.sampled_from(real)
    return st.one_of(
        whole,
        st.tuples(whole, st.integers(0, 400)).map(lambda cut: cut[0][: -cut[1] or None]),
        st.tuples(st.binary(max_size=8), whole).map(lambda parts: parts[0] + parts[1]),
        st.binary(max_size=200),
    )


for mime, kind in (("image/jpeg", "JPEG"), ("image/png", "PNG"), ("image/webp", "WEBP")):
    schemathesis.openapi.media_type(mime, _either(_picture(kind)))
schemathesis.openapi.media_type("application/sdp", _either(OFFER.encode()))
schemathesis.openapi.media_type("application/trickle-ice-sdpfrag", _either(FRAGMENT.encode()))


@schemathesis.auth()
class Key:
    """The server's key; a publisher has its stream's token."""

    def get(self, case: Any, _context: Any) -> str:
        return STREAMS["token" if "/whip/" in case.operation.path else "key"]

    def set(self, case: Any, data: str, _context: Any) -> None:
        case.headers["Authorization"] = f"Bearer {data}"


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:  # noqa: ARG001  as it is called
    """Of every phase, unlike the hooks about generated values."""
    path: str = case.operation.path
    if "stream_id" in (case.path_parameters or {}) and case.operation.method != "delete":
        case.path_parameters["stream_id"] = _stream(path, case.path_parameters["stream_id"])
    if path.endswith("/events"):  # they end with their watch
        case.path_parameters["watch_id"] = f"not-{case.path_parameters['watch_id']}"
    if "/frame." in path and case.query and _is_meant_well(case):
        case.query = _one_anchor(case.query)
    if isinstance(case.body, dict):
        if path.endswith(QUESTIONS) and _is_meant_well(case):
            case.body = _mended(case.body)
        case.body = _body(path, case.body)


def _stream(path: str, asked: Any) -> Any:
    """Three of four ask about a stream that lives; what is an id already has its reasons."""
    if path.endswith("preview.mjpeg"):
        return f"not-{asked}"  # of a stream that lives it has no end
    if "/whip/" in path:
        return STREAMS["published"]  # whose token is sent
    if isinstance(asked, str) and UUID.fullmatch(asked):
        return asked
    known = (STREAMS["live"], STREAMS["pushed"], STREAMS["published"], asked)
    return known[_number(asked) % len(known)]


def _body(path: str, body: dict[str, Any]) -> dict[str, Any]:
    if path.endswith(QUESTIONS):
        return _question(body)
    if "/windows/" in path:
        return _with_model(body)
    return _without_network(body) if path.endswith("/streams") else body


@schemathesis.hook
def after_call(context: Any, case: Any, response: Any) -> None:  # noqa: ARG001  as it is called
    calls[f"{case.method} {case.operation.path}"][str(response.status_code)] += 1


@atexit.register
def write_counts() -> None:
    Path(os.environ["API_FUZZ_COUNTS"]).write_text(json.dumps(calls), encoding="utf-8")


def _is_meant_well(case: Any) -> bool:
    return case.meta is not None and case.meta.generation.mode.is_positive


def _one_anchor(asked: dict[str, Any]) -> dict[str, Any]:
    """Most name one frame, near the newest."""
    if _number(asked) % 8 == 0:
        return asked
    others = {key: value for key, value in asked.items() if key not in ANCHORS}
    anchor = ANCHORS[_number(asked) % len(ANCHORS)]
    return {**others, anchor: -(_number(asked) % 3) - 1 if anchor != "timestamp_ms" else 0}


def _mended(body: dict[str, Any]) -> dict[str, Any]:
    """A question that fits its schema, without what only our rules between two fields refuse."""
    body = dict(body)
    if body.get("top_logprobs"):
        body["logprobs"] = True
    form = body.get("response_format") or {}
    if form.get("type") == "json_schema" and not form.get("json_schema"):
        body["response_format"] = {**form, "json_schema": {"schema": {"type": "object"}}}
    if body.get("structured_outputs") is not None:
        body["structured_outputs"] = {"choice": ["yes", "no"]}
        body.pop("response_format", None)
    if isinstance(body.get("messages"), list):
        body["messages"] = [_mended_message(one) for one in body["messages"]]
    return body


def _mended_message(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if content is None:
        return {**message, "content": "What is there?"}
    if not isinstance(content, list):
        return message
    url = {"url": "ovs://"}  # another one is put in
    wanted = {"text": "?", "image_url": url, "video_url": url}
    parts = [
        one if one.get(one["type"]) is not None or one["type"] not in wanted
        else {**one, one["type"]: wanted[one["type"]]}
        for one in content
    ]  # fmt: skip
    return {**message, "content": parts}


def _question(body: dict[str, Any]) -> dict[str, Any]:
    body = _with_model(body)
    for name in ("max_tokens", "max_completion_tokens"):
        if _is_count(body.get(name)):
            body[name] = min(body[name], MAX_TOKENS)
    if not (_is_count(body.get("max_tokens")) or _is_count(body.get("max_completion_tokens"))):
        body.setdefault("max_tokens", MAX_TOKENS)
    if _is_count(body.get("timeout_ms")):
        body["timeout_ms"] = max(body["timeout_ms"], LEAST_TIMEOUT_MS)
    messages = body.get("messages")
    if isinstance(messages, list):
        body["messages"] = [_message(one) for one in messages]
    return body


def _message(message: Any) -> Any:
    if not isinstance(message, dict) or not isinstance(message.get("content"), list):
        return message
    return {**message, "content": [_part(one) for one in message["content"]]}


def _part(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    shown = dict(part)
    for name, urls in (("image_url", IMAGE_URLS), ("video_url", VIDEO_URLS)):
        media = shown.get(name)
        if isinstance(media, dict) and isinstance(media.get("url"), str):
            choice = _number(media) % (len(urls) + 1)
            if choice < len(urls):
                shown[name] = {**media, "url": urls[choice].format(**STREAMS)}
    return shown


def _with_model(body: dict[str, Any]) -> dict[str, Any]:
    """Most ask the model that there is."""
    name = body.get("model")
    if isinstance(name, str) and name and _number(body) % 8:
        return {**body, "model": MODEL}
    return dict(body)


def _without_network(body: dict[str, Any]) -> dict[str, Any]:
    """No camera is looked for: that is not this program's business, and takes 15 s each time."""
    source = body.get("source")
    if not isinstance(source, dict):
        return body
    if source.get("type") in NETWORK:
        return {**body, "source": {**source, "type": "push"}}
    if isinstance(source.get("type"), str) and len(source["type"]) in range(1, 41):
        kinds = ("push", "sim", "whip", "livekit", "file", "device", source["type"])
        return {**body, "source": {**source, "type": kinds[_number(source) % len(kinds)]}}
    return body


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _number(value: Any) -> int:
    """Random, and the same for the same value."""
    return zlib.crc32(json.dumps(value, sort_keys=True, default=repr).encode())
