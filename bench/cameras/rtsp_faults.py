"""What goes wrong with cameras that are pulled, one scene per fault."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

from cameras.footage import Footage, Shape
from cameras.proxy import Proxy, Retimer
from cameras.rtsp_camera import RtspCamera
from cameras.scene import Failed, Outcome, Shot, Span, Stage, wall_ms
from liveedge.client.http import Refused
from report import percentile

LOSS_S = 5.0
FREEZE_S = 8.0  # longer than a camera may be silent
AWAY_S = 2.0  # of a camera that was killed
BEFORE_S = 6.0
N_BESIDE = 7
LONG_GROUP = Shape(gop=300)
HUGE_KEYS = Shape(width=1280, height=720, fps=10, n_frames=30, gop=30, crf=4, noise=128)
FOUR_K = Shape(width=3840, height=2160, fps=5, n_frames=5, gop=5, crf=28)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a fault may use; `scale` shortens it."""

    stage: Stage
    chance: random.Random
    quick: bool = False


Fault: TypeAlias = Callable[[Scene], Outcome]


@dataclass(slots=True)
class _View:
    """A camera, the network to it, and the stream that shows it."""

    camera: RtspCamera
    proxy: Proxy
    shot: Shot


@contextmanager
def _watched(scene: Scene, footage: Footage, *, truth: bool = True) -> Iterator[_View]:
    with RtspCamera({"live": footage}) as camera, Proxy(camera.port) as proxy:
        proxy.retimer = Retimer()
        shot = scene.stage.shoot(_rtsp(proxy.port), footage, truth=truth)
        shot.until_calm(wall_ms(), "calm at first")
        yield _View(camera, proxy, shot)
        scene.stage.clear()


def _rtsp(port: int, *, login: str = "") -> dict[str, str]:
    return {"type": "rtsp", "url": f"rtsp://{login}127.0.0.1:{port}/live"}


def stopped(scene: Scene) -> Outcome:
    """The camera's process is stopped, its connections stay open."""
    with _watched(scene, scene.stage.make_footage(Shape())) as view:
        pause_s = 7.0 if scene.quick else 20.0
        from_ms = wall_ms()
        view.camera.freeze()
        view.shot.until(lambda stream: stream["health"] != "live", "noticed")
        noticed_s = (wall_ms() - from_ms) / 1000
        time.sleep(max(0.0, pause_s - noticed_s))
        view.camera.go_on()
        pause = Span(from_ms, wall_ms())
        unsent = Span(from_ms, view.shot.footage.next_key_ms(pause.to_ms))
        note = f"noticed after {noticed_s:.1f} s"
        return view.shot.outcome(pause, unsent=[unsent], note=note)


def killed(scene: Scene) -> Outcome:
    """The camera is killed and comes back on the same port."""
    with _watched(scene, scene.stage.make_footage(Shape())) as view:
        from_ms = wall_ms()
        view.camera.kill()
        time.sleep(AWAY_S)
        view.camera.start()
        away = Span(from_ms, wall_ms())
        return view.shot.outcome(away, unsent=[away])


def cut(scene: Scene) -> Outcome:
    """The connection breaks in the middle of a packet."""
    with _watched(scene, scene.stage.make_footage(Shape())) as view:
        time.sleep(scene.chance.uniform(0, 1))  # anywhere in the group
        now_ms = wall_ms()
        view.proxy.cut()
        view.shot.until(lambda stream: stream["reconnects"] >= 1, "reconnected")
        return view.shot.outcome(Span(now_ms, now_ms))


def loss_5(scene: Scene) -> Outcome:
    return _loss(scene, 0.05)


def loss_20(scene: Scene) -> Outcome:
    return _loss(scene, 0.2)


def _loss(scene: Scene, share: float) -> Outcome:
    with _watched(scene, scene.stage.make_footage(Shape())) as view:
        time.sleep(scene.chance.uniform(0, 1))
        from_ms = wall_ms()
        view.proxy.loss = share
        time.sleep(2.0 if scene.quick else LOSS_S)
        view.proxy.loss = 0.0
        note = f"{view.proxy.n_lost} packets lost"
        return view.shot.outcome(Span(from_ms, wall_ms()), note=note)


def mid_group(scene: Scene) -> Outcome:
    """Opened far from a key frame, groups of ten seconds: nothing is shown before the next one."""
    footage = scene.stage.make_footage(LONG_GROUP)
    with RtspCamera({"live": footage}) as camera:
        keeper = scene.stage.shoot(_rtsp(camera.port), footage, truth=False)
        keeper.until_calm(wall_ms(), "calm at first")
        while not 30 < footage.number_at(wall_ms()) < 200:
            time.sleep(0.1)
        opened_ms = wall_ms()
        shot = scene.stage.shoot(_rtsp(camera.port), footage)
        health = shot.look()["health"]
        if health != "waiting_for_keyframe":
            raise Failed(f"opened in the middle of a group and is {health}")
        shot.until(lambda stream: stream["health"] == "live", "live")
        outcome = shot.outcome(
            Span(opened_ms, opened_ms), note="waits for the camera's next key frame"
        )
        scene.stage.clear()
        return outcome


def flaps(scene: Scene) -> Outcome:
    """The connection breaks again and again, at any moment of its life."""
    n_flaps = 3 if scene.quick else 50
    with _watched(scene, scene.stage.make_footage(Shape())) as view:
        from_ms = wall_ms()
        for _ in range(n_flaps):
            view.shot.until(lambda _stream: view.proxy.n_connections > 0, "connected")
            time.sleep(scene.chance.uniform(0, 1))
            view.proxy.cut()
            view.shot.until(lambda _stream: view.proxy.n_connections == 0, "cut")
        outcome = view.shot.outcome(Span(from_ms, wall_ms()))
        n_reconnects = view.shot.look()["reconnects"]
        return replace(outcome, note=f"{n_flaps} flaps, {n_reconnects} reconnects")


