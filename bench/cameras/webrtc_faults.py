"""What goes wrong with cameras that publish, by WHIP or with a LiveKit SDK, one scene per fault."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cameras.footage import Footage, Shape
from cameras.publisher import Publisher, Way
from cameras.rtsp_faults import AWAY_S, LOSS_S, Fault, Scene
from cameras.scene import Failed, Outcome, Shot, Span, wall_ms

SMALL_LIVE = Shape(width=320, height=180, live=True, n_frames=60)
WITHHELD_S = 3.0


@dataclass(slots=True)
class _View:
    """A publisher and the stream that shows it."""

    publisher: Publisher
    shot: Shot
    way: Way
    publish: dict[str, Any]

    def another(self, footage: Footage, *flags: str) -> Publisher:
        return Publisher(self.way, self.publish, footage, flags=flags)


@contextmanager
def _watched(
    scene: Scene, way: Way, footage: Footage, *, flags: Sequence[str] = (), calm: bool = True
) -> Iterator[_View]:
    shot = scene.stage.shoot({"type": way}, footage)
    assert shot.publish is not None
    with Publisher(way, shot.publish, footage, flags=flags) as publisher:
        publisher.event("answered_ms")
        if calm:
            shot.until_calm(wall_ms(), "calm at first")
        yield _View(publisher, shot, way, shot.publish)
    scene.stage.clear()


def stopped(scene: Scene, *, way: Way, shape: Shape) -> Outcome:
    """The publisher's process is stopped and goes on."""
    with _watched(scene, way, scene.stage.make_footage(shape)) as view:
        pause_s = 7.0 if scene.quick else 20.0
        from_ms = wall_ms()
        view.publisher.freeze()
        view.shot.until(lambda stream: stream["health"] != "live", "noticed")
        noticed_s = (wall_ms() - from_ms) / 1000
        time.sleep(max(0.0, pause_s - noticed_s))
        view.publisher.go_on()
        pause = Span(from_ms, wall_ms())
        unsent = Span(from_ms, view.shot.footage.next_key_ms(pause.to_ms))
        note = f"noticed after {noticed_s:.1f} s"
        return view.shot.outcome(pause, unsent=[unsent], note=note)


def killed(scene: Scene, *, way: Way, shape: Shape) -> Outcome:
    """The publisher is killed; another one comes with the same token."""
    footage = scene.stage.make_footage(shape)
    with _watched(scene, way, footage) as view:
        from_ms = wall_ms()
        view.publisher.kill()
        time.sleep(AWAY_S)
        with view.another(footage) as second:
            away = Span(from_ms, second.event("begun_ms")["begun_ms"])
            return view.shot.outcome(away, unsent=[away], note="from the next one's request")


def loss(scene: Scene, *, way: Way, shape: Shape, share: float) -> Outcome:
    """Packets are lost on the way; the server asks for them again."""
    with _watched(scene, way, scene.stage.make_footage(shape)) as view:
        time.sleep(scene.chance.uniform(0, 1))
        from_ms = wall_ms()
        view.publisher.lose(share)
        time.sleep(2.0 if scene.quick else LOSS_S)
        view.publisher.lose(0.0)
        span = Span(from_ms, wall_ms())
        outcome = view.shot.outcome(span)
        delay_ms = view.shot.delay_ms(95, span)
        return replace(outcome, note=f"delay p95 {delay_ms:.0f} ms meanwhile")


def mid_group(scene: Scene, *, way: Way, shape: Shape) -> Outcome:
    """The first seconds never arrive: the server has to ask for a key frame."""
    footage = scene.stage.make_footage(shape)
    with _watched(scene, way, footage, flags=["--loss", "1"], calm=False) as view:
        view.publisher.event("state")
        from_ms = wall_ms()
        time.sleep(WITHHELD_S)
        if view.shot.look()["health"] == "live":
            raise Failed("live without a single packet")
        view.publisher.lose(0.0)
        now_ms = wall_ms()
        unsent = Span(from_ms, now_ms)
        return view.shot.outcome(Span(now_ms, now_ms), unsent=[unsent])


def flaps(scene: Scene, *, way: Way, shape: Shape) -> Outcome:
    """It comes and goes at random, every other time without a good-bye."""
    n_flaps = 3 if scene.quick else 50
    footage = scene.stage.make_footage(shape)
    flags = ["--flaps", str(n_flaps)]
    with _watched(scene, way, footage, flags=flags, calm=False) as view:
        from_ms = wall_ms()
        view.publisher.event("flapped")
        gone = Span(from_ms, wall_ms())
        return view.shot.outcome(gone, unsent=[gone], note=f"{n_flaps} flaps")


def two(scene: Scene, *, way: Way, shape: Shape) -> Outcome:
    """Two publishers in turn, each taking over from the other: frames never mix."""
    n_turns = 2 if scene.quick else 20
    loops = [scene.stage.make_footage(replace(shape, variant=variant)) for variant in (0, 1)]
    with _watched(scene, way, loops[0]) as view:
        from_ms = wall_ms()
        before = view.publisher
        for turn in range(n_turns):
            variant = (turn + 1) % 2
            newest = view.another(loops[variant])
            view.shot.until(partial(_shows, view.shot, variant), "taken over")
            before.kill()
            before = newest
        with before:
            outcome = view.shot.outcome(Span(from_ms, wall_ms()))
        runs = [variant for variant, _ in itertools.groupby(s.variant for s in view.shot.seen)]
        if len(runs) != n_turns + 1:
            raise Failed(f"{n_turns} take-overs, but the picture changed {len(runs) - 1} times")
        return replace(outcome, note=f"{n_turns} take-overs, never mixed")


def _shows(shot: Shot, variant: int, _stream: object) -> bool:
    return bool(shot.seen) and shot.seen[-1].variant == variant


def _faults(way: Way, shape: Shape, names: Sequence[str]) -> Mapping[str, tuple[str, Fault]]:
    every: dict[str, tuple[str, Fault]] = {
        "stopped": ("publisher stopped for 20 s (SIGSTOP)", partial(stopped, way=way, shape=shape)),
        "killed": ("publisher killed, another after 2 s", partial(killed, way=way, shape=shape)),
        "loss5": (
            "5 % of the packets lost for 5 s",
            partial(loss, way=way, shape=shape, share=0.05),
        ),
        "loss20": (
            "20 % of the packets lost for 5 s",
            partial(loss, way=way, shape=shape, share=0.2),
        ),
        "mid_group": (
            "first 3 s lost, no key frame by itself",
            partial(mid_group, way=way, shape=SMALL_LIVE),
        ),
        "flaps": ("50 flaps", partial(flaps, way=way, shape=shape)),
        "two": ("two publishers, 20 take-overs", partial(two, way=way, shape=shape)),
    }
    return {name: every[name] for name in names}


WHIP_FAULTS = _faults(
    "whip", Shape(), ("stopped", "killed", "loss5", "loss20", "mid_group", "flaps", "two")
)
LIVEKIT_FAULTS = _faults("livekit", Shape(codec="vp8", live=True), ("stopped", "killed", "two"))
