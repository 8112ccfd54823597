"""How each frame goes into the history: as its source sent it, or encoded by us.

Owns    the run that is going on: the chunk which the next frame may continue.
Thread  the history's thread of one stream.
Rules   The source's packets are kept while a frame can be reached fast enough, and while their bytes
        let the retention fit into the history. Beyond that the rest of a group of pictures is
        encoded by us, in short chunks. Where encoding would cost more than half a core, packets
        are kept all the same: slow to reach, or for a shorter time, is better than lost.
Trust   A source promises that a decoder can begin at its key frames. The first runs, and one in a
        while, are decoded again and compared; a source that does not keep its promise is not
        believed again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from liveedge.frames.chunks import HistoryCodec, Piece
from liveedge.frames.frame import CodecParams, Frame

FIRST_CHECKS = 2  # runs; the first key frame meets the same empty decoder as a replay
CHECK_REST_MS = 10_000  # for each frame of the next check: 1 of 300 is decoded twice at 30 a second
CHECK_SOON_MS = 30_000  # while a reader's way looks too long
RATE_OVER_S = 20.0
ENCODE_COST_KNOWN_MS = 60_000  # a busy moment must not decide for ever


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepRules:
    """What the history promises to its readers, and what it may cost."""

    replay_s: float = 0.09  # to decode up to the last frame of a run that we encoded
    source_replay_s: float = 0.12  # of packets: two seconds of 720p30
    own_frames: int = 30  # of a chunk that we encoded
    source_frames: int = 600  # of a chunk of packets, where nothing else ends it
    encode_share: float = 0.5  # of the frame period that our encoder may take
    back_share: float = 0.8  # of the bytes, before packets are kept again


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A chunk as the recorder remembers it."""

    format: bytes
    params: CodecParams | None  # of the packets: the same object for those of one decoder
    is_source: bool
    width: int
    height: int
    first_index: int
    last_index: int
    n_frames: int
    is_damaged: bool

    def with_next(self, frame: Frame) -> Run:
        return Run(
            format=self.format,
            params=self.params,
            is_source=self.is_source,
            width=self.width,
            height=self.height,
            first_index=self.first_index,
            last_index=frame.index,
            n_frames=self.n_frames + 1,
            is_damaged=self.is_damaged or frame.corrupt,
        )


class ByteRate:
    """Bytes a second over the last `RATE_OVER_S`, newer ones counting more."""

    def __init__(self) -> None:
        self._bytes = 0.0
        self._seconds = 0.0
        self._at_ms: int | None = None

    def add(self, n_bytes: int, at_ms: int) -> None:
        if self._at_ms is not None:
            passed_s = max(0, at_ms - self._at_ms) / 1000
            fading = math.exp(-passed_s / RATE_OVER_S)
            self._bytes, self._seconds = self._bytes * fading, self._seconds * fading + passed_s
        self._at_ms = at_ms
        self._bytes += n_bytes

    def per_s(self) -> float:
        """0 before a second is known: one key frame says nothing."""
        return self._bytes / self._seconds if self._seconds >= 1 else 0.0


