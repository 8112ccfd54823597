"""What the parts of a run give each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from liveedge.bench.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The media of one question, made at the moment of sending."""

    content: Sequence[Mapping[str, Any]]  # content parts, media before the question's text
    question: str  # kind, or `prompt-N`
    source: int
    share: str = ""  # of the mix
    thread_id: str | None = None
    # Delivery "data": what was sent, oldest first; wall-clock ms of each capture.
    frames: Sequence[Mapping[str, Any]] = ()
    note: Mapping[str, Any] = field(default_factory=dict)  # for `judge` alone


class MediaSource(Protocol):
    """The cameras of a run and the truth about them."""

    async def open(self) -> None:
        """Publish, and wait until the target has frames enough for the first question."""
        ...

    def prepare(self, index: int) -> Prepared:
        """Request number `index`. Cheap and without waiting: it runs between two sends."""
        ...

    async def judge(self, records: Sequence[Record], notes: Mapping[int, Prepared]) -> None:
        """After a step, outside the measured time: fill `truth`, `correct`, `known_evidence_at_ms`.

        `notes` are the prepared media by `Record.index`.
        """
        ...

    async def close(self) -> None:
        """End publishers and streams; nothing is left on the server."""
        ...
