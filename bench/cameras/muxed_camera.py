"""A camera that writes a loop of `footage` into whatever FFmpeg can mux, at the loop's pace.

    python muxed_camera.py LOOP.es SHAPE flv rtmp://127.0.0.1:1935/live/door
    python muxed_camera.py LOOP.es SHAPE hls FOLDER/live.m3u8

Packets are copied, never encoded. Runs until it is killed; it begins with a key frame.
"""

from __future__ import annotations

import json
import sys
import time
from fractions import Fraction
from pathlib import Path

import av

sys.path.append(str(Path(__file__).resolve().parents[1]))

from cameras.footage import Footage, Shape

OPTIONS = {
    "flv": {"flvflags": "no_duration_filesize"},
    "hls": {"hls_time": "1", "hls_list_size": "4", "hls_flags": "delete_segments"},
}


def main() -> None:
    loop, shape_json, form, target = sys.argv[1:]
    shape = Shape(**json.loads(shape_json))
    packets = Footage(Path(loop).parent, shape).packets()
    with (
        av.open(loop, format=shape.codec) as described,
        av.open(target, "w", format=form, options=OPTIONS[form]) as out,
    ):
        stream = out.add_stream_from_template(described.streams.video[0])
        stream.time_base = Fraction(1, shape.fps)
        now = int(time.time() * shape.fps) + 1
        first = number = now + -now % shape.gop
        while True:
            time.sleep(max(0.0, number / shape.fps - time.time()))
            packet = av.Packet(packets[number % shape.n_frames])
            packet.stream = stream
            packet.time_base = Fraction(1, shape.fps)
            packet.pts = packet.dts = number - first
            packet.duration = 1
            packet.is_keyframe = number % shape.gop == 0
            out.mux(packet)
            number += 1


if __name__ == "__main__":
    main()
