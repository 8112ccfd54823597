"""Recording the simulated workcell: video files with their labels."""

from __future__ import annotations

from fractions import Fraction
from functools import partial

import av
import numpy as np
import pytest

from liveedge.cli import main
from liveedge.core.errors import SettingsInvalid, SourceUnavailable
from liveedge.media.record import record
from liveedge.sim.clockcode import read_code
from liveedge.sim.labels import read_labels
from liveedge.sim.y4m import Y4mWriter, read_y4m


def decode(path) -> list[tuple[float, np.ndarray]]:
    with av.open(str(path)) as container:
        return [
            (float(frame.time), frame.to_ndarray(format="rgb24"))
            for frame in container.decode(video=0)
        ]


def test_an_mp4_shows_in_every_frame_the_moment_of_its_label(tmp_path) -> None:
    done = record(tmp_path / "out.mp4", seed=3, seconds=1.2, fps=12.5, size=(426, 240))
    frames, labels = decode(done.video), list(read_labels(done.labels))
    assert len(frames) == len(labels) == done.n_frames == 15
    for number, ((time_s, rgb), label) in enumerate(zip(frames, labels, strict=True)):
        code = read_code(rgb)
        assert code is not None
        assert code.frame_number == label.frame_number == number
        assert code.t_ms == round(label.t_s * 1000)
        assert code.wall_ms == label.wall_ms
        assert time_s == pytest.approx(label.t_s, abs=1e-3)


def test_an_mp4_is_h264_with_a_key_frame_every_second(tmp_path) -> None:
    done = record(tmp_path / "out.mp4", seconds=2.5, fps=10, size=(128, 96))
    with av.open(str(done.video)) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "h264"
        packets = [packet for packet in container.demux(stream) if packet.is_keyframe]
    assert [float((p.pts or 0) * p.time_base) for p in packets] == [0.0, 1.0, 2.0]


def test_a_y4m_of_odd_size_carries_the_same_scene(tmp_path) -> None:
    done = record(tmp_path / "out.y4m", seed=3, seconds=0.4, fps=10, size=(255, 161))
    header, frames = read_y4m(done.video)
    assert (header.width, header.height, header.fps) == (255, 161, Fraction(10))
    codes = [read_code(frame) for frame in frames]
    assert [code and code.t_ms for code in codes] == [0, 100, 200, 300]
    assert len(list(read_labels(done.labels))) == 4


@pytest.mark.parametrize("rgb", [(255, 0, 0), (0, 255, 0), (0, 0, 255), (250, 250, 250)])
def test_a_y4m_is_read_by_ffmpeg_with_the_same_colours(tmp_path, rgb) -> None:
    path = tmp_path / "out.y4m"
    with Y4mWriter(path, width=33, height=21, fps=Fraction(10)) as file:
        file.write(np.tile(np.array(rgb, np.uint8), (21, 33, 1)))
    [(_, seen)] = decode(path)
    assert np.abs(seen.astype(int) - rgb).max() <= 3


def test_the_same_options_write_the_same_bytes(tmp_path) -> None:
    write = partial(record, seed=4, seconds=0.3, fps=10, size=(128, 96))
    for suffix in (".mp4", ".y4m"):
        one, two = (write(tmp_path / f"{name}{suffix}") for name in ("one", "two"))
        assert one.video.read_bytes() == two.video.read_bytes()
        assert one.labels.read_bytes() == two.labels.read_bytes()


def test_progress_counts_every_frame(tmp_path) -> None:
    told: list[tuple[int, int]] = []
    record(
        tmp_path / "out.y4m",
        seconds=0.5,
        fps=10,
        size=(64, 64),
        progress=lambda done, total: told.append((done, total)),
    )
    assert told == [(n, 5) for n in range(1, 6)]


def test_an_interrupted_recording_leaves_no_file(tmp_path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    for suffix in (".mp4", ".y4m"):
        with pytest.raises(KeyboardInterrupt):
            record(tmp_path / f"out{suffix}", seconds=1, fps=10, size=(64, 64), progress=stop)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("out.avi", {}, "'.avi', needs .mp4 or .y4m"),
        ("out", {}, "needs .mp4 or .y4m"),
        ("missing/out.mp4", {}, "missing is not a folder"),
        ("out.mp4", {"size": (65, 64)}, "65x64, H.264 needs even sides"),
        ("out.mp4", {"seconds": 0}, "seconds is 0"),
        ("out.mp4", {"seconds": float("nan")}, "seconds is nan"),
    ],
)
def test_options_that_cannot_be_are_named(tmp_path, name, options, message) -> None:
    with pytest.raises(SettingsInvalid, match=message):
        record(tmp_path / name, **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options", [{"fps": 0}, {"seed": -1}, {"size": (16, 16)}, {"difficulty": "impossible"}]
)
def test_a_scene_that_cannot_be_is_refused_like_a_camera(tmp_path, options) -> None:
    with pytest.raises(SourceUnavailable, match=next(iter(options)).replace("size", "size is")):
        record(tmp_path / "out.y4m", **options)


def test_the_command_writes_the_video_and_says_where_its_truth_is(tmp_path, capsys) -> None:
    out = tmp_path / "out.y4m"
    arguments = ["--seed", "2", "--seconds", "0.5", "--fps", "8", "--size", "128x96"]
    assert main(["sim", "record", str(out), *arguments, "--difficulty", "hard"], {}) == 0
    assert capsys.readouterr().out == f"{out}: 4 frames; {out}.jsonl: their truth\n"
    assert len(read_y4m(out)[1]) == len(list(read_labels(tmp_path / "out.y4m.jsonl"))) == 4


@pytest.mark.parametrize("size", ["854", "854x", "-1x5", "axb"])
def test_the_command_refuses_what_is_no_size(tmp_path, capsys, size: str) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["sim", "record", str(tmp_path / "out.mp4"), f"--size={size}"], {})
    assert exit_.value.code == 2
    assert "is not a size such as 854x480" in capsys.readouterr().err


def test_the_command_says_what_is_wrong_with_a_name(tmp_path, capsys) -> None:
    assert main(["sim", "record", str(tmp_path / "out.avi")], {}) == 2
    assert "needs .mp4 or .y4m" in capsys.readouterr().err
