"""Ten minutes of 720p30 in the history: bytes, one frame back, a segment back, every index its own.

    python bench/history.py

Three streams, fed from clips that were encoded before, faster than real time, on a clock that the
program moves; the scene moves, has sensor noise, and a counter is burned into every frame.
packets   H.264 at about 3 Mbit/s with a key frame each second, kept as it came
encode    the same frames without their packets, as of a camera that reorders: encoded by us
changes   packets and none, 720p, 360p and 1080p, H.264 and VP8, gaps, in a tenth of the bytes
*mb* is what the frames hold in the history at the end. A frame is loaded at random, decoded and
converted to RGB; *p95* is of these. A segment is 60 consecutive frames, loaded in order by two
threads, as the engine's loaders do; its *speed* is its two seconds over the time it took. For
*identity* every loaded frame must show the number it was sent with; of the packets' frames the pixels
must be the very ones. The cap is looked at after every frame.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from liveedge.core.tasks import OwnedThread
from liveedge.frames.frame import CodecParams, CodedFrame
from liveedge.frames.store import FrameStore, StoreLimits
from liveedge.media.history_codec import AvHistoryCodec
from liveedge.media.pixels import AvPixels
from liveedge.sim.clockcode import CodeReading, read_code, write_code
from liveedge.testing.clock import FakeClock
from machine import announce
from report import finish, percentile, table

FPS = 30
CAP_BYTES = 400 * 10**6
RETENTION_S = 600.0
SEGMENT_FRAMES = 60
CLIP_S = 20  # then it begins again; numbers count on, modulo the clip
ENCODERS = {
    "h264": ("libx264", {"preset": "veryfast", "tune": "zerolatency", "forced-idr": "1"}),
    "vp8": ("libvpx", {"deadline": "realtime", "cpu-used": "8"}),
}
N_NOISES = 8  # pictures of noise, one of them at random in each frame
BITS_PER_PIXEL = 0.11  # of a camera: 3 Mbit/s for 1280x720 at 30 a second


@dataclass(frozen=True, slots=True)
class Clip:
    """Packets of numbered frames."""

    params: CodecParams
    packets: tuple[tuple[bytes, bool], ...]  # and whether it is a key frame
    first: int  # number of the first frame

    @property
    def megabits_per_s(self) -> float:
        return sum(len(data) for data, _ in self.packets) * 8e-6 * FPS / len(self.packets)


class Scenery:
    """A view that pans over a wide picture with things that move, and a sensor's noise."""

    def __init__(self, width: int, height: int) -> None:
        rng = np.random.default_rng(7)
        self._width, self._height = width, height
        coarse = rng.integers(70, 150, (height // 16 + 1, width // 4, 3))
        wide = np.kron(coarse, np.ones((16, 8, 1), np.int64))[:height]
        self._wide = wide.astype(np.int16)
        noise = rng.standard_normal((N_NOISES, height, width, 1), dtype=np.float32)
        self._noise = (3 * noise).astype(np.int16)
        self._rng = rng

    def picture(self, number: int) -> NDArray[np.uint8]:
        left = (3 * number) % (self._wide.shape[1] - self._width)
        rgb = self._wide[:, left : left + self._width] + self._noise[self._rng.integers(N_NOISES)]
        side = self._height // 5
        for k in range(4):
            x = (number * (5 + 2 * k) + k * 300) % (self._width - side)
            y = (number * (2 + k) + k * 90) % (self._height - 2 * side)
            rgb[y : y + side, x : x + side] = (40 + 50 * k, 220 - 40 * k, 60)
        picture = np.clip(rgb, 0, 255).astype(np.uint8)
        write_code(picture, CodeReading(number, 0, 0))
        return picture


def make_clip(
    n_frames: int,
    *,
    codec: str = "h264",
    size: tuple[int, int] = (1280, 720),
    first: int = 0,
    gop: int = FPS,
) -> Clip:
    """Encode a clip, with a key frame each `gop`."""
    width, height = size
    name, options = ENCODERS[codec]
    context: Any = av.CodecContext.create(name, "w")
    context.width, context.height, context.pix_fmt = width, height, "yuv420p"
    context.time_base, context.framerate = Fraction(1, FPS), Fraction(FPS)
    context.gop_size, context.options = gop, options
    context.bit_rate = int(BITS_PER_PIXEL * width * height * FPS)
    scenery, packets = Scenery(width, height), []
    for n in range(n_frames):
        frame = av.VideoFrame.from_ndarray(scenery.picture(first + n), format="rgb24")
        frame.pts = n
        packets += context.encode(frame)
    packets += context.encode(None)
    coded = tuple((bytes(packet), packet.is_keyframe) for packet in packets)
    return Clip(CodecParams(codec=codec), coded, first)


def decoded(clip: Clip) -> Iterator[tuple[int, AvPixels, CodedFrame]]:
    """Number, pixels and packets of every frame, as a source of one thread gives them."""
    decoder: Any = av.CodecContext.create(clip.params.codec, "r")
    decoder.thread_count = 1
    for n, (data, is_key) in enumerate(clip.packets):
        (frame,) = decoder.decode(av.Packet(data))
        coded = CodedFrame(params=clip.params, packets=(data,), is_key=is_key)
        yield clip.first + n, AvPixels(frame), coded


@dataclass(slots=True)
class Fed:
    """A store that was fed, and what is known of its frames."""

    store: FrameStore
    clock: FakeClock
    limits: StoreLimits
    numbers: list[int] = field(default_factory=list)  # by index
    is_capped: bool = True  # the cap held at every look
    took_s: float = 0.0

    @classmethod
    def begin(cls, *, cap_bytes: int = CAP_BYTES) -> Fed:
        clock = FakeClock()
        limits = StoreLimits(history_bytes=cap_bytes, retention_s=RETENTION_S)
        store = FrameStore("bench", clock=clock, limits=limits, codec=AvHistoryCodec())
        return cls(store, clock, limits)

    def feed(self, clip: Clip, *, with_packets: bool) -> None:
        begun_s = time.perf_counter()
        for number, pixels, coded in decoded(clip):
            self.store.publish(pixels, coded=coded if with_packets else None)
            self.numbers.append(number)
            if not self.store.wait_encoded(30):
                raise SystemExit("the history stands still")
            self.clock.move(1 / FPS)
            self.is_capped &= self.store.counters().memory_bytes <= self.limits.reserved_bytes
        self.took_s += time.perf_counter() - begun_s

    def shows(self, index: int, rgb: NDArray[np.uint8]) -> bool:
        reading = read_code(rgb)
        return reading is not None and reading.frame_number == self.numbers[index]

    def past(self) -> list[int]:
        """What is retained and not hot."""
        n_hot = self.limits.hot_bytes // (1280 * 720 * 3 // 2) + 1
        indices: list[int] = self.store.snapshot().index.tolist()
        return indices[:-n_hot]

    @property
    def history_bytes(self) -> int:
        """Of the history alone."""
        return self.store._tiers.arena.used_bytes


def time_frames(fed: Fed, n: int) -> tuple[list[float], bool]:
    """Milliseconds of single frames at random, and whether each was the right one."""
    rng = np.random.default_rng(1)
    taken_ms, is_right = [], True
    for index in rng.choice(fed.past(), n).tolist():
        begun_s = time.perf_counter()
        rgb = fed.store.load(index)
        taken_ms.append((time.perf_counter() - begun_s) * 1000)
        is_right &= fed.shows(index, rgb)
    return taken_ms, is_right


def time_segment(fed: Fed, indices: Sequence[int]) -> tuple[float, bool]:
    """Seconds that two threads take for these frames, and whether each was the right one."""
    reader = fed.store.segment(indices)
    waiting, lock = list(reversed(indices)), threading.Lock()
    loaded: dict[int, NDArray[np.uint8]] = {}

    def load(_stopping: threading.Event) -> None:
        while True:
            with lock:
                if not waiting:
                    return
                index = waiting.pop()
            loaded[index] = reader.load(index)

    threads = [OwnedThread(f"loader-{n}", load) for n in range(2)]
    begun_s = time.perf_counter()
    for thread in threads:
        thread.start()
    if not all(thread.stop(60) for thread in threads):
        raise SystemExit("a segment was not loaded within a minute")
    taken_s = time.perf_counter() - begun_s
    return taken_s, len(loaded) == len(indices) and all(
        fed.shows(index, rgb) for index, rgb in loaded.items()
    )


def time_segments(fed: Fed, n: int) -> tuple[list[float], bool]:
    """How many times faster than real time segments are, and whether each frame was right."""
    rng = np.random.default_rng(2)
    past = fed.past()
    speeds, is_right = [], True
    for start in rng.integers(0, len(past) - SEGMENT_FRAMES, n).tolist():
        taken_s, ok = time_segment(fed, past[start : start + SEGMENT_FRAMES])
        speeds.append(SEGMENT_FRAMES / FPS / taken_s)
        is_right &= ok
    return speeds, is_right


def is_every_frame_right(fed: Fed) -> bool:
    """All that is retained, segment by segment."""
    indices = fed.store.snapshot().index.tolist()
    return all(
        time_segment(fed, indices[at : at + SEGMENT_FRAMES])[1]
        for at in range(0, len(indices), SEGMENT_FRAMES)
    )


def are_pixels_the_same(fed: Fed, clip: Clip) -> bool:
    """The last frames of the clip that are only in the history, against another decoder's."""
    past = set(fed.past()[-len(clip.packets) :])
    offset = len(fed.numbers) - len(clip.packets)
    return all(
        np.array_equal(fed.store.load(offset + n), pixels.rgb())
        for n, (_, pixels, _) in enumerate(decoded(clip))
        if n % 97 == 0 and offset + n in past
    )


def measure(mode: str, clip: Clip, options: argparse.Namespace) -> dict[str, Any]:
    """Feed a stream for as long as it is retained, and read it back."""
    fed = Fed.begin()
    try:
        n_frames = round(options.seconds * FPS)
        while len(fed.numbers) < n_frames:
            fed.feed(clip, with_packets=mode == "packets")
        counters = fed.store.counters()
        frames_ms, frames_ok = time_frames(fed, options.loads)
        speeds, segments_ok = time_segments(fed, options.segments)
        is_exact = mode != "packets" or are_pixels_the_same(fed, clip)
        return {
            "mb": fed.history_bytes / 1e6,
            "retained_s": counters.retained / FPS,
            "kept": counters.kept_frames,
            "encoded": counters.encoded_frames,
            "frame_p50_ms": percentile(frames_ms, 50),
            "frame_p95_ms": percentile(frames_ms, 95),
            "segment_speed": statistics.median(speeds),
            "segment_speed_worst": min(speeds),
            "feed_speed": len(fed.numbers) / FPS / fed.took_s,
            "cap_ok": fed.is_capped,
            "identity_ok": frames_ok and segments_ok and is_exact,
        }
    finally:
        fed.store.close()


def measure_changes(n_frames: int) -> dict[str, Any]:
    """Sizes, codecs, gaps and sources with and without packets, in little room."""
    sizes = [(1280, 720), (640, 360), (1920, 1080)]
    fed = Fed.begin(cap_bytes=CAP_BYTES // 10)
    is_right = True
    try:
        for turn in range(6):
            codec = "vp8" if turn % 3 == 2 else "h264"
            size = sizes[turn % len(sizes)]
            clip = make_clip(n_frames, codec=codec, size=size, first=10_000 * turn)
            for with_packets in (True, False):
                fed.feed(clip, with_packets=with_packets)
                fed.store.mark_gap()
                fed.clock.move(3)
            is_right &= is_every_frame_right(fed)
        counters = fed.store.counters()
        adds_up = counters.received == counters.retained + counters.evicted + counters.dropped
        return {
            "retained": counters.retained,
            "evicted": counters.evicted,
            "cap_ok": fed.is_capped,
            "identity_ok": is_right and adds_up,
        }
    finally:
        fed.store.close()


def main() -> int:
    """Measure the three streams."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=RETENTION_S, help="of stream, each mode")
    parser.add_argument("--loads", type=int, default=200, help="single frames")
    parser.add_argument("--segments", type=int, default=15)
    parser.add_argument("--gop", type=int, default=FPS, help="from one key frame to the next")
    parser.add_argument("--quick", action="store_true", help="5 s of stream")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.loads, options.segments = 5.0, 10, 1
    announce()
    clip = make_clip(round(min(CLIP_S, options.seconds) * FPS), gop=options.gop)
    print(f"the camera sends {clip.megabits_per_s:.2f} Mbit/s\n", flush=True)
    found = {mode: measure(mode, clip, options) for mode in ("packets", "encode")}
    rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    changes = measure_changes(6 if options.quick else 200)
    columns = ["mode", *found["packets"]]
    table(columns, [[mode, *map(_shown, one.values())] for mode, one in found.items()])
    table(["changes", *changes], [["", *map(_shown, changes.values())]])
    all_found = [*found.values(), changes]
    finish(
        {
            "mb": max(one["mb"] for one in found.values()),
            "frame_p95_ms": max(one["frame_p95_ms"] for one in found.values()),
            "segment_speed": min(one["segment_speed"] for one in found.values()),
            "identity_ok": all(one["identity_ok"] for one in all_found),
            "cap_ok": all(one["cap_ok"] for one in all_found),
            "retained_s": min(one["retained_s"] for one in found.values()),
            "rss_mb": rss_mb,
            "modes": found,
            "changes": changes,
        }
    )
    return 0


def _shown(value: object) -> object:
    return ("yes" if value else "no") if isinstance(value, bool) else value


if __name__ == "__main__":
    sys.exit(main())
