"""A camera of each kind, opened and under watch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial, partialmethod
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeAlias

import httpx

from cameras.footage import Footage, Shape
from cameras.publisher import Publisher, Way
from cameras.rtsp_camera import RtspCamera
from cameras.scene import Failed, Shot, Stage, wall_ms
from liveedge.core.tasks import OwnedThread
from peers.process import free_port

MUXER = Path(__file__).with_name("muxed_camera.py")
NGINX = shutil.which("nginx") or "/usr/sbin/nginx"
RTMP_MODULE = "/usr/lib/nginx/modules/ngx_rtmp_module.so"
RTMP_CONF = """
load_module {module};
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 64; }}
rtmp {{ server {{ listen 127.0.0.1:{port}; chunk_size 4096; application live {{ live on; }} }} }}
"""
START_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A stream that has been opened, and when."""

    shot: Shot
    begun_ms: float  # the client began: wall clock
    connected_ms: float  # the server had answered
    note: str = ""


Open: TypeAlias = Callable[[Stage, ExitStack, Shape], Opened]


def _rtsp(codec: str, stage: Stage, stack: ExitStack, shape: Shape) -> Opened:
    footage = stage.make_footage(replace(shape, codec=codec))
    camera = stack.enter_context(RtspCamera({"live": footage}))
    return _pulled(stage, footage, "rtsp", f"rtsp://127.0.0.1:{camera.port}/live")


def _rtmp(stage: Stage, stack: ExitStack, shape: Shape) -> Opened:
    footage = stage.make_footage(shape)
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    port = free_port()
    conf = Path(folder, "nginx.conf")
    conf.write_text(RTMP_CONF.format(module=RTMP_MODULE, folder=folder, port=port))
    _run(stack, [NGINX, "-c", str(conf), "-p", folder])
    url = f"rtmp://127.0.0.1:{port}/live/door"
    time.sleep(0.5)  # nginx does not say when it listens
    _mux(stack, footage, "flv", url)
    time.sleep(2.0)  # nor that it has a publisher
    return _pulled(stage, footage, "rtmp", url, note="through nginx")


def _hls(stage: Stage, stack: ExitStack, shape: Shape) -> Opened:
    footage = stage.make_footage(shape)
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    playlist = Path(folder, "live.m3u8")
    _mux(stack, footage, "hls", str(playlist))
    web = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder))
    thread = OwnedThread("bench-hls", lambda _: web.serve_forever())
    thread.start()
    stack.callback(thread.stop)
    stack.callback(web.shutdown)
    deadline_s = time.monotonic() + START_LIMIT_S
    while not playlist.exists() or playlist.read_text().count("#EXTINF") < 3:
        if time.monotonic() > deadline_s:
            raise Failed("the muxer wrote no playlist")
        time.sleep(0.1)
    url = f"http://127.0.0.1:{web.server_port}/live.m3u8"
    return _pulled(stage, footage, "hls", url, note="segments of 1 s")


def _published(
    way: Way, codec: str, stage: Stage, stack: ExitStack, shape: Shape, *, loss: float = 0.0
) -> Opened:
    live = way == "livekit"
    footage = stage.make_footage(replace(shape, codec=codec, live=live))
    shot = stage.shoot({"type": way}, footage, truth=False)
    assert shot.publish is not None
    publisher = stack.enter_context(Publisher(way, shot.publish, footage))
    answered = publisher.event("answered_ms")
    if loss:
        publisher.lose(loss)
    return Opened(
        shot=shot,
        begun_ms=answered["begun_ms"],
        connected_ms=answered["answered_ms"],
        note="the delay holds the SDK's encoder" if live else "",
    )


def _push(stage: Stage, stack: ExitStack, shape: Shape) -> Opened:
    footage = stage.make_footage(replace(shape, codec="mjpeg"))
    begun_ms = wall_ms()
    shot = stage.shoot({"type": "push"}, footage, truth=False)
    connected_ms = wall_ms()
    url = f"{stage.rig.url}/v1beta/streams/{shot.stream_id}/frames"
    thread = OwnedThread("bench-push", partial(_push_for_ever, url, footage))
    thread.start()
    stack.callback(thread.stop)
    return Opened(shot=shot, begun_ms=begun_ms, connected_ms=connected_ms, note="JPEG over HTTP")


def _push_for_ever(url: str, footage: Footage, stopping: threading.Event) -> None:
    packets = footage.packets()
    fps = footage.shape.fps
    number = int(time.time() * fps) + 1
    with httpx.Client(trust_env=False) as http:
        while not stopping.wait(max(0.0, number / fps - time.time())):
            body = packets[number % len(packets)]
            http.post(url, content=body, headers={"content-type": "image/jpeg"})
            number = max(number + 1, int(time.time() * fps))


def _pulled(stage: Stage, footage: Footage, kind: str, url: str, *, note: str = "") -> Opened:
    begun_ms = wall_ms()
    shot = stage.shoot({"type": kind, "url": url}, footage, truth=False)
    return Opened(shot=shot, begun_ms=begun_ms, connected_ms=shot.opened_ms, note=note)


def _mux(stack: ExitStack, footage: Footage, form: str, target: str) -> None:
    shape = json.dumps(asdict(footage.shape))
    _run(stack, [sys.executable, str(MUXER), str(footage.path), shape, form, target])


def _run(stack: ExitStack, command: list[str]) -> None:
    child: subprocess.Popen[bytes] = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    stack.callback(child.wait)
    stack.callback(child.kill)


class _Quiet(SimpleHTTPRequestHandler):
    log_message = partialmethod(lambda _self, *_arguments: None)


SOURCES: Mapping[str, Open] = {
    "rtsp h264": partial(_rtsp, "h264"),
    "rtsp hevc": partial(_rtsp, "hevc"),
    "rtsp mjpeg": partial(_rtsp, "mjpeg"),
    "rtmp h264": _rtmp,
    "hls h264": _hls,
    "whip h264": partial(_published, "whip", "h264"),
    "whip vp8": partial(_published, "whip", "vp8"),
    "whip h264 2 % lost": partial(_published, "whip", "h264", loss=0.02),
    "whip h264 10 % lost": partial(_published, "whip", "h264", loss=0.1),
    "livekit h264": partial(_published, "livekit", "h264"),
    "livekit vp8": partial(_published, "livekit", "vp8"),
    "push jpeg": _push,
}
