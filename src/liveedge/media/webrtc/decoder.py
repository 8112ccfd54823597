"""Coded pictures to frames of the stream: one thread per track.

Owns    the thread `decode:<label>`, its decoder and the bounded hand-over to it.
Rule    everything that comes is decoded. If the thread falls behind by `N_WAITING` pictures or
        `MAX_WAITING_BYTES`, all that waits is given up (`decoder_behind`) together with what
        follows, up to the next key frame, which is asked for.
Never   shows damage as clean: after a loss frames are marked until the next key frame, and before
        the first key frame nothing comes out.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import av
from av import Packet, VideoFrame
from av.video.codeccontext import VideoCodecContext

from liveedge.core.mailbox import DropOldest
from liveedge.core.tasks import OwnedThread
from liveedge.frames.frame import CodecParams, CodedFrame
from liveedge.media.bitstream import PlainWatch, Watch, watch_for
from liveedge.media.decode import VideoLimits
from liveedge.media.pixels import AS_STORED, AvPixels, Turn
from liveedge.media.published import Publisher
from liveedge.media.webrtc.assembler import Unit
from liveedge.media.webrtc.payload import Codec, has_parameters, parameter_sets

N_WAITING = 24  # pictures: 0.8 s at 30 a second, as a question may take all processors for a while
MAX_WAITING_BYTES = 16 << 20
_LOOK_S = 0.5
_MAX_HIDDEN = 8  # pictures in a row that are fed and not shown
_MAX_FED = 64  # pictures whose times are remembered; no decoder holds as many
_TURNS = (
    AS_STORED,
    Turn(swap=True, mirror_x=True),  # to be turned clockwise by 90 degrees
    Turn(mirror_x=True, mirror_y=True),
    Turn(swap=True, mirror_y=True),
)


def turn_of(orientation: int) -> Turn:
    """From the byte of the video orientation extension (3GPP TS 26.114, 7.4.5)."""
    turn = _TURNS[orientation & 3]
    if not orientation & 4:
        return turn
    # Mirrored left to right before it is turned: after the turn that is the other axis or the same.
    if turn.swap:
        return Turn(swap=True, mirror_x=turn.mirror_x, mirror_y=not turn.mirror_y)
    return Turn(mirror_x=not turn.mirror_x, mirror_y=turn.mirror_y)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One picture to be decoded."""

    unit: Unit
    time_s: float  # of the sender's clock
    is_late: bool = False


@dataclass(slots=True, kw_only=True)
class DecoderCounts:
    """What became of the pictures."""

    decoded: int = 0
    fed: int = 0  # whatever came of them
    behind: int = 0


@dataclass(slots=True)
class _Chain:
    """Whether what is fed can be kept as it is: without a gap since a key frame, one to one."""

    is_whole: bool = False
    is_key: bool = False  # a key frame was fed, and no frame has come yet
    packets: list[bytes] = field(default_factory=list)  # fed, without a frame yet


