"""From packets to the `CodedFrame`s behind decoded frames.

Only where the decoder gives each packet's frame at once; from the first sign of another order on,
there are none. Packets that gave no frame travel with the next one, as a later decoder needs them
to arrive at the same picture.
"""

from __future__ import annotations

from liveedge.frames.frame import CodecParams, CodedFrame

# What a fresh decoder of one thread turns into the same frames, measured for each.
REPLAYABLE = frozenset({"h264", "hevc", "vp8", "vp9", "mjpeg"})
_MAX_PACKETS = 32  # without a frame between them; then this run of packets is given up
_MAX_BYTES = 16 * 2**20


class CodedTrail:
    """Packets of one stream on their way. One thread."""

    def __init__(self, codec: str, extradata: bytes) -> None:
        self._params = CodecParams(codec=codec, extradata=extradata)
        self._waiting: list[bytes] = []
        self._n_bytes = 0
        self._is_key = False
        self._is_whole = False  # everything since a key frame is known
        self._is_over = codec not in REPLAYABLE

    @property
    def n_waiting(self) -> int:
        """Packets that have not given a frame yet."""
        return len(self._waiting)

    def feed(self, packet: bytes, *, is_key: bool) -> None:
        """The next packet that goes to the decoder."""
        if self._is_over:
            return
        if is_key:  # what came before does not matter to it
            self._waiting.clear()
            self._n_bytes = 0
            self._is_key = self._is_whole = True
        if not self._is_whole:
            return
        self._waiting.append(packet)
        self._n_bytes += len(packet)
        if len(self._waiting) > _MAX_PACKETS or self._n_bytes > _MAX_BYTES:
            self.interrupt()

    def take(self) -> CodedFrame | None:
        """What gave the frame that just came."""
        if not self._waiting:
            return None
        coded = CodedFrame(params=self._params, packets=tuple(self._waiting), is_key=self._is_key)
        self._waiting.clear()
        self._n_bytes = 0
        self._is_key = False
        return coded

    def change(self, extradata: bytes) -> None:
        """The container announces another configuration; the next key frame begins a new run."""
        self._params = CodecParams(codec=self._params.codec, extradata=extradata)
        self.interrupt()

    def interrupt(self) -> None:
        """A frame was left out: nothing until the next key frame."""
        self._waiting.clear()
        self._n_bytes = 0
        self._is_key = self._is_whole = False

    def end(self) -> None:
        """Frames do not come in the order of their packets: nothing any more."""
        self.interrupt()
        self._is_over = True
