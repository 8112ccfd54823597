"""The slice of other work that a step does beside decoding: prompt pieces, or an encoder batch.

Pure; on the engine thread. Whose turn it is comes from `turns`, how much from `pace`. Within its
class the first sequence in order that can go on decides what kind of work is done.

A sequence that has not begun waits for its *twin*: an earlier one that is computing a prefix which
it can copy. Background work that somebody waits for is done at the waiting one's rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence as Seq
from dataclasses import dataclass, field
from typing import Final

from liveedge.engine.decide.features import Features
from liveedge.engine.decide.limits import Limits, group_pixels
from liveedge.engine.decide.pace import Budget, Pace
from liveedge.engine.decide.pieces import encode_batch, prefill_chunk
from liveedge.engine.decide.plan import EncodeBatch, PrefillChunk, SlotCopy
from liveedge.engine.decide.prefix import common_prefix
from liveedge.engine.decide.rates import Rates
from liveedge.engine.decide.sequence import Sequence
from liveedge.engine.decide.slots import SlotTable
from liveedge.engine.decide.turns import Rank, Turns
from liveedge.engine.interface import FeatureGroup

URGENT: Final = 3.0  # a request with less time left than so many times its own work is urgent
COPY_WORTH: Final = 8  # a prefix that is longer by this share of `min_piece` is copied


@dataclass(slots=True)
class Slice:
    """At most one of the two kinds of work, and copies that come before it."""

    copies: list[SlotCopy] = field(default_factory=list)
    encode: EncodeBatch | None = None
    prefills: tuple[PrefillChunk, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.encode or self.prefills)


@dataclass(slots=True)
class _Lane:
    """Sequences of one class, in order."""

    ready: list[Sequence] = field(default_factory=list)
    waiting: list[Sequence] = field(default_factory=list)  # for a twin

    @property
    def all(self) -> list[Sequence]:
        return [*self.ready, *self.waiting]


@dataclass(frozen=True, slots=True)
class _Reach:
    """How much of its prompt a sequence has, or can copy as soon as it begins."""

    sequence: Sequence
    n_tokens: int


class Slicer:
    """Chooses slices; remembers whose turn it is and how long slices took."""

    def __init__(
        self,
        *,
        slots: SlotTable,
        features: Features,
        limits: Limits,
        rates: Rates,
        keeps_logits: Callable[[Sequence], bool],
    ) -> None:
        self.pace = Pace(limits, rates)
        self._turns = Turns()
        self._slots = slots
        self._features = features
        self._cache = features.cache
        self._limits = limits
        self._rates = rates
        self._keeps_logits = keeps_logits

    def choose(self, prefilling: Seq[Sequence], *, decoding: bool, now_s: float) -> Slice:
        """The next slice for sequences with a slot and no token, in order of place."""
        chosen = Slice()
        if not prefilling:
            return chosen
        due, order = self._turns.due(), self._turns.order()
        urgent = decoding and self._is_urgent(prefilling, now_s)
        budgets = {
            rank: self.pace.budget(rank, decoding=decoding, urgent=urgent, due=rank in due)
            for rank in order
        }
        if not any(budgets.values()):
            return chosen
        lanes = self._lanes(prefilling)
        busy = [rank for rank, lane in lanes.items() if lane.all]
        for rank in order:
            budget = budgets[rank]
            if budget is not None and rank in busy:
                self._fill(chosen, lanes[rank], budget)
                if chosen:
                    self._turns.took(rank, waiting=busy)
                    break
        return chosen

    def _is_urgent(self, prefilling: Iterable[Sequence], now_s: float) -> bool:
        """Somebody would miss its deadline at the pace that spares the answers."""
        for sequence in prefilling:
            if sequence.limit_s is not None:
                n_pixels = sum(map(group_pixels, self._features.missing([sequence])))
                work_s = self._rates.work_s(n_tokens=sequence.n_left, n_pixels=n_pixels)
                if work_s is not None and sequence.limit_s - now_s < URGENT * work_s:
                    return True
        return False

    # order

    def _lanes(self, prefilling: Iterable[Sequence]) -> dict[Rank, _Lane]:
        lanes = {rank: _Lane() for rank in Rank}
        answers = [sequence for sequence in prefilling if sequence.background is None]
        work = next((s for s in prefilling if s.background is not None), None)
        lane_of_work = None
        earlier: list[_Reach] = []
        for sequence in answers:
            lane, reach = lanes[sequence.rank], self._reach(sequence)
            if work is not None and work.started and self._waits_for(reach, self._reach(work)):
                if lane_of_work is None:
                    lane.ready.append(work)
                    lane_of_work = lane
                lane.waiting.append(sequence)
            elif any(self._waits_for(reach, twin) for twin in earlier):
                lane.waiting.append(sequence)
            else:
                lane.ready.append(sequence)
            earlier.append(reach)
        if work is not None and lane_of_work is None:
            lane, reach = lanes[work.rank], self._reach(work)
            is_twin = any(self._waits_for(reach, twin) for twin in earlier)
            (lane.waiting if is_twin else lane.ready).append(work)
        return lanes

    def _reach(self, sequence: Sequence) -> _Reach:
        if sequence.started:
            return _Reach(sequence, sequence.n_ready)
        whole = sequence.background is not None
        match = self._slots.match(sequence.prepared.identity, whole=whole)
        return _Reach(sequence, max(sequence.n_ready, match.n_tokens))

    def _waits_for(self, own: _Reach, twin: _Reach) -> bool:
        """The twin is computing what the sequence can copy: enough of it to be worth a pass, or the
        rest of a picture, whose tokens cost most."""
        if own.sequence.started:
            return False
        identity = own.sequence.prepared.identity
        usable = identity if own.sequence.background else identity[:-1]
        shared = common_prefix(twin.sequence.prepared.identity, usable)
        done = max(twin.n_tokens, own.n_tokens)
        if shared - done >= self._limits.min_piece:
            return True
        groups = twin.sequence.prepared.groups
        return twin.sequence.started and any(done < group.stop <= shared for group in groups)

    def improve(self, sequence: Sequence, copies: list[SlotCopy]) -> None:
        """Before its first piece: take over a longer prefix that became resident meanwhile."""
        if sequence.started or sequence.slot is None:
            return
        copy = self._slots.improve(
            sequence.slot,
            sequence.prepared.identity,
            by_at_least=max(1, self._limits.min_piece // COPY_WORTH),
        )
        if copy is not None:
            copies.append(SlotCopy(sequence.request_id, copy))
            sequence.n_ready = sequence.n_reused = copy.n_tokens

    # amount

    def _fill(self, chosen: Slice, lane: _Lane, budget: Budget) -> None:
        chunks: list[PrefillChunk] = []
        room = budget.tokens
        for sequence in lane.ready:
            self.improve(sequence, chosen.copies)
            n_tokens = min(self._available(sequence, room), room)
            if chunks and n_tokens < min(sequence.n_left, self._limits.min_piece):
                continue  # the little room left serves only prompts that end in it
            if n_tokens:
                chunks.append(self._chunk(sequence, n_tokens))
                room -= n_tokens
            elif not chunks and (loaded := self._loaded(sequence)):
                chosen.encode = self._encode(loaded, lane, budget)
                return
            if room == 0:
                break
        chosen.prefills = tuple(chunks)
        if not chunks:  # loaded groups never wait for ever: they hold memory that others need
            loaded = [group for sequence in lane.waiting for group in self._loaded(sequence)]
            chosen.encode = self._encode(loaded, lane, budget) if loaded else None

    def _available(self, sequence: Sequence, room: int) -> int:
        """Prompt tokens that can be prefilled now; 0 where waiting for features is better."""
        missing = self._features.missing([sequence])
        if not missing:
            return sequence.n_left
        ready = max(0, missing[0].start - sequence.n_ready)
        if ready >= room:
            return ready
        return ready if ready >= self._limits.min_piece and not self._loaded(sequence) else 0

    def _chunk(self, sequence: Sequence, n_tokens: int) -> PrefillChunk:
        sequence.started = True
        if sequence.background is None and n_tokens == sequence.n_left:
            sequence.keep_logits = self._keeps_logits(sequence)
        return prefill_chunk(sequence, n_tokens, cache=self._cache)

    def _loaded(self, sequence: Sequence) -> list[FeatureGroup]:
        """Groups that the encoder can work on."""
        return [g for g in sequence.needed() if self._features.loads.patches(g.key) is not None]

    def _encode(self, first: list[FeatureGroup], lane: _Lane, budget: Budget) -> EncodeBatch:
        others = (group for sequence in lane.all for group in self._loaded(sequence))
        return encode_batch(
            [*first, *others],
            max_pixels=budget.pixels,
            loads=self._features.loads,
            cache=self._cache,
        )
