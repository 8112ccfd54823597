"""Features of the groups that sequences need: held in the cache, loaded, encoded.

Owns    the encoder cache and the groups on their way to it.
Thread  the engine thread only.
A group that the last sequence lets go of before it is encoded is dropped, whoever is loading it.
"""

from __future__ import annotations

from collections.abc import Iterable

from liveedge.engine.decide.encoder_cache import EncoderCache
from liveedge.engine.decide.loads import Loads
from liveedge.engine.decide.plan import LoadJob
from liveedge.engine.decide.sequence import Sequence
from liveedge.engine.interface import FeatureGroup


class Features:
    """What sequences hold, and what is missing."""

    def __init__(self, cache: EncoderCache, loads: Loads) -> None:
        self.cache = cache
        self.loads = loads
        self._dropped: list[LoadJob] = []

    def hold(self, sequence: Sequence, *, reusable: int) -> bool:
        """Hold what a prompt needs behind its first `reusable` tokens; False: no room for it yet."""
        needed = {g.key: g.n_tokens for g in sequence.prepared.groups if g.stop > reusable}
        warm = frozenset(key for key in needed if self.cache.is_ready(key))
        if not self.cache.hold(needed):
            return False
        sequence.held = tuple(needed)
        sequence.warm = warm
        return True

    def let_go(self, sequence: Sequence) -> None:
        """Everything that it holds."""
        for key in sequence.held:
            self._release(key)
        sequence.held = ()

    def let_go_of(self, sequence: Sequence, key: str) -> None:
        sequence.held = tuple(held for held in sequence.held if held != key)
        self._release(key)

    def swap(self, sequence: Sequence, key: str, ready_key: str) -> None:
        """Hold features that are ready in place of some that are not."""
        if ready_key not in sequence.held:
            held = self.cache.hold({ready_key: 0})  # what has rows needs no more
            assert held, ready_key
            sequence.held = (*sequence.held, ready_key)
        self.let_go_of(sequence, key)

    def _release(self, key: str) -> None:
        self.cache.release(key)
        if key not in self.cache and (job := self.loads.pop(key)) is not None:
            self._dropped.append(job)

    def take_dropped(self) -> tuple[LoadJob, ...]:
        """Jobs that nobody waits for any more; each once."""
        dropped, self._dropped = self._dropped, []
        return tuple(dropped)

    def missing(self, sequences: Iterable[Sequence]) -> list[FeatureGroup]:
        """Groups that these need and that are not encoded, in order; one may come twice."""
        return [
            group
            for sequence in sequences
            for group in sequence.needed()
            if not self.cache.is_ready(group.key)
        ]

    def all_loaded(self, sequence: Sequence) -> bool:
        """Everything that it needs is encoded or can be."""
        missing = self.missing([sequence])
        return all(self.loads.patches(group.key) is not None for group in missing)

    def encoded(self, keys: Iterable[str]) -> None:
        """These are in their rows now."""
        for key in keys:
            self.loads.pop(key)
            self.cache.mark_ready(key)
