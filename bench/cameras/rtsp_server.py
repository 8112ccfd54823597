"""A GStreamer RTSP server that plays loops of `footage`, run by the system's Python.

Arguments: host, port (0: any), then pairs of mount point and loop file. With `--user NAME:PASSWORD`
in front, both are asked for. Prints its port, then serves until it is killed.
Picture `n` of a loop is sent when the wall clock says so, also after a pause, and whoever watches.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gi  # type: ignore[import-not-found, unused-ignore]

gi.require_version("Gst", "1.0")
gi.require_version("GstApp", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    GLib,
    Gst,
    GstApp,  # noqa: F401  gives appsrc its methods
    GstRtspServer,
)

CAPS = {
    "h264": "video/x-h264,stream-format=byte-stream,alignment=au",
    "hevc": "video/x-h265,stream-format=byte-stream,alignment=au",
    "mjpeg": "image/jpeg",
}
PAYERS = {
    "h264": "h264parse ! rtph264pay name=pay0 pt=96 config-interval=-1",
    "hevc": "h265parse ! rtph265pay name=pay0 pt=96 config-interval=-1",
    "mjpeg": "jpegparse ! rtpjpegpay name=pay0 pt=26",
}
GONE_S = 5.0  # a pipeline that takes nothing for so long is gone
LATE_S = 0.2  # this late a camera gives up, and goes on with the next key frame
START_CODE = b"\x00\x00\x01"
PARAMETERS = {"h264": (7, 8), "hevc": (32, 33, 34), "mjpeg": ()}


class Loop:
    """The pictures of one mount point and who sends them."""

    def __init__(self, path: Path) -> None:
        about = json.loads(path.with_suffix(".json").read_text())
        self.codec: str = about["codec"]
        self.fps: int = about["fps"]
        self.width: int = about["width"]
        self.height: int = about["height"]
        self.gop: int = about["gop"]
        data, at = path.read_bytes(), 0
        self.packets = []
        for size in about["sizes"]:
            self.packets.append(data[at : at + size])
            at += size

    def launch(self) -> str:
        caps = f"{CAPS[self.codec]},framerate={self.fps}/1,width={self.width},height={self.height}"
        source = "appsrc name=pictures is-live=true do-timestamp=true format=time max-bytes=0"
        return f"( {source} caps={caps} ! {PAYERS[self.codec]} )"

    def play(self, appsrc: Any) -> None:
        """Until the pipeline is gone."""
        number = int(time.time() * self.fps) + 1
        # A camera describes itself at any moment; the parameters stand only in key frames.
        head = parameters(self.codec, self.packets[0])
        refused_s = 0.0  # since when nothing is taken: before the start, at a seek, or for good
        while True:
            wait_s = number / self.fps - time.time()
            if wait_s < -LATE_S:
                due = int(time.time() * self.fps) + 1
                number = due + -due % self.gop
                continue
            time.sleep(max(0.0, wait_s))
            data = head + self.packets[number % len(self.packets)]
            if appsrc.push_buffer(Gst.Buffer.new_wrapped(data)) == Gst.FlowReturn.OK:
                head, refused_s = b"", 0.0
            else:
                refused_s = refused_s or time.time()
                if time.time() - refused_s > GONE_S:
                    return
            number += 1


def parameters(codec: str, key_frame: bytes) -> bytes:
    """What a decoder has to know first: it stands in front of the first slice of a key frame."""
    units = [unit.rstrip(b"\x00") for unit in key_frame.split(START_CODE) if unit]
    wanted = [unit for unit in units if unit and kind_of(codec, unit) in PARAMETERS[codec]]
    return b"".join(b"\x00" + START_CODE + unit for unit in wanted)


def kind_of(codec: str, unit: bytes) -> int:
    return unit[0] & 0x1F if codec == "h264" else unit[0] >> 1 & 0x3F


def main() -> None:
    words = sys.argv[1:]
    Gst.init(None)
    server = GstRtspServer.RTSPServer()
    user = ""
    if words[0] == "--user":
        user, _, password = words[1].partition(":")
        words = words[2:]
        ask_for(server, user, password)
    server.set_address(words[0])
    server.set_service(words[1])
    mounts = server.get_mount_points()
    for path, file in zip(words[2::2], words[3::2], strict=True):
        mounts.add_factory(path, make_factory(Loop(Path(file)), user))
    server.attach(None)
    print(server.get_bound_port(), flush=True)
    GLib.MainLoop().run()


def make_factory(loop: Loop, user: str) -> Any:
    factory = GstRtspServer.RTSPMediaFactory()
    factory.set_launch(loop.launch())
    factory.set_shared(True)  # those who come later come into the middle of a group
    factory.connect("media-configure", lambda _factory, media: start(loop, media))
    if user:
        roles = GstRtspServer.RTSPPermissions()
        roles.add_permission_for_role(user, "media.factory.access", True)
        roles.add_permission_for_role(user, "media.factory.construct", True)
        factory.set_permissions(roles)
    return factory


def start(loop: Loop, media: Any) -> None:
    appsrc = media.get_element().get_by_name("pictures")
    threading.Thread(target=loop.play, args=(appsrc,), daemon=True).start()


def ask_for(server: Any, user: str, password: str) -> None:
    auth = GstRtspServer.RTSPAuth()
    token = GstRtspServer.RTSPToken()
    token.set_string("media.factory.role", user)
    auth.add_basic(GstRtspServer.RTSPAuth.make_basic(user, password), token)
    server.set_auth(auth)


if __name__ == "__main__":
    main()
