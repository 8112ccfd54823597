"""What every source promises to its supervisor, the fake as the real ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

from liveedge.core.clock import SystemClock
from liveedge.core.errors import StreamStateInvalid
from liveedge.core.tasks import OwnedThread
from liveedge.frames.frame import CodedFrame, Frame, Pixels
from liveedge.media.file import FileOptions, FileSource
from liveedge.media.picture import PictureLimits
from liveedge.media.published import PublishedSource, Publisher
from liveedge.media.push import PushSource
from liveedge.media.sim import SimOptions, SimSource
from liveedge.media.source import Health, Source
from liveedge.testing.clock import FakeClock
from liveedge.testing.source import FakeCamera, plain_pixels
from tests.media_files import encode_image, encode_numbered
from tests.media_sinks import ListSink


class Case:
    """A source with whatever it needs to deliver."""

    def __init__(self, source: Source, feed: Callable[[], object] | None = None) -> None:
        self.source = source
        self._feed = feed
        self._feeder: OwnedThread | None = None

    def start(self) -> None:
        if self._feed is not None and self._feeder is None:
            self._feeder = OwnedThread("feeder", self._keep_feeding)
            self._feeder.start()

    def _keep_feeding(self, stopping: threading.Event) -> None:
        assert self._feed is not None
        while not stopping.wait(0.005):
            try:
                self._feed()
            except StreamStateInvalid:  # not running at the moment
                continue

    def close(self) -> None:
        if self._feeder is not None:
            self._feeder.stop(10)


def _sim(tmp_path: Path) -> Case:
    options = SimOptions(fps=100, width=64, height=48, difficulty="easy")
    return Case(SimSource(options, clock=SystemClock()))


def _file(tmp_path: Path) -> Case:
    path = tmp_path / "clip.mp4"
    path.write_bytes(encode_numbered(10, fps=100, width=64, height=48))
    return Case(FileSource(FileOptions(path=path, loop=True), clock=SystemClock()))


def _push(tmp_path: Path) -> Case:
    source = PushSource(limits=PictureLimits())
    picture = encode_image(Image.new("RGB", (64, 48)), "PNG")
    return Case(source, lambda: source.push(picture))


def _fake(tmp_path: Path) -> Case:
    camera = FakeCamera()
    return Case(camera, lambda: camera.is_running and camera.send())


def _published(tmp_path: Path) -> Case:
    source = PublishedSource("livekit")
    present: list[Publisher] = []

    def feed() -> None:
        if not present:
            present.append(source.attach(lambda _reason: None))
        if present[0].frame(plain_pixels()) is None:  # its stream has ended: it comes back
            present.clear()

    return Case(source, feed)


@pytest.fixture(
    params=[_sim, _file, _push, _published, _fake],
    ids=["sim", "file", "push", "published", "fake"],
)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    case: Case = request.param(tmp_path)
    yield case
    case.close()


class Refusing(ListSink):
    """The sink of an attempt that has been cut off."""

    def frame(
        self,
        pixels: Pixels,
        *,
        source_time_s: float | None = None,
        corrupt: bool = False,
        coded: CodedFrame | None = None,
    ) -> Frame | None:
        super().frame(pixels, source_time_s=source_time_s, corrupt=corrupt, coded=coded)
        return None


def run(case: Case, sink: ListSink, *, n_frames: int = 5) -> None:
    """Run the source until some frames are there, then stop it."""
    thread = OwnedThread("contract", lambda stopping: case.source.run(sink, stopping))
    thread.start()
    case.start()
    for _ in range(5000):
        if len(sink.pixels) >= n_frames or not thread.alive:
            break
        threading.Event().wait(0.002)
    ended = thread.stop(5)
    assert ended, "it did not end when it was told to"
    assert thread.error is None
    assert len(sink.pixels) >= n_frames


def test_it_delivers_until_it_is_told_to_stop_and_then_ends(case: Case) -> None:
    run(case, ListSink(FakeClock()))


def test_frames_come_in_the_order_of_the_sources_own_clock(case: Case) -> None:
    sink = ListSink(FakeClock())
    run(case, sink, n_frames=25)
    times_s = [time_s for time_s in sink.source_times_s if time_s is not None]
    assert times_s == sorted(times_s)
    assert len(times_s) in (0, len(sink.pixels))


def test_frames_say_their_size_before_anybody_converts_them(case: Case) -> None:
    sink = ListSink(FakeClock())
    run(case, sink)
    for pixels in sink.pixels:
        rgb = pixels.rgb()
        assert rgb.shape == (pixels.height, pixels.width, 3) == (48, 64, 3)
        assert rgb.flags.c_contiguous
        assert pixels.nbytes >= 64 * 48


def test_states_told_are_states_of_an_open_source(case: Case) -> None:
    sink = ListSink(FakeClock())
    run(case, sink)
    allowed: set[Health] = {"waiting_for_publisher", "waiting_for_keyframe", "live"}
    assert {health for health, _ in sink.states} <= allowed


def test_it_can_run_again_after_it_was_stopped(case: Case) -> None:
    run(case, ListSink(FakeClock()))
    run(case, ListSink(FakeClock()))


def test_a_sink_that_takes_nothing_does_not_break_it(case: Case) -> None:
    run(case, Refusing(FakeClock()))
