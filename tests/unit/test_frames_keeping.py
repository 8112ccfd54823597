"""How frames go into the history: packets where they are near and few enough, else our own chunks."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from liveedge.frames.chunks import Piece, Replay, StoredRun
from liveedge.frames.frame import CodecParams, CodedFrame, Frame, RgbPixels
from liveedge.frames.keeping import ByteRate, Recorder

PARAMS = CodecParams(codec="any", extradata=b"camera")
PERIOD_MS = 40


@dataclass
class PlannedCodec:
    """A codec whose costs are set by the test."""

    frame_s: float = 0.0  # to decode one
    encode_s: float = 0.0
    refuses: set[int] = field(default_factory=set)

    def keep(self, frame: Frame) -> Piece | None:
        coded = frame.coded
        if coded is None:
            return None
        return Piece(
            format=coded.params.extradata, packets=coded.packets, is_key=coded.is_key, exact=True
        )

    def encoder(self, *, bytes_per_s: float) -> PlannedCodec:
        return self

    def encode(self, frame: Frame, *, begin: bool) -> Piece:
        if frame.index in self.refuses:
            raise ValueError("refused")
        return Piece(format=b"own", packets=(b"own",), is_key=begin, exact=False)

    def replay(self, run: StoredRun) -> Replay:
        yield from ()

    def replay_s(self, format: bytes, *, n_pixels: int) -> float:
        return self.frame_s


def frame(
    index: int,
    *,
    key: bool | None = None,
    n_bytes: int = 100,
    at_ms: int | None = None,
    size: tuple[int, int] = (4, 6),
    gap: bool = False,
    corrupt: bool = False,
    params: CodecParams = PARAMS,
) -> Frame:
    """`key` is None for a frame without packets."""
    coded = None
    if key is not None:
        coded = CodedFrame(params=params, packets=(bytes(n_bytes),), is_key=key)
    time_ms = index * PERIOD_MS if at_ms is None else at_ms
    return Frame(
        index=index,
        stream_time_ms=time_ms,
        captured_at_ms=time_ms,
        arrived_s=time_ms / 1000,
        pixels=RgbPixels(np.zeros((*size, 3), np.uint8)),
        coded=coded,
        after_gap=gap,
        corrupt=corrupt,
    )


def camera(n: int, *, gop: int = 10, first: int = 0, **options) -> list[Frame]:
    return [frame(i, key=i % gop == 0, **options) for i in range(first, first + n)]


def kinds(recorder: Recorder, frames: list[Frame]) -> str:
    """K and k for packets, E and e for our own; capital where a chunk begins; - for none."""
    said = ""
    for one in frames:
        piece = recorder.record(one, must_begin=False)
        letter = "-" if piece is None else "k" if piece.exact else "e"
        said += letter.upper() if piece is not None and piece.is_key else letter
    return said


def make(codec: PlannedCodec | None = None, *, bytes_per_s: float = 1e6) -> Recorder:
    return Recorder(codec or PlannedCodec(), bytes_per_s=bytes_per_s)


def test_packets_are_kept_from_the_first_key_frame_on():
    assert kinds(make(), camera(14, first=7)) == "EeeKkkkkkkkkkK"


def test_without_packets_chunks_of_ours_are_short():
    said = kinds(make(), [frame(i) for i in range(70)])
    assert said == "E" + 29 * "e" + "E" + 29 * "e" + "E" + 9 * "e"


def test_a_chunk_of_ours_ends_where_it_would_take_too_long_to_decode():
    said = kinds(make(PlannedCodec(frame_s=0.02)), [frame(i) for i in range(9)])
    assert said == "EeeeEeeeE"


def test_the_rest_of_a_long_group_of_pictures_is_encoded():
    said = kinds(make(PlannedCodec(frame_s=0.02)), camera(22, gop=11))
    assert said == 2 * "KkkkkkEeeeE"


def test_where_encoding_would_not_keep_up_packets_are_kept_all_the_same():
    codec = PlannedCodec(frame_s=0.02, encode_s=0.03)
    recorder = make(codec)
    assert (
        kinds(recorder, camera(20, gop=20)) == "Kkkkkk" + 3 * "Eeee" + "Ee"
    )  # its cost is not known yet
    assert kinds(recorder, camera(20, gop=20, first=20)) == "K" + 19 * "k"
    later = [frame(i, key=i == 40, at_ms=100_000 + i) for i in range(40, 48)]
    assert kinds(recorder, later) == "KkkkkkEe"  # what was measured long ago counts no more


@pytest.mark.parametrize(
    "change",
    [
        {"size": (8, 6)},
        {"gap": True},
        {"params": CodecParams(codec="any", extradata=b"other")},
        {"params": CodecParams(codec="any", extradata=b"camera")},
    ],
    ids=["size", "gap", "codec", "decoder"],
)
def test_packets_go_on_over_no_change(change):
    frames = [*camera(5), frame(5, key=False, **change)]
    assert kinds(make(), frames) == "KkkkkE"
    own = [frame(0), frame(1, **{k: v for k, v in change.items() if k != "params"})]
    assert kinds(make(), own) == ("Ee" if "params" in change else "EE")


def test_packets_after_a_frame_that_the_history_missed_are_of_no_use():
    frames = camera(5) + camera(6, first=6)
    assert kinds(make(), frames) == "KkkkkEeeeKk"


def test_what_must_begin_begins():
    recorder = make()
    kinds(recorder, camera(3))
    piece = recorder.record(frame(3, key=False), must_begin=True)
    assert piece is not None
    assert (piece.is_key, piece.exact) == (True, False)
    again = recorder.record(frame(4), must_begin=True)
    assert again is not None
    assert again.is_key


def test_what_the_encoder_refuses_ends_the_chunk():
    recorder = make(PlannedCodec(refuses={2, 3}))
    assert kinds(recorder, [frame(i) for i in range(6)]) == "Ee--Ee"


def test_an_encoder_that_does_not_begin_when_told_to_gives_nothing():
    class Stubborn(PlannedCodec):
        def encode(self, frame: Frame, *, begin: bool) -> Piece:
            return Piece(format=b"own", packets=(b"own",), is_key=False, exact=False)

    recorder = make(Stubborn())
    assert kinds(recorder, [frame(0), frame(1)]) == "--"
    assert recorder.record(frame(2), must_begin=True) is None


def test_a_source_with_too_many_bytes_is_encoded_until_it_sends_less():
    recorder = make(bytes_per_s=10_000)
    many = kinds(recorder, camera(200, n_bytes=1000))  # 25 kB/s
    assert many.startswith("K")
    assert set(many[100:]) == {"E", "e"}
    little_less = kinds(recorder, camera(2000, first=200, n_bytes=380))  # 9.5 kB/s
    assert set(little_less[1500:]) == {"E", "e"}
    few = kinds(recorder, camera(2000, first=2200, n_bytes=200))
    assert set(few[1500:]) == {"K", "k"}


def test_too_many_bytes_are_kept_where_encoding_would_not_keep_up():
    recorder = make(PlannedCodec(encode_s=1.0), bytes_per_s=100)
    kinds(recorder, [frame(i) for i in range(5)])
    assert set(kinds(recorder, camera(300, first=10))[10:]) == {"K", "k"}


def checks(recorder: Recorder, frames: list[Frame]) -> list[tuple[int, int]]:
    runs = []
    for one in frames:
        recorder.record(one, must_begin=False)
        run = recorder.take_check(one.stream_time_ms)
        if run is not None:
            runs.append((run.first_index, run.last_index))
            recorder.note_checked(one.stream_time_ms)
    return runs


def test_the_first_runs_and_one_in_a_while_are_to_be_checked():
    runs = checks(make(), camera(6000))  # 240 s
    assert runs[:2] == [(0, 9), (10, 19)]
    assert [first for first, _ in runs[2:]] == [2510, 5010]  # 10 s for each frame decoded again


def test_a_run_that_nobody_compared_does_not_count_as_checked():
    recorder, offered = make(), []
    for one in camera(60):
        recorder.record(one, must_begin=False)
        run = recorder.take_check(one.stream_time_ms)
        offered += [] if run is None else [run.first_index]
    assert offered == [0, 10, 20, 30, 40]


def test_where_packets_look_too_far_to_reach_that_is_measured_again_soon():
    runs = checks(make(PlannedCodec(frame_s=0.02)), camera(2000, gop=10))
    assert runs[:2] == [(0, 5), (10, 15)]
    assert [first for first, _ in runs[2:]] == [760, 1510]  # 30 s after the last


def test_runs_of_ours_or_with_a_loss_are_not_checked():
    assert checks(make(), [frame(i) for i in range(100)]) == []
    assert checks(make(), camera(20, corrupt=True)) == []


def test_a_source_that_did_not_keep_its_word_is_encoded_from_then_on():
    recorder = make()
    for one in camera(10):
        recorder.record(one, must_begin=False)
    recorder.record(frame(10, key=True), must_begin=False)
    run = recorder.take_check(400)
    assert run is not None
    recorder.distrust(run)
    assert kinds(recorder, camera(20, first=11)) == "E" + 19 * "e"
    other = CodecParams(codec="any", extradata=b"other")
    assert kinds(recorder, camera(5, first=40, params=other)) == "Kkkkk"


def test_a_rate_needs_a_second_and_forgets():
    rate = ByteRate()
    rate.add(1_000_000, 0)
    assert rate.per_s() == 0
    for n in range(1, 100):
        rate.add(1000, n * 1000)
    assert rate.per_s() == pytest.approx(1000, rel=0.4)
