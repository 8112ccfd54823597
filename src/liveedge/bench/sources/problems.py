"""What went wrong with cameras, bounded and counted. All methods may be called from any thread."""

from __future__ import annotations

from collections import Counter
from typing import Any

from liveedge.bench.sources.child import Message
from liveedge.core.mailbox import DropOldest

N_KEPT = 50


class Problems:
    """Counters of a publisher, and the newest texts."""

    def __init__(self) -> None:
        self.ended: list[str] = []  # why a camera gives nothing any more; at most one each
        self.n_published = 0  # cameras that a server has taken
        self.newest = ""  # text
        self._counts: Counter[str] = Counter()
        self._texts: DropOldest[str] = DropOldest(N_KEPT)

    def add(self, text: str) -> None:
        self._counts["problems"] += 1
        self._keep(text)

    def hear(self, message: Message) -> None:
        """What a publisher tells that is not a picture."""
        if "skipped" in message:
            self._counts["frames_skipped"] += message["skipped"]
        if "published" in message:
            self.n_published += 1
        if "failed" in message:
            self._counts["pushes_failed"] += 1
            self._keep(f"camera {message['source']}: {message['failed']}")
        if "ended" in message:
            self.ended.append(f"camera {message['source']} has ended: {message['ended']}")

    def _keep(self, text: str) -> None:
        self.newest = text
        self._texts.put(text)

    def report(self) -> dict[str, Any]:
        """Of all so far; the texts once."""
        texts = []
        while (text := self._texts.take(0)) is not None:
            texts.append(text)
        return {**self._counts, "texts": texts}
