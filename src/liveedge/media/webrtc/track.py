"""One video track of a publisher: from decrypted packets to its decoder, and what it is told back.

Owns    the jitter buffer, the key frame requests, the sender's clock; the decoder while it is shown.
Thread  `liveedge-webrtc`. The decoder has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from liveedge.media.webrtc.assembler import Assembler, Piece, Unit
from liveedge.media.webrtc.decoder import Task, TrackDecoder
from liveedge.media.webrtc.key_requests import KeyRequests
from liveedge.media.webrtc.lateness import SenderClock
from liveedge.media.webrtc.payload import Codec, read_payload
from liveedge.media.webrtc.reception import Reception
from liveedge.media.webrtc.rtp import (
    VIDEO_CLOCK_HZ,
    ReportBlock,
    RtpPacket,
    negative_acknowledgement,
    picture_loss,
)

QUIET_S = 1.0  # after this long another sender of the track may take over
_MAX_SENDERS = 8  # whose reception is counted


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackFormats:
    """What the payload types of a section mean."""

    codecs: Mapping[int, Codec]
    repairs: Mapping[int, int]  # payload type of the retransmissions of another

    def __contains__(self, payload_type: int) -> bool:
        return payload_type in self.codecs or payload_type in self.repairs


class VideoTrack:
    """A track as agreed on. Without a decoder its packets are counted and thrown away."""

    def __init__(
        self,
        mid: str,
        *,
        formats: TrackFormats,
        rid: str | None,
        ssrcs: frozenset[int],
        keyframe_every_s: float,
    ) -> None:
        """`rid` is the one layer taken; `ssrcs` are those that the offer names, if any."""
        self.mid = mid
        self.formats = formats
        self.rid = rid
        self.ssrcs = ssrcs
        self.ssrc: int | None = None  # of the sender that is shown
        self.decoder: TrackDecoder | None = None
        self.newest_packet_s: float | None = None
        self.first_packet_s: float | None = None
        self.keys = KeyRequests(every_s=keyframe_every_s)
        self.shown_s: float | None = None
        self.n_keys = 0
        self.n_empty = 0  # packets that carry nothing
        self.assembler = Assembler()
        self._clock = SenderClock()
        self._receptions: dict[int, Reception] = {}
        self._n_received_before = self._n_lost_before = 0  # of senders that are forgotten
        self._n_lost_told = 0

    @property
    def n_received(self) -> int:
        now = sum(reception.n_received for reception in list(self._receptions.values()))
        return self._n_received_before + now

    @property
    def n_lost(self) -> int:
        now = sum(reception.n_lost for reception in list(self._receptions.values()))
        return max(0, self._n_lost_before + now)

    @property
    def n_decoded(self) -> int:
        """Pictures of the present decoder that could be decoded."""
        return 0 if self.decoder is None else self.decoder.counts.decoded

    @property
    def n_tried(self) -> int:
        """Pictures that were to be decoded, those whose packets make no sense among them."""
        fed = 0 if self.decoder is None else self.decoder.counts.fed
        return fed + self.assembler.counts.pictures_unreadable

    def wants_attention(self, now_s: float) -> bool:
        """Whether `feedback` should be called soon."""
        return self.assembler.is_missing_some or self.keys.is_urgent(now_s)

    def want_key(self) -> None:
        self.keys.want()

    def show(self, decoder: TrackDecoder, *, now_s: float) -> None:
        """From now on this track is the one that is decoded."""
        self.decoder = decoder
        self.shown_s = now_s
        self._begin()

    def hide(self) -> None:
        self.decoder = None
        self._begin()

    def _begin(self) -> None:
        n_sent, self.keys = self.keys.n_sent, KeyRequests(every_s=self.keys.every_s)
        self.keys.n_sent = n_sent
        counts, self.assembler = self.assembler.counts, Assembler()
        self.assembler.counts = counts
        self._clock = SenderClock()
        self.n_keys = 0

    def packet(self, packet: RtpPacket, now_s: float) -> None:
        """A packet of this track, of the media itself or sent again."""
        if self.first_packet_s is None:
            self.first_packet_s = now_s
        original = self._original(packet)
        self._count(packet, now_s)
        self.n_empty += not packet.payload
        if original is None or not self._is_of_sender(original, now_s):
            return
        self.newest_packet_s = now_s
        if self.decoder is None:
            return
        self.keys.packet_came(now_s)
        codec = self.formats.codecs[original.payload_type]
        data = original.payload
        piece = Piece(
            original.sequence,
            original.timestamp,
            original.marker,
            codec,
            read_payload(codec, data) if data else None,
            is_padding=not data,
            orientation=original.orientation,
        )
        self._deliver(self.assembler.add(piece, now_s), now_s)

    def feedback(self, sender: int, now_s: float) -> list[bytes]:
        """What is to be asked of the publisher now; also gives up what came too late."""
        if self.decoder is None or self.ssrc is None:
            return []
        self._deliver(self.assembler.expire(now_s), now_s)
        asked = []
        missing = self.assembler.missing(now_s)
        if missing:
            asked.append(negative_acknowledgement(sender, self.ssrc, missing))
        if self.keys.is_due(now_s):
            asked.append(picture_loss(sender, self.ssrc))
        return asked

    def sender_report(self, ssrc: int, ntp_middle: int, now_s: float) -> None:
        reception = self._receptions.get(ssrc)
        if reception is not None:
            reception.sender_report(ntp_middle, now_s)

    def goodbye(self, ssrc: int) -> None:
        """The sender stops; another one may follow at once."""
        if ssrc == self.ssrc:
            self.ssrc = None

    def reports(self, now_s: float) -> list[ReportBlock]:
        return [reception.report(now_s) for reception in self._receptions.values()]

    # ── packets ──

    def _original(self, packet: RtpPacket) -> RtpPacket | None:
        """The media packet, unwrapped if it was sent again on the side."""
        repaired = self.formats.repairs.get(packet.payload_type)
        if repaired is None:
            return packet if packet.payload_type in self.formats.codecs else None
        if len(packet.payload) < 2 or self.ssrc is None or repaired not in self.formats.codecs:
            return None  # padding, or nothing is known of what it repairs
        if None not in (packet.repaired_rid, self.rid) and packet.repaired_rid != self.rid:
            return None  # of a layer that was not asked for
        return RtpPacket(
            repaired,
            packet.marker,
            int.from_bytes(packet.payload[:2], "big"),
            packet.timestamp,
            self.ssrc,
            packet.payload[2:],
            orientation=packet.orientation,
        )

    def _is_of_sender(self, packet: RtpPacket, now_s: float) -> bool:
        """One sender at a time: a second one takes over once the first is quiet."""
        if packet.ssrc == self.ssrc:
            return True
        if packet.rid is not None and self.rid is not None and packet.rid != self.rid:
            return False  # a layer that was not asked for
        is_quiet = self.newest_packet_s is None or now_s - self.newest_packet_s > QUIET_S
        if self.ssrc is not None and not is_quiet:
            return False
        if self.newest_packet_s is not None:
            self.assembler.restart()
        self.ssrc = packet.ssrc
        return True

    def _count(self, packet: RtpPacket, now_s: float) -> None:
        reception = self._receptions.get(packet.ssrc)
        if reception is None:
            if len(self._receptions) >= _MAX_SENDERS:
                oldest = self._receptions.pop(next(iter(self._receptions)))
                self._n_received_before += oldest.n_received
                self._n_lost_before += oldest.n_lost
            reception = Reception(packet.ssrc, clock_hz=VIDEO_CLOCK_HZ)
            self._receptions[packet.ssrc] = reception
        reception.packet(packet.sequence, packet.timestamp, now_s)

    # ── pictures ──

    def _deliver(self, units: list[Unit], now_s: float) -> None:
        decoder = self.decoder
        assert decoder is not None
        if self.assembler.take_loss():
            self.keys.want()
            lost = self.assembler.counts.pictures_lost - self._n_lost_told
            self._n_lost_told += lost
            decoder.lost(lost)
        for unit in units:
            if unit.is_key:
                self.n_keys += 1
                self.keys.key_came(now_s)
            elif not self.n_keys:
                self.keys.want()
            time_s = self._clock.time_s(unit.timestamp)
            decoder.offer(
                Task(unit=unit, time_s=time_s, is_late=self._clock.is_late(time_s, now_s))
            )
