"""Clients that leave in the middle of something, half of them by a reset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from liveedge.bench.soak import raw
from liveedge.bench.soak.fleet import Camera
from liveedge.bench.soak.place import Act, Place
from liveedge.client.http import image_part

CONTENT = b'"content":"{'  # the first words of an answer in the form of `raw.ENDLESS`

SERVER_ERROR = 500


def leave_answers_on(place: Place) -> None:
    """Until the run is over."""
    chance = place.chance("disconnect")
    for number in place.ticks("disconnect", place.options.disconnect_every_s):
        camera = place.fleet.camera(number)
        if camera is None:
            continue
        phase = chance.choice(tuple(PHASES))
        act = Act(place, "disconnect", number, phase=phase, stream=camera.stream_id)
        try:
            act.done(**leave(place, camera, phase, chance))
        except OSError as error:
            act.done(ok=False, status=0, error=repr(error)[:200])


def leave(place: Place, camera: Camera, phase: str, chance: Random) -> dict[str, Any]:
    """One client, from its coming to its going."""
    words = raw.request(place.url, "POST", raw.CHAT, story(place.model, camera.stream_id))
    with raw.connect(place.url) as connection:
        is_reset = chance.random() < 0.5
        heard = PHASES[phase](connection, words, place, chance)
        status = raw.status_of(heard)
        if is_reset:
            raw.reset_at_close(connection)
    return {"ok": status < SERVER_ERROR, "reset": is_reset, "status": status or None}


def story(model: str, stream_id: str) -> Mapping[str, Any]:
    """A question with an answer that is long enough to leave in."""
    return {
        "model": model,
        "messages": [
            {
                "role": "user",
                "content": [
                    image_part(stream_id, frame_index=-1),
                    {"type": "text", "text": "Tell me a story about it."},
                ],
            }
        ],
        "max_completion_tokens": 200,
        "response_format": raw.ENDLESS,
        "stream": True,
    }


def _in_the_answer(connection: Any, words: bytes, _place: Place, _chance: Random) -> bytes:
    connection.sendall(words)
    return raw.read_until(connection, CONTENT)


def _before_the_answer(connection: Any, words: bytes, place: Place, chance: Random) -> bytes:
    connection.sendall(words)
    place.real_clock.wait(place.stopping, chance.uniform(0.0, 0.1))
    return b""


def _in_the_body(connection: Any, words: bytes, place: Place, chance: Random) -> bytes:
    connection.sendall(words[: -len(words) // 4])
    place.real_clock.wait(place.stopping, chance.uniform(0.0, 0.1))
    return b""


PHASES: Mapping[str, Callable[[Any, bytes, Place, Random], bytes]] = {
    "in the answer": _in_the_answer,
    "before the answer": _before_the_answer,
    "in the body": _in_the_body,
}
