"""Standing questions with somebody who listens: one at fixed times, one when the picture changes.

Every event is a line. The listener comes again with `Last-Event-ID` after it has left for a moment,
and none may be missing or come twice.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx

from liveedge.bench.soak.asking import refused
from liveedge.bench.soak.place import Act, Place
from liveedge.client.http import Refused, image_part
from liveedge.sim.questions import KINDS

LISTEN_EVENTS = 12  # then the listener leaves and resumes
RENEW_S = 240.0  # a watch is ended and made again so often
TIMEOUT_S = 120.0  # of silence; a heartbeat comes every 15 s of stream time
AGAIN_S = 5.0


class Watched:
    """The watches that there are now. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: dict[str, str] = {}

    def set(self, name: str, watch_id: str | None) -> None:
        with self._lock:
            if watch_id is None:
                self._ids.pop(name, None)
            else:
                self._ids[name] = watch_id

    def any(self) -> str | None:
        with self._lock:
            return next(iter(self._ids.values()), None)


def watch_on(place: Place, watched: Watched, name: str, slot: int, trigger: dict[str, Any]) -> None:
    """One watch after the other, until the run is over."""
    number = 0
    with httpx.Client(base_url=place.url, trust_env=False, timeout=TIMEOUT_S) as http:
        while not place.stopping.is_set():
            camera = place.fleet.camera(slot)
            if camera is None:
                place.pause(AGAIN_S)
                continue
            number += 1
            act = Act(place, "watch", number, name=name, stream=camera.stream_id)
            try:
                made = _make(http, place.model, camera.stream_id, trigger)
            except Refused as error:
                act.done(ok=False, **refused(error))
                place.pause(AGAIN_S)
                continue
            watched.set(name, made)
            act.done(ok=True, **_follow(place, http, made, name))
            watched.set(name, None)


def _make(http: httpx.Client, model: str, stream_id: str, trigger: dict[str, Any]) -> str:
    body = {
        "model": model,
        "messages": [
            {
                "role": "user",
                "content": [
                    image_part(stream_id, frame_index=-1),
                    {"type": "text", "text": KINDS["door"].phrasings[0]},
                ],
            }
        ],
        "max_tokens": 8,
        **trigger,
    }
    try:
        answer = http.post("/v1beta/watches", json=body)
    except httpx.HTTPError as error:
        raise Refused(0, "unreachable", repr(error)) from error
    if answer.status_code != httpx.codes.CREATED:
        raise Refused(answer.status_code, "watch", answer.text[:200])
    return str(answer.json()["id"])


def _follow(place: Place, http: httpx.Client, watch_id: str, name: str) -> dict[str, Any]:
    """Listen until the watch has ended or is old enough to be ended; what came of it."""
    counted: dict[str, int] = {}
    last, ended, until_s = 0, "", place.now_s + RENEW_S
    while not ended and place.now_s < until_s and not place.stopping.is_set():
        try:
            for event_id, kind, data in _events(http, watch_id, last):
                if last and event_id != last + 1:
                    counted["out of order"] = counted.get("out of order", 0) + 1
                last = event_id
                counted[kind] = counted.get(kind, 0) + 1
                _write(place, name, kind, data)
                ended = str(data.get("reason")) if kind == "ended" else ""
                is_enough = sum(counted.values()) % LISTEN_EVENTS == 0 or place.now_s > until_s
                if ended or is_enough or place.stopping.is_set():
                    break
        except (httpx.HTTPError, Refused) as error:
            ended = f"lost: {error!r}"[:200]
    if not ended:
        try:
            http.delete(f"/v1beta/watches/{watch_id}")
        except httpx.HTTPError as error:
            ended = f"lost: {error!r}"[:200]
    return {"ended": ended or "deleted", "events": counted}


def _write(place: Place, name: str, kind: str, data: dict[str, Any]) -> None:
    told = {"reason": data.get("reason")} if kind == "skipped" else {}
    if kind == "error":
        told = {"code": (data.get("error") or {}).get("code")}
    place.log.write("watch", name=name, kind=kind, **told)


def _events(
    http: httpx.Client, watch_id: str, last: int
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Number, kind and data of each event; the number of all after the first one rises by one."""
    headers = {"Last-Event-ID": str(last)} if last else {}
    with http.stream("GET", f"/v1beta/watches/{watch_id}/events", headers=headers) as response:
        if response.status_code != httpx.codes.OK:
            response.read()
            raise Refused(response.status_code, "watch_events", response.text[:200])
        fields: dict[str, str] = {}
        for line in response.iter_lines():
            if line.startswith(":"):
                continue
            if line:
                name, _, value = line.partition(":")
                fields[name] = value.strip()
            elif "data" in fields:
                data = json.loads(fields["data"])
                yield int(fields.get("id", last)), fields.get("event", "message"), data
                fields = {}
