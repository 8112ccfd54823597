"""Which work the next step does: the engine's decisions, without torch and without a clock.

Owns    every sequence from submission to its end, the slot table and the encoder cache.
Thread  the engine thread only.
Each step decodes every running sequence once and does one bounded slice of other work: an encoder
batch, or prompt pieces of at most `prefill_chunk` tokens together.

Invariants
1. A request gets deltas and then exactly one `Finished` or `Failed` (`_end`), unless it is aborted.
2. When a request ends, its slot and its holds are given back in the same call.
3. What `plan` decided is recorded by `commit` before anything else may change a planned request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from liveedge.core.errors import DeadlineExceeded, LiveEdgeError
from liveedge.engine.detokenizer import TextStream
from liveedge.engine.encoder_cache import EncoderCache
from liveedge.engine.interface import EngineStats, FeatureGroup, PreparedRequest
from liveedge.engine.plan import (
    DecodeBatch,
    EncodeBatch,
    LoadJob,
    Plan,
    PrefillChunk,
    Sampled,
    SampleSpec,
    SlotCopy,
    StepResult,
)
from liveedge.engine.prefix import common_prefix
from liveedge.engine.request import Event, Failed, Finished
from liveedge.engine.sequence import Marks, Sequence, Vocabulary
from liveedge.engine.slots import SlotTable

BYTES_PER_PIXEL = 2 * 3 * 4  # patches of a group: two frames, three channels, float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of a step and of what may lie between the stages."""

    prefill_chunk: int  # prompt tokens per step
    encode_pixels: int  # pixels of groups per encoder batch; one group at least
    patch_bytes: int  # preprocessed groups not encoded yet; one group at least
    max_loading: int  # groups with the workers
    min_piece: int = 64  # prompt tokens: a smaller gain is not worth a pass of its own


@dataclass(slots=True)
class _Load:
    """A group on its way from pixels to patches."""

    job: LoadJob
    patches: object | None = None  # set once the worker is done

    @property
    def group(self) -> FeatureGroup:
        return self.job.group


@dataclass(slots=True)
class Counters:
    """Since the start."""

    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    encoder_hits: int = 0
    encoder_misses: int = 0
    prefix_hits: int = 0
    prefix_tokens_reused: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0


@dataclass(slots=True)
class _Books:
    """What ended or was said since the loop last asked."""

    events: list[tuple[str, Event]] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    dropped: list[LoadJob] = field(default_factory=list)