def stamps(scene: Scene) -> Outcome:
    """The camera's time stamps jump in every way that was ever reported."""
    with _watched(scene, scene.stage.make_footage(Shape())) as view:
        retimer = view.proxy.retimer
        assert retimer is not None
        from_ms = wall_ms()
        jumps: list[Callable[[], None]] = [
            retimer.reset,
            lambda: retimer.outlier(-9800),
            lambda: retimer.outlier(37_600),
            lambda: retimer.jump(-5),
            lambda: retimer.jump(3600),
            lambda: retimer.wrap_soon(1.0),
        ]
        for jump in jumps:
            jump()
            time.sleep(1.0 if scene.quick else 2.0)
        outcome = view.shot.outcome(Span(from_ms, wall_ms()))
        error_ms = view.shot.clock_error_ms()
        if error_ms > 1100:
            raise Failed(f"the stream's clock was {error_ms:.0f} ms off")
        return replace(outcome, note=f"stream clock at most {error_ms:.0f} ms off arrival")


def frozen(scene: Scene) -> Outcome:
    """One of eight cameras falls silent: what the seven others feel."""
    footage = scene.stage.make_footage(Shape())
    with (
        RtspCamera({"live": footage}) as camera,
        Proxy(camera.port) as proxy,
        Proxy(camera.port) as frozen_proxy,
    ):
        beside = [
            scene.stage.shoot(_rtsp(proxy.port), footage, truth=False) for _ in range(N_BESIDE)
        ]
        shot = scene.stage.shoot(_rtsp(frozen_proxy.port), footage)
        shot.until_calm(wall_ms(), "calm at first")
        before = Span(wall_ms(), wall_ms() + 1000 * BEFORE_S)
        time.sleep(BEFORE_S)
        from_ms = wall_ms()
        frozen_proxy.frozen = True
        time.sleep(FREEZE_S)
        frozen_proxy.frozen = False
        pause = Span(from_ms, wall_ms())
        outcome = shot.outcome(pause, unsent=[pause])
        for other in beside:
            other.look()
        p99s = [
            percentile([d for other in beside for d in other.delays_ms(span)], 99)
            for span in (before, pause)
        ]
        scene.stage.clear()
        return replace(outcome, note=f"p99 delay of the others {p99s[0]:.0f} → {p99s[1]:.0f} ms")


def password(scene: Scene) -> Outcome:
    """A wrong password is told at once, and never repeated."""
    footage = scene.stage.make_footage(Shape())
    with RtspCamera({"live": footage}, login="bob:right") as camera:
        return _refused(scene, _rtsp(camera.port, login="bob:s3cret@"), "401", "s3cret")


def unknown_host(scene: Scene) -> Outcome:
    """A name that no server knows is told within the time for opening."""
    source = {"type": "rtsp", "url": "rtsp://bob:s3cret@camera.invalid/live"}
    return _refused(scene, source, "unknown host", "s3cret")


def huge_keys(scene: Scene) -> Outcome:
    """Key frames of megabytes."""
    footage = scene.stage.make_footage(HUGE_KEYS)
    return _plain(scene, footage, f"key frames up to {max(footage.sizes) / 2**20:.1f} MB")


def four_k(scene: Scene) -> Outcome:
    return _plain(scene, scene.stage.make_footage(FOUR_K), f"3840x2160 at {FOUR_K.fps} fps")


def _plain(scene: Scene, footage: Footage, note: str) -> Outcome:
    """Nothing goes wrong, but every picture is heavy: only its number is looked at."""
    opened_ms = wall_ms()
    with _watched(scene, footage, truth=False) as view:
        first_ms = view.shot.seen[0].arrived_ms
        time.sleep(2.0)
        outcome = view.shot.outcome(Span(first_ms, first_ms))
        delay_ms = view.shot.delay_ms(95)
        first_s = (first_ms - opened_ms) / 1000
        return replace(
            outcome, note=f"{note}; first frame {first_s:.1f} s, delay p95 {delay_ms:.0f} ms"
        )


def _refused(scene: Scene, source: dict[str, str], why: str, secret: str) -> Outcome:
    asked_s = time.monotonic()
    try:
        scene.stage.rig.client.create_stream(source)
    except Refused as refusal:
        took_s = time.monotonic() - asked_s
        if refusal.status != 422 or why not in str(refusal) or secret in str(refusal):
            raise Failed(f"told as {refusal}") from refusal
        return Outcome(note=f"422 after {took_s:.1f} s: {why}")
    raise Failed("was opened")


RTSP_FAULTS: Mapping[str, tuple[str, Fault]] = {
    "stopped": ("camera stopped for 20 s (SIGSTOP)", stopped),
    "killed": ("camera killed, back after 2 s", killed),
    "cut": ("link cut in mid-frame", cut),
    "loss5": ("5 % of the packets lost for 5 s", loss_5),
    "loss20": ("20 % of the packets lost for 5 s", loss_20),
    "mid_group": ("opened in mid-GOP (10 s groups)", mid_group),
    "flaps": ("50 flaps", flaps),
    "stamps": ("time stamps: reset, outliers, jumps, wrap", stamps),
    "frozen": ("frozen for 8 s beside 7 others", frozen),
    "password": ("wrong password", password),
    "unknown_host": ("unknown host", unknown_host),
    "huge_keys": ("huge key frames", huge_keys),
    "four_k": ("4K", four_k),
}
