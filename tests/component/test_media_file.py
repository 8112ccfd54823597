"""A file as a stream: paced by its own clock, nothing dropped, order kept (cases 10, 11, 33, 34)."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from liveedge.core.errors import SourceUnavailable
from liveedge.core.tasks import OwnedThread
from liveedge.frames.store import FrameStore, StoreLimits
from liveedge.media.decode import VideoLimits
from liveedge.media.file import FileOptions, FileSource, parse_file_url
from liveedge.media.source import SourceLost
from liveedge.media.supervisor import Supervisor
from liveedge.testing.clock import FakeClock
from tests.media_files import encode_numbered, encode_video, flip, number_of, numbered, packets_of
from tests.media_sinks import ListSink, run_to_end


class LeapingClock(FakeClock):
    """Every wait is over at once, and time has passed."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        if not event.is_set():
            self.move(max(timeout_s, 0.0))
        return event.is_set()


@pytest.fixture
def clip_path(tmp_path: Path) -> Path:
    path = tmp_path / "clip.mp4"
    path.write_bytes(encode_numbered(20, fps=10))
    return path


def test_frames_come_in_order_at_their_own_times(clip_path: Path) -> None:
    clock = LeapingClock()
    sink = ListSink(clock)
    began_s = clock.monotonic_s()
    run_to_end(FileSource(FileOptions(path=clip_path), clock=clock), sink)
    assert sink.numbers() == list(range(20))
    assert [round(at_s - began_s, 3) for at_s in sink.arrived_s] == pytest.approx(
        [n / 10 for n in range(20)], abs=2e-3
    )
    assert sink.source_times_s == pytest.approx([n / 10 for n in range(20)], abs=1e-3)
    assert sink.codec == "h264"


def test_uneven_times_of_a_file_are_kept(tmp_path: Path) -> None:
    uneven = [0.0, 0.05, 0.4, 3.0, 3.1]
    path = tmp_path / "uneven.mkv"
    path.write_bytes(
        encode_video([(t, numbered(n)) for n, t in enumerate(uneven)], container="matroska")
    )
    clock = LeapingClock()
    sink = ListSink(clock)
    began_s = clock.monotonic_s()
    run_to_end(FileSource(FileOptions(path=path), clock=clock), sink)
    assert [at_s - began_s for at_s in sink.arrived_s] == pytest.approx(uneven, abs=2e-3)


def test_a_slow_consumer_gets_every_frame_late_and_in_order(clip_path: Path) -> None:
    """Case 33: a file never drops."""
    clock = LeapingClock()
    sink = ListSink(clock, costs_s=0.7)
    run_to_end(FileSource(FileOptions(path=clip_path), clock=clock), sink)
    assert sink.numbers() == list(range(20))


def test_a_looped_file_begins_again_and_its_clock_goes_on(clip_path: Path) -> None:
    clock = LeapingClock()
    stopping = threading.Event()
    sink = ListSink(clock, stop_after=50, stopping=stopping)
    FileSource(FileOptions(path=clip_path, loop=True), clock=clock).run(sink, stopping)
    assert sink.numbers() == [*range(20), *range(20), *range(10)]
    assert sink.source_times_s == pytest.approx([n / 10 for n in range(50)], abs=2e-3)


def test_recordings_joined_to_one_file_play_one_after_the_other(tmp_path: Path) -> None:
    """The time stamps begin again in the middle: nothing is played in a burst, nor twice at once."""
    path = tmp_path / "joined.ts"
    path.write_bytes(2 * encode_numbered(20, fps=10, container="mpegts"))
    clock = LeapingClock()
    stopping = threading.Event()
    sink = ListSink(clock, stop_after=60, stopping=stopping)
    began_s = clock.monotonic_s()
    FileSource(FileOptions(path=path, loop=True), clock=clock).run(sink, stopping)
    assert sink.numbers() == 3 * list(range(20))
    expected_s = pytest.approx([n / 10 for n in range(60)], abs=5e-3)
    assert [at_s - began_s for at_s in sink.arrived_s] == expected_s
    assert sink.source_times_s == expected_s


def test_a_file_of_one_picture_loops_at_its_own_rate(tmp_path: Path) -> None:
    path = tmp_path / "one.mp4"
    path.write_bytes(encode_numbered(1))
    clock = LeapingClock()
    stopping = threading.Event()
    sink = ListSink(clock, stop_after=3, stopping=stopping)
    FileSource(FileOptions(path=path, loop=True), clock=clock).run(sink, stopping)
    first, second, third = sink.arrived_s
    assert second - first == pytest.approx(third - second)
    assert second - first >= 0.02