class Recorder:
    """Makes pieces of the frames of one stream."""

    def __init__(
        self, codec: HistoryCodec, *, bytes_per_s: float, rules: KeepRules | None = None
    ) -> None:
        self._codec = codec
        self._encoder = codec.encoder(bytes_per_s=bytes_per_s)
        self._bytes_per_s = bytes_per_s
        self._rules = rules or KeepRules()
        self._run: Run | None = None
        self._ended: Run | None = None
        self._rate = ByteRate()
        self._is_too_much = False  # the source sends more than the history holds
        self._distrusted: bytes | None = None
        self._n_checks = 0
        self._checked_ms = 0
        self._encoded_ms: int | None = None  # stream time of the last frame that we encoded
        self._previous_ms: int | None = None
        self._period_s: float | None = None

    def record(self, frame: Frame, *, must_begin: bool) -> Piece | None:
        """The frame as a piece, or None when it cannot be kept. `must_begin`: nothing goes on."""
        if must_begin:
            self._run = None
        self._note_period(frame)
        piece = self._kept(frame) or self._encoded(frame)
        if piece is not None and self._run is None and not piece.is_key:
            piece = None  # an encoder that does not begin when told to
        if piece is None:
            self._end_run()
        elif self._run is not None and not piece.is_key:
            self._run = self._run.with_next(frame)
        else:
            self._end_run()
            self._run = _begun(frame, piece)
        return piece

    def take_check(self, now_ms: int) -> Run | None:
        """A run of packets that has just ended and that shall be decoded again, if any.

        It counts as checked only once `note_checked` has said so.
        """
        run, self._ended = self._ended, None
        if run is None or not run.is_source or run.is_damaged or run.n_frames == 1:
            return None
        if self._n_checks >= FIRST_CHECKS and now_ms - self._checked_ms < self._rest_ms(run):
            return None
        return run

    def note_checked(self, now_ms: int) -> None:
        """What `take_check` gave was compared."""
        self._n_checks += 1
        self._checked_ms = now_ms

    def _rest_ms(self, run: Run) -> int:
        """Between two checks, which also measure how far a reader gets: in a busy moment not as far,
        and then the rest of each group is encoded, which costs more than the check."""
        is_cut = self._run is not None and not self._run.is_source
        return CHECK_SOON_MS if is_cut else CHECK_REST_MS * run.n_frames

    def distrust(self, run: Run) -> None:
        """Its packets gave other frames: keep none of this kind any more."""
        self._distrusted = run.format
        if self._run is not None and self._run.is_source:
            self._run = None

    # ── the source's packets ──

    def _kept(self, frame: Frame) -> Piece | None:
        piece = self._codec.keep(frame)
        if piece is None:
            return None
        self._rate.add(piece.nbytes, frame.stream_time_ms)
        if piece.format == self._distrusted:
            return None
        if piece.is_key:
            return piece if self._fits(frame) else None
        return piece if self._goes_on(frame, piece) and self._is_near(frame, piece) else None

    def _goes_on(self, frame: Frame, piece: Piece) -> bool:
        run = self._run
        return (
            run is not None
            and run.is_source
            and run.format == piece.format
            and run.params is _params_of(frame)
            and run.last_index + 1 == frame.index
            and run.n_frames < self._rules.source_frames
            and _has_size(run, frame)
            and not frame.after_gap
        )

    def _is_near(self, frame: Frame, piece: Piece) -> bool:
        """Whether a reader gets to this frame in time."""
        within_s = self._rules.source_replay_s
        return self._is_in_time(frame, piece.format, within_s) or not self._can_encode(frame)

    def _fits(self, frame: Frame) -> bool:
        """Whether packets at the source's rate can be retained for as long as they shall."""
        share = self._rules.back_share if self._is_too_much else 1.0
        self._is_too_much = self._rate.per_s() > self._bytes_per_s * share
        return not self._is_too_much or not self._can_encode(frame)

    def _can_encode(self, frame: Frame) -> bool:
        """Whether our encoder keeps up, as far as is known."""
        known_ms = self._encoded_ms
        if known_ms is None or frame.stream_time_ms - known_ms > ENCODE_COST_KNOWN_MS:
            return True
        period_s = 1.0 if self._period_s is None else self._period_s
        return self._encoder.encode_s <= period_s * self._rules.encode_share

    # ── our own ──

    def _encoded(self, frame: Frame) -> Piece | None:
        self._encoded_ms = frame.stream_time_ms
        try:
            return self._encoder.encode(frame, begin=not self._continues_ours(frame))
        except (OSError, ValueError):  # a size or layout the codec does not take: counted as such
            return None

    def _continues_ours(self, frame: Frame) -> bool:
        run = self._run
        return (
            run is not None
            and not run.is_source
            and run.n_frames < self._rules.own_frames
            and _has_size(run, frame)
            and not frame.after_gap
            and self._is_in_time(frame, run.format, self._rules.replay_s)
        )

    # ── both ──

    def _is_in_time(self, frame: Frame, format: bytes, within_s: float) -> bool:
        n_frames = 1 if self._run is None else self._run.n_frames + 1
        n_pixels = frame.pixels.width * frame.pixels.height
        return n_frames * self._codec.replay_s(format, n_pixels=n_pixels) <= within_s

    def _note_period(self, frame: Frame) -> None:
        """The mean of the last frames, bounded: a gap is no period."""
        if self._previous_ms is not None:
            passed_s = min((frame.stream_time_ms - self._previous_ms) / 1000, 1.0)
            before_s = passed_s if self._period_s is None else self._period_s
            self._period_s = before_s + (passed_s - before_s) / 16
        self._previous_ms = frame.stream_time_ms

    def _end_run(self) -> None:
        if self._run is not None:
            self._ended = self._run
        self._run = None


def _begun(frame: Frame, piece: Piece) -> Run:
    return Run(
        format=piece.format,
        params=_params_of(frame),
        is_source=piece.exact,
        width=frame.pixels.width,
        height=frame.pixels.height,
        first_index=frame.index,
        last_index=frame.index,
        n_frames=1,
        is_damaged=frame.corrupt,
    )


def _params_of(frame: Frame) -> CodecParams | None:
    return None if frame.coded is None else frame.coded.params


def _has_size(run: Run, frame: Frame) -> bool:
    return (run.width, run.height) == (frame.pixels.width, frame.pixels.height)
