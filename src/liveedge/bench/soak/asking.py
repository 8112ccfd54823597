"""Questions whose true answers are known, on a schedule that does not wait for answers.

Each ends as one line: what was asked, what came back, whether it was right. Latencies are real time,
also where the streams are accelerated; the age of frames is stream time, as the server tells it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from liveedge.bench.soak.fleet import Camera
from liveedge.bench.soak.place import Place
from liveedge.client.http import Answer, Client, Refused, image_part, video_part
from liveedge.client.truth import CodeUnreadable, Oracle
from liveedge.sim.questions import KINDS, expected, score

N_ASKERS = 4
WAITING = 8  # questions due but not asked yet; one more is left out, and written down
ON_FRAMES = ("door", "lamp", "person", "count", "display")
ON_CLIPS = ("belt", "display_event")
BELT_FPS = 2.0  # the movement of the belt cannot be seen in fewer pictures
CLIP_EVERY = 4  # one question of so many is about a clip
CLIPS = ((2.0, 2.0), (4.0, 1.0))  # seconds, and frames per second at most


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about which camera."""

    number: int
    kind: str
    camera: Camera
    media: dict[str, Any]


def question(number: int, camera: Camera, *, n_cameras: int, fps: float) -> Question:
    """The `number`th question: every kind about every camera, in turn."""
    turn = number // n_cameras
    if turn % CLIP_EVERY == CLIP_EVERY - 1:
        nth = turn // CLIP_EVERY
        seconds, max_fps = CLIPS[nth % len(CLIPS)]
        start_ms = -round(seconds * 1000)
        media = video_part(camera.stream_id, start_offset_ms=start_ms, max_fps=max_fps)
        kinds = ON_CLIPS if fps >= BELT_FPS else ON_CLIPS[1:]
        return Question(number, kinds[nth % len(kinds)], camera, media)
    kind = ON_FRAMES[turn % len(ON_FRAMES)]
    return Question(number, kind, camera, image_part(camera.stream_id, frame_index=-1))


def ask_on(place: Place) -> None:
    """Until the run is over."""
    n_waiting = 0
    with ThreadPoolExecutor(N_ASKERS, thread_name_prefix="soak-ask") as pool:
        pending: list[Any] = []
        for number in place.ticks("ask", place.options.question_every_s):
            pending = [one for one in pending if not one.done()]
            camera = place.fleet.camera(number)
            n_waiting = len(pending) - N_ASKERS
            if camera is None or n_waiting >= WAITING:
                place.log.write(
                    "unasked", number=number, reason="no stream" if camera is None else "late"
                )
                continue
            asked = question(number, camera, n_cameras=len(place.fleet), fps=place.options.fps)
            pending.append(pool.submit(ask, place, asked))


def ask(place: Place, asked: Question) -> None:
    """One question on a connection of its own, and its line."""
    began_s = place.now_s
    fields: dict[str, Any] = {
        "number": asked.number,
        "kind": asked.kind,
        "camera": asked.camera.kind,
        "stream": asked.camera.stream_id,
    }
    with place.client() as client:
        try:
            answer = client.ask(
                [asked.media, {"type": "text", "text": KINDS[asked.kind].phrasings[0]}],
                model=place.model,
                max_tokens=16,
            )
            fields |= told(answer)
        except Refused as error:
            fields |= refused(error)
            place.log.write("ask", begun_s=round(began_s, 3), **fields)
            return
        fields |= judged(client, asked, answer)
    place.log.write("ask", begun_s=round(began_s, 3), **fields)


def ask_once(place: Place) -> str:
    """One question about the first camera, which is simulated: `right`, `wrong`, why it could not be
    judged, or why there was no answer. Writes no line."""
    camera = place.fleet.camera(0)
    if camera is None:
        return "no stream"
    asked = Question(0, "lamp", camera, image_part(camera.stream_id, frame_index=-1))
    with place.client() as client:
        try:
            answer = client.ask(
                [asked.media, {"type": "text", "text": KINDS["lamp"].phrasings[0]}],
                model=place.model,
                max_tokens=8,
            )
        except Refused as error:
            return f"{error.status} {error.code}"
        found = judged(client, asked, answer)
    if "right" in found:
        return "right" if found["right"] else "wrong"
    return str(found.get("unjudged", "unreadable"))


def told(answer: Answer) -> dict[str, Any]:
    """What an answer says about itself."""
    return {
        "status": 200,
        "text": answer.text[:80],
        "ttft_ms": round(answer.ttft_ms, 1),
        "total_ms": round(answer.total_ms, 1),
        "age_ms": answer.evidence.get("age_ms"),
        "frames": len(answer.frames),
        "warm": sum(bool(frame["warm"]) for frame in answer.frames),
    }


def refused(error: Refused) -> dict[str, Any]:
    return {"status": error.status, "code": error.code, "error": str(error)[:200]}


def judged(client: Client, asked: Question, answer: Answer) -> dict[str, Any]:
    """Right or wrong by what the frames themselves show; nothing where the truth is not decidable."""
    oracle = Oracle(client, asked.camera.stream_id, seed=asked.camera.seed)
    try:
        truth = true_answer(asked.kind, oracle, answer)
    except Refused as error:  # evicted meanwhile, or the camera has left
        return {"unjudged": error.code}
    except CodeUnreadable:
        return {"unreadable": True}
    if truth is None:
        return {"unjudged": "undecidable"}
    return {"truth": truth, "right": score(asked.kind, answer.text, truth)}


def true_answer(kind: str, oracle: Oracle, answer: Answer) -> str | None:
    """From the first and the last frame, which decide all kinds asked here."""
    indices: Sequence[int] = [int(frame["frame_index"]) for frame in answer.frames]
    chosen = [indices[0], indices[-1]] if KINDS[kind].needs_clip else indices[-1:]
    return expected(kind, [oracle.state(index) for index in chosen])