def test_a_loop_of_a_moment_opens_its_file_some_times_a_second_and_no_more(tmp_path: Path) -> None:
    """A picture of one millisecond made 670 passes a second."""
    path = tmp_path / "one.mjpeg"
    path.write_bytes(
        encode_numbered(1, fps=1000, codec="mjpeg", container="avi", pix_fmt="yuvj420p")
    )
    clock = LeapingClock()
    stopping = threading.Event()
    sink = ListSink(clock, stop_after=11, stopping=stopping)
    began_s = clock.monotonic_s()
    FileSource(FileOptions(path=path, loop=True), clock=clock).run(sink, stopping)
    assert clock.monotonic_s() - began_s >= 1.0
    assert sink.source_times_s[-1] == pytest.approx(1.0, abs=0.01)


def test_a_file_of_which_nothing_can_be_shown_never_counts_as_live(tmp_path: Path) -> None:
    """It was live before it had a picture: a stream was created, and tried again for ever."""
    data = encode_numbered(
        3, fps=10, codec="mjpeg", container="avi", pix_fmt="yuvj420p", qmin="2", qmax="2"
    )
    for _, at, size in packets_of(data):
        data = flip(data, at + size // 2)
    path = tmp_path / "broken.avi"
    path.write_bytes(data)
    sink = ListSink(FakeClock())
    with pytest.raises(SourceLost, match="no frame of the file") as caught:
        run_to_end(FileSource(FileOptions(path=path), clock=FakeClock()), sink)
    assert caught.value.hopeless
    assert sink.states == []


@pytest.mark.parametrize("kind", ["directory", "pipe", "socket", "device", "file of the kernel"])
def test_what_is_no_regular_file_is_refused_at_once_and_named(kind: str, tmp_path: Path) -> None:
    """Opening a pipe lasts until somebody writes to it: each attempt left a thread behind."""
    path = tmp_path / "x"
    with socket.socket(socket.AF_UNIX) as listener:
        match kind:
            case "directory":
                path.mkdir()
            case "pipe":
                os.mkfifo(path)
            case "socket":
                listener.bind(str(path))
            case "device":
                path.symlink_to("/dev/zero")
            case _:
                path.symlink_to("/proc/kmsg")
        with pytest.raises(SourceLost) as caught:
            run_to_end(FileSource(FileOptions(path=path), clock=FakeClock()), ListSink(FakeClock()))
    assert caught.value.hopeless
    why = "it is empty" if kind == "file of the kernel" else f"a {kind}, not a video file"
    assert why in caught.value.reason


def test_a_file_that_becomes_a_pipe_before_it_is_opened_holds_nobody(clip_path: Path) -> None:
    """Between the look and the opening; here the look is the very opening's own."""
    fifo = clip_path.with_name("pipe")
    os.mkfifo(fifo)

    class Swapped(type(fifo)):  # type: ignore[misc]  # PosixPath or its like
        def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
            return clip_path.stat()

    with pytest.raises(SourceLost, match="a pipe"):
        run_to_end(
            FileSource(FileOptions(path=Swapped(fifo)), clock=FakeClock()), ListSink(FakeClock())
        )


def test_no_pass_leaves_its_file_open(clip_path: Path) -> None:
    stopping = threading.Event()
    clock = LeapingClock()
    sink = ListSink(clock, stop_after=100, stopping=stopping)
    n_open = len(list(Path("/proc/self/fd").iterdir()))
    FileSource(FileOptions(path=clip_path, loop=True), clock=clock).run(sink, stopping)
    assert len(list(Path("/proc/self/fd").iterdir())) <= n_open


def test_an_option_behind_a_plain_path_is_told_its_form(tmp_path: Path) -> None:
    options = parse_file_url(f"{tmp_path}/clip.mp4?loop=true")
    with pytest.raises(SourceLost, match=r"no such file; .*file:///"):
        run_to_end(FileSource(options, clock=FakeClock()), ListSink(FakeClock()))


def test_a_broken_frame_is_skipped_and_counted_and_the_others_keep_their_times(
    tmp_path: Path,
) -> None:
    data = encode_numbered(
        20, fps=10, codec="mjpeg", container="avi", pix_fmt="yuvj420p", qmin="2", qmax="2"
    )
    _, at, size = packets_of(data)[8]
    path = tmp_path / "broken.avi"
    path.write_bytes(flip(data, at + size // 2))
    clock = LeapingClock()
    store = FrameStore("file", clock=clock, limits=StoreLimits(history_bytes=0))
    # The supervisor's own clock stands still: nothing is late.
    supervisor = Supervisor(
        FileSource(FileOptions(path=path), clock=clock), store, clock=FakeClock(), name="file"
    )
    supervisor.start()
    supervisor.wait_opened(10)
    for _ in range(5000):
        if supervisor.status().health == "ended":
            break
        threading.Event().wait(0.002)
    supervisor.stop()
    counters = store.counters()
    assert counters.received == counters.retained + counters.evicted + counters.dropped == 20
    assert dict(counters.dropped_by_reason) == {"undecodable": 1}
    snapshot = store.snapshot()
    expected_ms = [n * 100 for n in range(20) if n != 8]
    assert list(snapshot.stream_time_ms) == pytest.approx(expected_ms, abs=5)
    assert [number_of(store.load(i)) for i in range(19)] == [n for n in range(20) if n != 8]
    store.close()


def test_a_file_cut_short_plays_what_is_there_and_ends(tmp_path: Path) -> None:
    """Case 11."""
    whole = encode_numbered(40, gop=1, container="mpegts")
    path = tmp_path / "cut.ts"
    path.write_bytes(whole[: len(whole) * 7 // 10])
    clock = LeapingClock()
    sink = ListSink(clock)
    run_to_end(FileSource(FileOptions(path=path), clock=clock), sink)
    clean = [n for n, corrupt in zip(sink.numbers(), sink.corrupt, strict=True) if not corrupt]
    assert 20 <= len(clean) < 40
    assert clean == list(range(len(clean)))


def test_a_stop_ends_a_wait_between_frames_at_once(tmp_path: Path) -> None:
    path = tmp_path / "slow.mp4"
    path.write_bytes(encode_video([(0, numbered(0)), (3600, numbered(1))]))
    clock = FakeClock()  # stands still: only the stop can end the wait
    sink = ListSink(clock)
    source = FileSource(FileOptions(path=path), clock=clock)
    thread = OwnedThread("file", lambda stopping: source.run(sink, stopping))
    thread.start()
    assert sink.first.wait(10)
    assert thread.stop(5)
    assert sink.numbers() == [0]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "no such file"),
        (b"", "not a readable video file: it is empty"),
        (b"plain text", "not a readable video file"),
        (b"#EXTM3U\n#EXTINF:1,\nclip.mp4\n", "not a readable video file"),
        (b"ffconcat version 1.0\nfile clip.mp4\n", "not a readable video file"),
        (encode_numbered(2, codec="flv", container="flv"), "codec not supported"),
        (encode_numbered(1, width=640, height=480), "640x480"),
    ],
)
def test_what_cannot_be_played_says_why_and_not_where(
    content: bytes | None, why: str, clip_path: Path, tmp_path: Path
) -> None:
    path = tmp_path / "secret-name"
    if content is not None:
        path.write_bytes(content)
    source = FileSource(
        FileOptions(path=path), clock=FakeClock(), limits=VideoLimits(max_side_px=400)
    )
    with pytest.raises(SourceLost) as caught:
        run_to_end(source, ListSink(FakeClock()))
    assert why in caught.value.reason
    assert caught.value.hopeless
    assert "secret-name" not in caught.value.reason


@pytest.mark.parametrize("name", ["concat:clip.mp4", "http:%2f%2fhost%2fclip.mp4"])
def test_a_path_is_never_read_as_another_protocol(name: str, tmp_path: Path) -> None:
    (tmp_path / "clip.mp4").write_bytes(encode_numbered(1))
    source = FileSource(FileOptions(path=tmp_path / name), clock=FakeClock())
    with pytest.raises(SourceLost, match="no such file"):
        run_to_end(source, ListSink(FakeClock()))


@pytest.mark.parametrize(
    ("url", "path", "loop"),
    [
        ("/videos/a.mp4", "/videos/a.mp4", False),
        ("/videos/what?.mp4", "/videos/what?.mp4", False),
        ("file:///videos/a.mp4", "/videos/a.mp4", False),
        ("file://localhost/videos/a%20b.mp4?loop=true", "/videos/a b.mp4", True),
        ("file:///videos/a.mp4?loop=0", "/videos/a.mp4", False),
    ],
)
def test_file_urls_name_a_path_and_whether_to_loop(url: str, path: str, loop: bool) -> None:
    assert parse_file_url(url) == FileOptions(path=Path(path), loop=loop)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a.mp4",
        "http://host/a.mp4",
        "file://host/a.mp4",
        "file:",
        "file:///a?loop=maybe",
        "file:///a?lop=true",
        "file:///a?loop=true&loop=false",
        "file:///a#b",
        "file:///x.mp4%00y",
        "/x.mp4\0y",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(SourceUnavailable, match=r"^file: "):
        parse_file_url(url)


def test_who_gets_the_form_wrong_is_told_both() -> None:
    with pytest.raises(SourceUnavailable, match=r"absolute path .*file:///"):
        parse_file_url("videos/a.mp4")
