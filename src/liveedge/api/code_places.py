"""Which codes of the table of errors can come from which route: for the document. Pure.

A code that is not named here can come from any route that has its status.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from liveedge.api.errors import RULES
from liveedge.api.operation import Operation

ASKS = "asks"  # whatever takes a question: chat and new watches
PICTURES = "/streams/{stream_id}/frame."
WINDOWS = "/streams/{stream_id}/windows/"
PUSH = "/streams/{stream_id}/frames"
# Beginnings of paths, or ASKS.
PLACES: Mapping[str, tuple[str, ...]] = {
    "checkpoint_invalid": (),  # ends the start
    "settings_invalid": (),
    "parameter_unsupported": (ASKS, WINDOWS),
    "stream_url_invalid": (ASKS,),
    "query_param_invalid": (ASKS, PICTURES, "/streams/{stream_id}/preview", "/watches/"),
    "stream_not_found": (ASKS, "/streams/", "/whip/"),
    "stream_unauthorized": (ASKS,),
    "frame_not_yet_produced": (ASKS, PICTURES),
    "frame_evicted": (ASKS, PICTURES),
    "frame_stale": (ASKS, PICTURES),
    "segment_empty": (ASKS, PICTURES),
    "segment_invalid": (ASKS,),
    "source_unavailable": ("/streams",),
    "stream_limit_reached": ("/streams",),
    "stream_state_invalid": (PUSH, "/whip/"),
    "window_limit_reached": (WINDOWS,),
    "window_not_found": (WINDOWS,),
    "watch_limit_reached": ("/watches",),
    "watch_not_found": ("/watches/",),
    "media_invalid": (ASKS, PUSH),
    "media_too_large": (ASKS, PUSH),
    "model_not_found": (ASKS, WINDOWS),
    "model_video_unsupported": (ASKS, WINDOWS),
    "context_length_exceeded": (ASKS, WINDOWS),
    "response_format_unsupported": (ASKS,),
    "provider_safety_block": (ASKS,),
    "upstream_http": (ASKS,),
    "upstream_error": (ASKS,),
    "upstream_request_failed": (ASKS,),
    "upstream_timeout": (ASKS,),
    "queue_full": (ASKS, "/streams/", "/watches/", "/whip/"),
    "deadline_exceeded": (ASKS, "/streams/"),
    "region_error": (ASKS, "/streams", "/watches"),
}
SHOWN = {"upstream_http": "upstream_http_<status>"}


def codes_at(status: int, path: str, operation: Operation) -> list[str]:
    """The codes that this answer of the route may carry."""
    return [
        SHOWN.get(code, code) for code in sorted(_CODES[status]) if _is_at(code, path, operation)
    ]


def _is_at(code: str, path: str, operation: Operation) -> bool:
    places = PLACES.get(code)
    if places is None:
        return True
    asks = operation.face == "chat" and ASKS in places
    return asks or any(path.startswith(place) for place in places)


def _codes() -> Mapping[int, set[str]]:
    found: dict[int, set[str]] = defaultdict(set)
    for cls, rule in RULES.items():
        if cls.code != "internal_error" or rule.status == 500:  # else the base of others
            found[rule.status].add(cls.code)
    return found


_CODES = _codes()