class Scheduler:
    """`submit`, `abort` and `loaded` come in; `plan` decides; `commit` records; events go out."""

    def __init__(
        self, *, slots: SlotTable, cache: EncoderCache, limits: Limits, vocabulary: Vocabulary
    ) -> None:
        self.counters = Counters()
        self._slots = slots
        self._cache = cache
        self._limits = limits
        self._vocabulary = vocabulary
        self._live: dict[str, Sequence] = {}
        self._loads: dict[str, _Load] = {}
        self._books = _Books()
        self._n_submitted = 0

    def stats(self, *, row_bytes: int) -> EngineStats:
        """Gauges and counters; `row_bytes` is the size of a feature row."""
        counters = self.counters
        n_slots, cache = self._slots.n_used, self._cache
        return EngineStats(
            queue_depth=len(self._live) - n_slots,
            running=n_slots,
            slots_total=self._slots.n_slots,
            slots_used=n_slots,
            resident_tokens=self._slots.resident_tokens,
            encoder_cache_bytes=cache.used_rows * row_bytes,
            encoder_cache_capacity_bytes=cache.n_rows * row_bytes,
            encoder_pinned_bytes=cache.held_rows * row_bytes,
            encoder_hits=counters.encoder_hits,
            encoder_misses=counters.encoder_misses,
            loads_in_flight=len(self._loads),
            patch_bytes=self._patch_bytes,
            prefix_hits=counters.prefix_hits,
            prefix_tokens_reused=counters.prefix_tokens_reused,
            prompt_tokens=counters.prompt_tokens,
            generated_tokens=counters.generated_tokens,
            finished=counters.finished,
            failed=counters.failed,
            cancelled=counters.cancelled,
            steps=counters.steps,
        )

    @property
    def _patch_bytes(self) -> int:
        return sum(group_bytes(load.group) for load in self._loads.values())

    def next_deadline_s(self) -> float | None:
        """When `plan` has something to do although no message came."""
        deadlines = [s.deadline_s for s in self._live.values() if s.deadline_s is not None]
        return min(deadlines, default=None)

    # what comes in

    def submit(self, prepared: PreparedRequest, *, now_s: float) -> None:
        """A new request; it waits until a slot and room for its features are free."""
        self._n_submitted += 1
        sequence = Sequence(
            prepared=prepared,
            order=self._n_submitted,
            marks=Marks(submitted_s=now_s),
            stream=TextStream(prepared.request.sampling.stop),
        )
        self._live[sequence.request_id] = sequence

    def abort(self, request_id: str) -> None:
        """The client left: all work ends here, nothing is said. Unknown ids ended already."""
        sequence = self._live.get(request_id)
        if sequence is not None:
            self.counters.cancelled += 1
            self._leave(sequence)

    def loaded(self, job: LoadJob, patches: object, *, now_s: float) -> None:
        """A worker is done with a group; ignored if nobody waits for it any more."""
        load = self._loads.get(job.group.key)
        if load is None or load.job is not job:
            return
        load.patches = patches
        for sequence in self._holders(job.group.key):
            if all(self._is_loaded(group.key) for group in sequence.needed()):
                sequence.marks.loaded_s = now_s
                sequence.marks.encode_before_loaded_s = sequence.marks.encode_s

    def load_failed(self, job: LoadJob, error: LiveEdgeError) -> None:
        """A group cannot be had: the requests that need it fail, no others."""
        load = self._loads.get(job.group.key)
        if load is not None and load.job is job:
            self._fail_holders(job.group.key, error)

    def fail_all(self, error: LiveEdgeError) -> None:
        """The engine is stopping."""
        for sequence in list(self._live.values()):
            self._fail(sequence, error)

    def take_events(self) -> list[tuple[str, Event]]:
        """What the clients must be told, in order; each event once."""
        events, self._books.events = self._books.events, []
        return events

    # decide

    def plan(self, *, now_s: float) -> Plan:
        """The next step. Requests past their deadline end here, waiting ones get free slots."""
        self._expire(now_s)
        copies = self._admit(now_s)
        decode = self._plan_decode()
        encode, prefills = self._plan_slice(copies)
        loads = self._plan_loads()
        books = self._books
        self._books = _Books(events=books.events)
        return Plan(
            loads=loads,
            dropped=tuple(books.dropped),
            copies=tuple(copies),
            encode=encode,
            prefills=prefills,
            decode=decode,
            admitted=tuple(books.admitted),
            ended=tuple(books.ended),
        )

    def _expire(self, now_s: float) -> None:
        for sequence in list(self._live.values()):
            if sequence.deadline_s is not None and now_s >= sequence.deadline_s:
                waited_ms = (now_s - sequence.marks.submitted_s) * 1000
                self._fail(
                    sequence,
                    DeadlineExceeded(
                        f"not finished in time: {waited_ms:.0f} ms after admission the request "
                        f"was {sequence.phase} with {len(sequence.tokens)} tokens; "
                        "raise timeout_ms or ask for less"
                    ),
                )

    def _by_rank(self, phase: str) -> list[Sequence]:
        chosen = [sequence for sequence in self._live.values() if sequence.phase == phase]
        return sorted(chosen, key=lambda sequence: sequence.rank)

    def _admit(self, now_s: float) -> list[SlotCopy]:
        """Strictly in order: the first that does not fit yet holds back the rest."""
        copies: list[SlotCopy] = []
        if self._slots.n_free == 0:
            return copies
        for sequence in self._by_rank("waiting"):
            if self._slots.n_free == 0 or not self._hold_features(sequence):
                break
            slot, copy = self._slots.acquire(sequence.request_id, sequence.prepared.identity)
            sequence.slot = slot
            sequence.marks.admitted_s = now_s
            self._books.admitted.append(sequence.request_id)
            self._reuse(sequence)
            if copy is not None:
                copies.append(SlotCopy(sequence.request_id, copy))
        return copies

    def _hold_features(self, sequence: Sequence) -> bool:
        reusable = self._slots.match(sequence.prepared.identity).n_tokens
        needed = {g.key: g.n_tokens for g in sequence.prepared.groups if g.stop > reusable}
        warm = frozenset(key for key in needed if self._cache.is_ready(key))
        if not self._cache.hold(needed):
            return False
        sequence.held = tuple(needed)
        sequence.warm = warm
        self.counters.encoder_hits += len(warm)
        self.counters.encoder_misses += len(needed) - len(warm)
        return True

    def _reuse(self, sequence: Sequence) -> None:
        """The slot holds a reusable prefix: go on behind it."""
        assert sequence.slot is not None
        sequence.n_ready = sequence.n_reused = len(self._slots.content(sequence.slot))

    def _plan_decode(self) -> DecodeBatch | None:
        running = [sequence for sequence in self._live.values() if sequence.phase == "decoding"]
        if not running:
            return None
        running.sort(key=lambda sequence: sequence.slot or 0)
        lengths = np.array([sequence.n_ready for sequence in running], dtype=np.int64)
        deltas = [sequence.prepared.position_delta for sequence in running]
        return DecodeBatch(
            request_ids=tuple(sequence.request_id for sequence in running),
            slots=np.array([sequence.slot for sequence in running], dtype=np.int64),
            lengths=lengths,
            tokens=np.array([sequence.tokens[-1] for sequence in running], dtype=np.int64),
            positions=lengths + np.array(deltas, dtype=np.int64),
        )

    def _plan_slice(
        self, copies: list[SlotCopy]
    ) -> tuple[EncodeBatch | None, tuple[PrefillChunk, ...]]:
        """The first request in order that can go on decides what kind of work is done."""
        chunks: list[PrefillChunk] = []
        budget = self._limits.prefill_chunk
        earlier: list[Sequence] = []
        waiting: list[Sequence] = []
        for sequence in self._by_rank("prefilling"):
            is_twin = self._waits_for_twin(sequence, earlier)
            earlier.append(sequence)
            if is_twin:
                waiting.append(sequence)
                continue
            self._improve(sequence, copies)
            n_tokens = min(self._available(sequence, budget), budget)
            rest = sequence.prepared.n_tokens - sequence.n_ready
            if chunks and n_tokens < min(rest, self._limits.min_piece):
                continue  # the little room left serves only prompts that end in it
            if n_tokens:
                chunks.append(self._chunk(sequence, n_tokens))
                budget -= n_tokens
            elif not chunks and (batch := self._encode_batch(sequence)):
                return batch, ()
            if budget == 0:
                break
        if not chunks:  # loaded groups never wait for ever: they hold memory that others need
            batches = (self._encode_batch(sequence) for sequence in waiting)
            return next((batch for batch in batches if batch is not None), None), ()
        return None, tuple(chunks)

    def _waits_for_twin(self, sequence: Sequence, earlier: Iterable[Sequence]) -> bool:
        """An earlier request is computing a prefix that this one can copy: let it."""
        if sequence.started:
            return False
        usable = sequence.prepared.identity[:-1]
        for twin in earlier:
            shared = common_prefix(twin.prepared.identity, usable)
            if shared - max(twin.n_ready, sequence.n_ready) >= self._limits.min_piece:
                return True
        return False

    def _improve(self, sequence: Sequence, copies: list[SlotCopy]) -> None:
        """Before its first piece: take over a longer prefix that became resident meanwhile."""
        if sequence.started or sequence.slot is None:
            return
        identity = sequence.prepared.identity
        copy = self._slots.improve(sequence.slot, identity, by_at_least=self._limits.min_piece)
        if copy is not None:
            copies.append(SlotCopy(sequence.request_id, copy))
            self._reuse(sequence)

    def _available(self, sequence: Sequence, budget: int) -> int:
        """Prompt tokens that can be prefilled now; 0 where waiting for features is better."""
        end = sequence.prepared.n_tokens
        missing = next((g for g in sequence.needed() if not self._cache.is_ready(g.key)), None)
        if missing is None:
            return end - sequence.n_ready
        ready = max(0, missing.start - sequence.n_ready)
        if ready >= budget:
            return ready
        waiting = any(self._patches(group.key) is not None for group in sequence.needed())
        return ready if ready >= self._limits.min_piece and not waiting else 0

    def _chunk(self, sequence: Sequence, n_tokens: int) -> PrefillChunk:
        assert sequence.slot is not None
        sequence.started = True
        prepared = sequence.prepared
        start, stop = sequence.n_ready, sequence.n_ready + n_tokens
        index: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = [np.empty(0, np.int64)]
        rows = [np.empty(0, np.int64)]
        for group in prepared.groups:
            low, high = max(group.start, start), min(group.stop, stop)
            if low < high:
                index.append(np.arange(low - start, high - start, dtype=np.int64))
                rows.append(self._cache.rows(group.key)[low - group.start : high - group.start])
        request = prepared.request
        last = stop == prepared.n_tokens
        return PrefillChunk(
            request_id=sequence.request_id,
            slot=sequence.slot,
            start=start,
            ids=prepared.ids[start:stop],
            positions=prepared.positions[:, start:stop],
            visual_index=np.concatenate(index),
            visual_rows=np.concatenate(rows),
            sample=SampleSpec(request.sampling, request.json_schema) if last else None,
        )

    def _encode_batch(self, sequence: Sequence) -> EncodeBatch | None:
        """The request's first loaded group, and others of the same size from any request."""
        first = next((g for g in sequence.needed() if self._patches(g.key) is not None), None)
        if first is None:
            return None
        area = first.height * first.width
        room = max(1, self._limits.encode_pixels // area)
        size = (first.height, first.width)
        same = [
            load.group.key
            for load in self._loads.values()
            if load.patches is not None and (load.group.height, load.group.width) == size
        ]
        same.remove(first.key)
        keys = (first.key, *same[: room - 1])
        return EncodeBatch(
            keys=keys,
            patches=tuple(self._patches(key) for key in keys),
            rows=tuple(self._cache.rows(key) for key in keys),
            size=size,
        )

    def _plan_loads(self) -> tuple[LoadJob, ...]:
        """In the order of the requests, as long as workers and memory have room."""
        chosen: list[LoadJob] = []
        n_loading = sum(load.patches is None for load in self._loads.values())
        n_bytes = self._patch_bytes
        for sequence in self._by_rank("prefilling"):
            for group in sequence.needed():
                if group.key in self._loads or self._cache.is_ready(group.key):
                    continue
                full = self._loads and n_bytes + group_bytes(group) > self._limits.patch_bytes
                if full or n_loading >= self._limits.max_loading:
                    return tuple(chosen)
                job = LoadJob(group)
                self._loads[group.key] = _Load(job)
                n_loading += 1
                n_bytes += group_bytes(group)
                chosen.append(job)
        return tuple(chosen)

    def _patches(self, key: str) -> object | None:
        load = self._loads.get(key)
        return None if load is None else load.patches

    def _is_loaded(self, key: str) -> bool:
        return self._cache.is_ready(key) or self._patches(key) is not None

    def _holders(self, key: str) -> list[Sequence]:
        return [sequence for sequence in self._live.values() if key in sequence.held]

    # record

    def commit(self, plan: Plan, result: StepResult, *, now_s: float) -> None:
        """Record what the runner did for this plan."""
        self.counters.steps += 1
        self._commit_failures(plan, result)
        self._commit_encode(result)
        for chunk in plan.prefills:
            sequence = self._live.get(chunk.request_id)
            if sequence is not None:
                self._commit_chunk(sequence, chunk, result, now_s)
        if plan.decode is not None:
            self._commit_decode(plan.decode, result, now_s)

    def _commit_failures(self, plan: Plan, result: StepResult) -> None:
        for request_id, error in result.failed.items():
            sequence = self._live.get(request_id)
            if sequence is not None:
                if sequence.slot is not None:
                    self._slots.invalidate(sequence.slot)
                self._fail(sequence, error)
        for key, error in result.encode_failed.items():
            self._fail_holders(key, error)

    def _commit_encode(self, result: StepResult) -> None:
        for key in result.encoded:
            self._loads.pop(key, None)
            self._cache.mark_ready(key)
        worked = set(result.encoded)
        for sequence in self._live.values():
            if not worked.isdisjoint(sequence.held):
                sequence.marks.encode_s += result.encode_s

    def _commit_chunk(
        self, sequence: Sequence, chunk: PrefillChunk, result: StepResult, now_s: float
    ) -> None:
        sequence.marks.prefill_s += result.prefill_s.get(chunk.request_id, 0.0)
        self._slots.append(chunk.slot, sequence.prepared.identity[chunk.start : chunk.stop])
        sequence.n_ready = chunk.stop
        if chunk.sample is None:
            return
        self._release_features(sequence)
        self.counters.prompt_tokens += sequence.prepared.n_tokens
        self.counters.prefix_hits += sequence.n_reused > 0
        self.counters.prefix_tokens_reused += sequence.n_reused
        sequence.marks.first_token_s = now_s
        self._take(sequence, result.sampled[chunk.request_id], now_s)

    def _commit_decode(self, batch: DecodeBatch, result: StepResult, now_s: float) -> None:
        for request_id, token in zip(batch.request_ids, batch.tokens, strict=True):
            sequence = self._live.get(request_id)
            if sequence is None or sequence.slot is None:
                continue
            self._slots.append(sequence.slot, np.array([token], dtype=np.int64))
            sequence.n_ready += 1
            self._take(sequence, result.sampled[request_id], now_s)

    def _take(self, sequence: Sequence, sampled: Sampled, now_s: float) -> None:
        """Add a sampled token to the answer and say what became certain."""
        if sampled.token in self._vocabulary.eos_ids:
            self._finish(sequence, "", stopped=True, now_s=now_s)
            return
        sequence.take(sampled, self._vocabulary)
        self.counters.generated_tokens += 1
        text = sequence.stream.push(self._vocabulary.token_bytes(sampled.token))
        stopped = sequence.stream.stopped or sampled.complete
        if stopped or len(sequence.tokens) >= sequence.prepared.max_new_tokens:
            self._finish(sequence, text, stopped=stopped, now_s=now_s)
        elif text or len(sequence.tokens) == 1:
            self._say(sequence, sequence.delta(text))

    def _finish(self, sequence: Sequence, text: str, *, stopped: bool, now_s: float) -> None:
        text += sequence.stream.finish()
        if text or sequence.n_pending:
            self._say(sequence, sequence.delta(text))
        reason = "stop" if stopped or sequence.stream.stopped else "length"
        self.counters.finished += 1
        self._end(
            sequence,
            Finished(
                reason="stop" if reason == "stop" else "length",
                usage=sequence.usage(),
                timings=sequence.timings(now_s),
            ),
        )

    # end

    def _fail_holders(self, key: str, error: LiveEdgeError) -> None:
        """Features that cannot be had end the requests that still need them."""
        for sequence in self._holders(key):
            if any(group.key == key for group in sequence.needed()):
                self._fail(sequence, error)
            else:
                sequence.held = tuple(held for held in sequence.held if held != key)
                self._release(key)

    def _fail(self, sequence: Sequence, error: LiveEdgeError) -> None:
        self.counters.failed += 1
        self._end(sequence, Failed(error=error))

    def _say(self, sequence: Sequence, event: Event) -> None:
        self._books.events.append((sequence.request_id, event))

    def _end(self, sequence: Sequence, event: Finished | Failed) -> None:
        self._say(sequence, event)
        self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        del self._live[sequence.request_id]
        self._books.ended.append(sequence.request_id)
        self._release_features(sequence)
        if sequence.slot is not None:
            self._slots.release(sequence.slot)

    def _release_features(self, sequence: Sequence) -> None:
        for key in sequence.held:
            self._release(key)
        sequence.held = ()

    def _release(self, key: str) -> None:
        self._cache.release(key)
        if key not in self._cache and (load := self._loads.pop(key, None)):
            self._books.dropped.append(load.job)


def group_bytes(group: FeatureGroup) -> int:
    """Memory of a group's patches."""
    return group.height * group.width * BYTES_PER_PIXEL