class TrackDecoder:
    """Decodes one track for one publisher. `offer` and `close` from the network's thread."""

    def __init__(
        self,
        publisher: Publisher,
        *,
        label: str,
        want_key: Callable[[], None],
        on_end: Callable[[], None],
        limits: VideoLimits | None = None,
        known_parameters: bytes = b"",
    ) -> None:
        """`want_key` and `on_end` are called in any thread and must not block. Parameter sets of
        H.264 may be known from the offer."""
        self.counts = DecoderCounts()
        self.codec: str | None = None
        self.is_muted = False
        self._publisher = publisher
        self._want_key = want_key
        self._on_end = on_end
        self._limits = limits or VideoLimits()
        self._tasks: DropOldest[Task] = DropOldest(N_WAITING + 1)  # one more, to wake it at the end
        self._n_bytes_in = 0  # only of the network's thread
        self._n_bytes_out = 0  # only of the decoder's thread
        self._awaits_key = False  # since pictures were given up
        self._is_closed = False
        self._untold: Counter[str] = Counter()
        self._untold_lock = threading.Lock()
        self._thread = OwnedThread(f"decode:{label}", self._run)
        # Only of the decoder's thread:
        self._context: VideoCodecContext | None = None
        self._watch: Watch = PlainWatch()
        self._params: CodecParams | None = None
        self._parameter_sets = known_parameters  # for key frames that come without
        self._sends_parameters = False  # else those of the offer are all there are
        self._is_damaged = False
        self._turn = AS_STORED
        self._chain = _Chain()
        self._n_fed = 0  # number of the newest picture, which its frame bears as its time
        self._times_s: dict[int, float] = {}  # of the sender's clock, by that number

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """No frame arrives after this; the thread ends soon and calls `on_end`."""
        self._is_closed = True
        self._thread.stopping.set()
        self._tasks.put(_WAKE)

    def offer(self, task: Task) -> None:
        """Hand a picture over; never blocks."""
        if self._awaits_key and not task.unit.is_key:
            self._give_up(1)
            return
        if not self._fits_in(task):
            self._make_room()
            self._awaits_key = True
            if not task.unit.is_key:
                self._give_up(1)
                self._want_key()
                return
        if self._awaits_key:  # its parameters may be among what was given up
            task.unit.after_loss = True
            self._awaits_key = False
        self._n_bytes_in += len(task.unit.data)
        self._tasks.put(task)

    def _fits_in(self, task: Task) -> bool:
        n_bytes = self._n_waiting_bytes + len(task.unit.data)
        return len(self._tasks) < N_WAITING and n_bytes <= MAX_WAITING_BYTES

    @property
    def _n_waiting_bytes(self) -> int:
        return self._n_bytes_in - self._n_bytes_out

    def _make_room(self) -> None:
        n_given_up = 0
        while (task := self._tasks.take(0)) is not None:
            self._n_bytes_in -= len(task.unit.data)
            n_given_up += 1
        self._give_up(n_given_up)

    def lost(self, n: int) -> None:
        """So many pictures were given up on the way here."""
        self._note("packet_loss", n)

    def _give_up(self, n: int) -> None:
        self.counts.behind += n
        self._note("decoder_behind", n)

    def _note(self, reason: str, n: int) -> None:
        """To be told by our own thread: the stream may be slow, and the network must not wait."""
        with self._untold_lock:
            self._untold[reason] += n

    # ── the decoder's thread ──

    def _run(self, stopping: threading.Event) -> None:
        try:
            while not stopping.is_set():
                task = self._tasks.take(_LOOK_S)
                if task is not None and not stopping.is_set():
                    self._decode(task)
                    self._n_bytes_out += len(task.unit.data)
                self._tell()
        finally:
            self._on_end()

    def _tell(self) -> None:
        if not self._untold:
            return
        with self._untold_lock:
            untold, self._untold = self._untold, Counter()
        for reason, n in untold.items():
            if n:
                self._publisher.dropped(reason, n)

    def _decode(self, task: Task) -> None:
        unit = task.unit
        if unit.after_loss:
            self._damage()
        if unit.codec != self.codec or self._context is None:
            if not unit.is_key:
                self._publisher.dropped("before_keyframe")
                self._want_key()
                return
            self._open(unit.codec)
        if unit.is_key:
            self._begin_picture(unit)
        if unit.orientation is not None:
            self._turn = turn_of(unit.orientation)
        data = self._complete(unit)
        if self._watch.look(data, is_keyframe=unit.is_key).is_missing:
            self._damage()  # left out by the publisher: no packet is missing
            self._want_key()
        for frame in self._frames(data, task.time_s):
            self._show(frame, task)

    def _damage(self) -> None:
        self._is_damaged = True
        self._chain = _Chain()

    def _begin_picture(self, unit: Unit) -> None:
        """A key frame ends all damage, unless its own parameters may have been lost."""
        if unit.codec == "h264":
            self._sends_parameters |= has_parameters(unit.nals)
            if unit.after_loss and self._sends_parameters and not has_parameters(unit.nals):
                self._want_key()
                return
        self._is_damaged = False
        self._chain = _Chain(is_whole=True, is_key=True)

    def _open(self, codec: Codec) -> None:
        context = av.CodecContext.create(codec, "r")
        assert isinstance(context, VideoCodecContext)
        context.options = self._limits.decoder_options()
        context.thread_count = 1  # frame threads would add a frame of delay each
        self._context = context
        self._params = CodecParams(codec=codec)
        self._watch = watch_for(codec, b"")
        self._chain = _Chain()
        self.codec = codec
        self._publisher.state("waiting_for_keyframe", "connected", codec=codec)

    def _complete(self, unit: Unit) -> bytes:
        """The picture with the parameters that a decoder needs to begin with it."""
        if unit.codec != "h264" or not unit.is_key:
            return unit.data
        if has_parameters(unit.nals):
            self._parameter_sets = parameter_sets(unit.data)
            return unit.data
        return self._parameter_sets + unit.data

    def _frames(self, data: bytes, time_s: float) -> list[VideoFrame]:
        assert self._context is not None
        self._n_fed += 1
        self.counts.fed += 1
        self._times_s[self._n_fed] = time_s
        self._times_s.pop(self._n_fed - _MAX_FED, None)
        packet = Packet(data)
        packet.pts = self._n_fed
        try:
            frames = self._context.decode(packet)
        except av.FFmpegError:  # whatever a decoder says about bytes: this picture is lost
            self._lose()
            return []
        self._chain.packets.append(data)
        is_another = any(frame.pts != self._n_fed for frame in frames)
        if is_another or len(frames) > 1 or len(self._chain.packets) > _MAX_HIDDEN:
            self._chain = _Chain()  # reordered, or nothing comes out: not one to one
        return frames

    def _lose(self) -> None:
        self._publisher.broken()
        self._damage()
        self._want_key()

    def _show(self, frame: VideoFrame, task: Task) -> None:
        if frame.is_corrupt or not self._fits(frame):
            self._lose()
            return
        self.counts.decoded += 1
        reason = "muted" if self.is_muted else "late" if task.is_late else None
        if reason is not None:
            self._publisher.dropped(reason)
            self._chain = _Chain()
            return
        coded = self._coded()
        if not self._is_closed:
            self._publisher.frame(
                AvPixels(frame, self._turn),
                source_time_s=self._times_s.get(frame.pts or 0, task.time_s),
                corrupt=self._is_damaged,
                coded=coded,
            )

    def _coded(self) -> CodedFrame | None:
        """What was fed for this frame; nothing where that would not give the same frame again."""
        chain, params = self._chain, self._params
        if not chain.is_whole or self._turn != AS_STORED or params is None:
            self._chain = _Chain()
            return None
        coded = CodedFrame(params=params, packets=tuple(chain.packets), is_key=chain.is_key)
        chain.packets, chain.is_key = [], False
        return coded

    def _fits(self, frame: VideoFrame) -> bool:
        limits = self._limits
        longer, shorter = max(frame.width, frame.height), min(frame.width, frame.height)
        return (
            longer <= limits.max_side_px
            and frame.width * frame.height <= limits.max_pixels
            and longer <= limits.max_aspect_ratio * max(1, shorter)
        )


_WAKE = Task(unit=Unit("vp8", b"", 0, is_key=False, nals=0, after_loss=False), time_s=0.0)
