"""Which work the next step does: the engine's decisions, without torch and without a clock.

Owns    every sequence from its arrival to its end, the slot table and the encoder cache.
Thread  the engine thread only.
Each step decodes every running sequence once and does at most one bounded slice of other work
(`slicing`). Background work (`background`) goes through the same steps in the spare slot.

Invariants
1. A request gets deltas and then exactly one `Finished` or `Failed` (`_end`), unless it is aborted;
   a window's prefix exactly one `Warmed` or `Failed`.
2. When a sequence ends, its slot and its holds are given back in the same call.
3. What `plan` decided is recorded by `commit` before anything else may change a planned request.
4. Every id that came in is in one plan's `ended`: at its end, or after its verification.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from liveedge.core.errors import LiveEdgeError, StreamError, WindowLimitReached
from liveedge.engine.decide.admission import Admission, overdue
from liveedge.engine.decide.background import BackgroundWork
from liveedge.engine.decide.counters import Counters, engine_stats
from liveedge.engine.decide.detokenizer import TextStream
from liveedge.engine.decide.encoder_cache import EncoderCache
from liveedge.engine.decide.features import Features
from liveedge.engine.decide.limits import Limits
from liveedge.engine.decide.loads import Loads
from liveedge.engine.decide.pieces import decode_batch
from liveedge.engine.decide.plan import (
    SALT,
    DecodeBatch,
    LoadJob,
    Plan,
    PrefillChunk,
    Sampled,
    SlotCopy,
    StepResult,
)
from liveedge.engine.decide.prefix import common_prefix
from liveedge.engine.decide.rates import Rates
from liveedge.engine.decide.sequence import Marks, Sequence, Verifying, Vocabulary, Warming
from liveedge.engine.decide.slicing import Slicer
from liveedge.engine.decide.slots import Copy, SlotTable
from liveedge.engine.decide.turns import TenantTurns, Turns
from liveedge.engine.decide.verify import Verifier, with_cached_features
from liveedge.engine.interface import EngineStats, PreparedRequest, Warmed, WindowPrefix
from liveedge.engine.request import Event, Failed, Finished

Told: TypeAlias = Event | Warmed


@dataclass(slots=True)
class _Books:
    """What ended or was said since the loop last asked."""

    events: list[tuple[str, Told]] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)


class Scheduler:
    """`submit`, `warm`, `abort`, `drop_window` and `loaded` come in; `plan` decides; `commit`
    records; events go out."""

    def __init__(
        self,
        *,
        slots: SlotTable,
        cache: EncoderCache,
        limits: Limits,
        vocabulary: Vocabulary,
        verifier: Verifier | None = None,
    ) -> None:
        self.counters = Counters()
        self._slots = slots
        self._limits = limits
        self._vocabulary = vocabulary
        self._verifier = verifier or Verifier(share=0.0, chance=lambda: 0.0)
        self._rates = Rates()
        self._features = Features(cache, Loads(limits))
        self._admission = Admission(
            features=self._features, slots=slots, limits=limits, rates=self._rates
        )
        self._slicer = Slicer(
            slots=slots,
            features=self._features,
            limits=limits,
            rates=self._rates,
            keeps_logits=self._verifier.chooses,
        )
        self._admitted = Turns()
        self._tenants = TenantTurns()
        self._background = BackgroundWork()
        self._live: dict[str, Sequence] = {}
        self._books = _Books()
        self._n_arrived = 0

    def stats(self, *, row_bytes: int) -> EngineStats:
        """Gauges and counters; `row_bytes` is the size of a feature row."""
        return engine_stats(
            self.counters,
            slots=self._slots,
            features=self._features,
            verified=self._verifier.counters,
            n_answers=len(self._answers()),
            row_bytes=row_bytes,
        )

    def next_deadline_s(self) -> float | None:
        """When `plan` has something to do although no message came."""
        limits = [s.limit_s for s in self._live.values() if s.limit_s is not None]
        return min(limits, default=None)

    def _answers(self, phase: str | None = None) -> list[Sequence]:
        """Answers in order of place."""
        chosen = [
            sequence
            for sequence in self._live.values()
            if sequence.background is None and (phase is None or sequence.phase == phase)
        ]
        return sorted(chosen, key=lambda sequence: sequence.place)

    # what comes in

    def submit(self, prepared: PreparedRequest, *, now_s: float) -> None:
        """A new request; it waits until a slot and room for its features are free. One that cannot
        be answered in time ends at once."""
        sequence = Sequence(
            prepared=prepared,
            order=self._next_order(),
            marks=Marks(submitted_s=now_s),
            stream=TextStream(prepared.request.sampling.stop),
        )
        sequence.n_expected = self._guess_tokens(sequence)
        before = self._ahead_of(sequence)
        self._live[sequence.request_id] = sequence
        error = overdue(sequence, now_s) or self._admission.refuse(sequence, before, now_s=now_s)
        if error is not None:
            self._fail(sequence, error)

    def _ahead_of(self, sequence: Sequence) -> list[Sequence]:
        """What gets its slot before a newcomer: of another tenant that waits, no more than the
        newcomer's own has waiting, and one."""
        others = [other for other in self._answers() if other.rank <= sequence.rank]
        own = sum(o.phase == "waiting" and o.tenant == sequence.tenant for o in others)
        n_ahead: Counter[int] = Counter()
        ahead: list[Sequence] = []
        for other in others:
            is_rival = other.phase == "waiting" and other.rank == sequence.rank
            if is_rival and other.tenant != sequence.tenant:
                n_ahead[other.tenant] += 1
                if n_ahead[other.tenant] > own + 1:
                    continue
            ahead.append(other)
        return ahead

    def _next_order(self) -> int:
        self._n_arrived += 1
        return self._n_arrived

    def _guess_tokens(self, sequence: Sequence) -> int:
        """Prompt tokens to compute: what is not resident, nor on its way in another sequence."""
        identity = sequence.prepared.identity
        shared = self._slots.match(identity).n_tokens
        for other in self._live.values():
            shared = max(shared, common_prefix(other.prepared.identity, identity[:-1]))
        return len(identity) - shared

    def warm(self, prefix: WindowPrefix, *, now_s: float) -> None:
        """A window's next prefix; an older one of the same window that is not done is superseded."""
        sequence = Sequence(
            prepared=prefix.prepared,
            order=self._next_order(),
            marks=Marks(submitted_s=now_s),
            background=Warming(prefix.window_id),
        )
        self._live[sequence.request_id] = sequence
        known = {*self._slots.windows, *self._background.window_ids()}
        if prefix.window_id not in known and len(known) >= self._slots.n_windows:
            limit = self._slots.n_windows
            self._fail(
                sequence,
                WindowLimitReached(
                    f"{limit} windows are warm, which is all there is memory for: drop one, or "
                    "raise n_windows"
                ),
            )
            return
        older = self._background.add(sequence)
        if older is not None:
            self._supersede(older)

    def drop_window(self, window_id: str) -> None:
        """Its slot is free for another window; what it held can be reused until then."""
        for sequence in self._background.of_window(window_id):
            self._supersede(sequence)
        self._slots.drop_window(window_id)
        self._features.cache.keep_no_more(window_id)
        self._background.done(window_id)

    def abort(self, request_id: str) -> None:
        """The client left: all work ends here, nothing is said. Unknown ids ended already."""
        sequence = self._live.get(request_id)
        if sequence is not None:
            self.counters.cancelled += sequence.background is None
            self._leave(sequence)

    def loaded(self, job: LoadJob, patches: object, *, now_s: float) -> None:
        """A worker is done with a group; ignored if nobody waits for it any more."""
        loads = self._features.loads
        if not loads.expects(job):
            return
        self._rates.load.add(loads.arrived(job, patches, now_s=now_s), 1)
        for sequence in self._holders(job.group.key):
            if self._features.all_loaded(sequence):
                sequence.marks.loaded_s = now_s
                sequence.marks.encode_before_loaded_s = sequence.marks.encode_s

    def load_failed(self, job: LoadJob, error: LiveEdgeError) -> None:
        """A group cannot be had: the requests that need it fail, no others. A verification whose
        frame is gone goes on with the features that are cached."""
        if not self._features.loads.expects(job):
            return
        if job.is_salted and isinstance(error, StreamError) and self._use_cached(job):
            return
        self._fail_holders(job.group.key, error)

    def _use_cached(self, job: LoadJob) -> bool:
        """False where the group's features are gone too."""
        if not self._features.cache.is_ready(job.source_key):
            return False
        for sequence in self._holders(job.group.key):
            sequence.prepared = with_cached_features(sequence.prepared, job.group.key)
            self._features.swap(sequence, job.group.key, job.source_key)
        return True

    def fail_all(self, error: LiveEdgeError) -> None:
        """The engine is stopping."""
        for sequence in list(self._live.values()):
            self._fail(sequence, error)

    def take_events(self) -> list[tuple[str, Told]]:
        """What the clients must be told, in order; each event once."""
        events, self._books.events = self._books.events, []
        return events

    # decide

    def plan(self, *, now_s: float) -> Plan:
        """The next step. Requests past their deadline end here, waiting ones get free slots."""
        for sequence in list(self._live.values()):
            if (error := overdue(sequence, now_s)) is not None:
                self._fail(sequence, error)
        copies = self._admit(now_s)
        self._start_background(now_s, copies)
        decode = self._plan_decode()
        prefilling = self._prefilling()
        slice_ = self._slicer.choose(prefilling, decoding=decode is not None, now_s=now_s)
        loads = self._features.loads.order(self._features.missing(prefilling), now_s=now_s)
        books = self._books
        self._books = _Books(events=books.events)
        return Plan(
            loads=loads,
            dropped=self._features.take_dropped(),
            copies=(*copies, *slice_.copies),
            encode=slice_.encode,
            prefills=slice_.prefills,
            decode=decode,
            admitted=tuple(books.admitted),
            ended=tuple(books.ended),
        )

    def _admit(self, now_s: float) -> list[SlotCopy]:
        """Slots for those who wait: by rank, but batch requests are not passed over for ever, and of
        a rank by turns of tenants. The first that does not fit yet holds back the rest."""
        copies: list[SlotCopy] = []
        waiting = self._answers("waiting") if self._slots.n_free else []
        while waiting and self._slots.n_free:
            sequence = self._next_in(waiting)
            if not self._hold_features(sequence):
                break
            self._tenants.took(sequence.tenant)
            sequence.order = self._next_order()  # else a crowd that came first is computed first
            self._admitted.took(sequence.rank, waiting={other.rank for other in waiting})
            waiting.remove(sequence)
            self.counters.encoder_hits += len(sequence.warm)
            self.counters.encoder_misses += len(sequence.held) - len(sequence.warm)
            slot, copy = self._slots.acquire(sequence.request_id, sequence.prepared.identity)
            self._books.admitted.append(sequence.request_id)
            self._give(sequence, slot, copy, copies, now_s=now_s)
        return copies

    def _next_in(self, waiting: list[Sequence]) -> Sequence:
        """The oldest of the tenant whose turn it is: many requests of one do not stand before the
        first of another."""
        ranks = {sequence.rank for sequence in waiting}
        rank = next(rank for rank in self._admitted.order() if rank in ranks)
        held = Counter(one.tenant for one in self._live.values() if one.slot is not None)
        due = (sequence for sequence in waiting if sequence.rank == rank)
        return min(due, key=lambda one: self._tenants.place(one.tenant, n_held=held[one.tenant]))

    def _hold_features(self, sequence: Sequence) -> bool:
        """For an answer; background work that holds what it needs gives way, and begins again from
        what it left in the spare."""
        reusable = self._slots.match(sequence.prepared.identity).n_tokens
        if self._features.hold(sequence, reusable=reusable):
            return True
        postponed = self._background.postpone()
        if postponed is None:
            return False
        self._features.let_go(postponed)
        self._slots.release(self._slots.spare)
        postponed.slot, postponed.n_ready, postponed.started = None, 0, False
        postponed.compared.clear()
        if isinstance(postponed.background, Verifying):
            postponed.prepared = postponed.background.cold  # cached features may be gone by then
        return self._features.hold(sequence, reusable=reusable)

    def _give(
        self,
        sequence: Sequence,
        slot: int,
        copy: Copy | None,
        copies: list[SlotCopy],
        *,
        now_s: float,
    ) -> None:
        """The slot holds a reusable prefix: the sequence goes on behind it."""
        sequence.slot = slot
        sequence.marks.admitted_s = now_s
        sequence.n_ready = sequence.n_reused = len(self._slots.content(slot))
        if copy is not None:
            copies.append(SlotCopy(sequence.request_id, copy))

    def _start_background(self, now_s: float, copies: list[SlotCopy]) -> None:
        """Give the spare to what waits for it; what is resident already is done at once."""
        work = self._background
        while work.current is None and (sequence := work.first()) is not None:
            goal, identity = sequence.background, sequence.prepared.identity
            if isinstance(goal, Warming) and self._slots.covers(goal.window_id, identity):
                self._end_warm(sequence, goal)
                continue
            reusable = self._slots.match(identity, whole=True).n_tokens
            if not self._features.hold(sequence, reusable=reusable):
                return
            for waiting in self._answers("prefilling"):  # the spare is about to be overwritten
                self._slicer.improve(waiting, copies)
            work.start()
            copy = self._slots.fill_spare(sequence.request_id, identity)
            self._give(sequence, self._slots.spare, copy, copies, now_s=now_s)
            if copy is None:
                self._complete(sequence)

    def _plan_decode(self) -> DecodeBatch | None:
        running = self._answers("decoding")
        return decode_batch(running) if running else None

    def _prefilling(self) -> list[Sequence]:
        """Sequences with a slot and no token, in order of place; background work comes last."""
        current = self._background.current
        return [*self._answers("prefilling"), *([] if current is None else [current])]

    def _holders(self, key: str) -> list[Sequence]:
        return [sequence for sequence in self._live.values() if key in sequence.held]

    # record

    def commit(self, plan: Plan, result: StepResult, *, now_s: float) -> None:
        """Record what the runner did for this plan."""
        self.counters.steps += 1
        self._measure(plan, result)
        self._commit_failures(result)
        self._commit_encode(plan, result)
        n_tokens = sum(len(chunk.ids) for chunk in plan.prefills)
        for chunk in plan.prefills:
            sequence = self._live.get(chunk.request_id)
            if sequence is not None:
                share_s = result.prefill_s * len(chunk.ids) / n_tokens
                self._commit_chunk(sequence, chunk, result, share_s=share_s, now_s=now_s)
        if plan.decode is not None:
            self._commit_decode(plan.decode, result, now_s)
        if self._background.current is not None:
            self._complete(self._background.current)

    def _measure(self, plan: Plan, result: StepResult) -> None:
        if plan.decode is not None:
            self._rates.decode.add(result.decode_s, 1)
        if plan.encode is not None:
            n_pixels = sum(height * width for height, width in plan.encode.sizes)
            self._rates.encode.add(result.encode_s, n_pixels)
        if plan.prefills:
            n_tokens = sum(len(chunk.ids) for chunk in plan.prefills)
            self._rates.prefill.add(result.prefill_s, n_tokens)
        slice_s = result.encode_s + result.prefill_s
        self._slicer.pace.record(decode_s=result.decode_s, slice_s=slice_s)

    def _commit_failures(self, result: StepResult) -> None:
        for request_id, error in result.failed.items():
            sequence = self._live.get(request_id)
            if sequence is not None:
                if sequence.slot is not None:
                    self._slots.invalidate(sequence.slot)
                self._fail(sequence, error)
        for key, error in result.encode_failed.items():
            self._fail_holders(key, error)

    def _commit_encode(self, plan: Plan, result: StepResult) -> None:
        if plan.encode is None or not result.encoded:
            return
        self._features.encoded(result.encoded)
        pixels = {k: h * w for k, (h, w) in zip(plan.encode.keys, plan.encode.sizes, strict=True)}
        for sequence in self._live.values():
            own = [key for key in result.encoded if key in sequence.held]
            if own:
                sequence.marks.encode_s += result.encode_s
                sequence.n_encoded += len(own)
                share = sum(pixels[key] for key in own) / sum(pixels.values())
                self._spend(sequence, share * result.encode_s, n_groups=len(own))

    def _spend(
        self, sequence: Sequence, busy_s: float, *, n_groups: int = 0, n_tokens: int = 0
    ) -> None:
        sequence.busy_s += busy_s
        if isinstance(sequence.background, Warming):
            self.counters.warm_busy_s += busy_s
            self.counters.warm_encoded += n_groups
            self.counters.warm_prefilled += n_tokens

    def _commit_chunk(
        self,
        sequence: Sequence,
        chunk: PrefillChunk,
        result: StepResult,
        *,
        share_s: float,
        now_s: float,
    ) -> None:
        sequence.marks.prefill_s += result.prefill_s
        self._slots.append(chunk.slot, sequence.prepared.identity[chunk.start : chunk.stop])
        sequence.n_ready = chunk.stop
        sequence.n_computed += len(chunk.ids)
        self._spend(sequence, share_s, n_tokens=len(chunk.ids))
        if chunk.request_id in result.compared:
            sequence.compared.append(result.compared[chunk.request_id])
        if chunk.sample is None:
            return
        self._features.let_go(sequence)
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
        sequence.n_sampled += 1
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
        self._rates.answer.add(len(sequence.tokens), 1)
        self._say(
            sequence,
            Finished(
                reason="stop" if reason == "stop" else "length",
                usage=sequence.usage(),
                timings=sequence.timings(now_s),
            ),
        )
        kept = sequence.keep_logits and self._verify(sequence, now_s)
        self._leave(sequence, needs_frames=kept)

    # background work

    def _verify(self, answer: Sequence, now_s: float) -> bool:
        """Compute a finished answer again; False where too many wait for that already."""
        if self._background.n_verifications >= self._limits.max_verifications:
            self._verifier.skip("too many wait for it already")
            return False
        sequence = self._verifier.cold(answer, order=self._next_order(), now_s=now_s)
        self._live[sequence.request_id] = sequence
        self._background.add(sequence)
        return True

    def _complete(self, sequence: Sequence) -> None:
        """End background work whose prompt is computed to its end."""
        goal = sequence.background
        if sequence.n_left:
            return
        if isinstance(goal, Warming):
            self._slots.adopt(goal.window_id)
            sequence.slot = None  # the window's now
            self._end_warm(sequence, goal)
        elif isinstance(goal, Verifying):
            self._verifier.judge(sequence)
            self._leave(sequence)

    def _end_warm(self, sequence: Sequence, goal: Warming) -> None:
        """The window holds the prefix."""
        self._features.cache.keep(goal.window_id, (group.key for group in sequence.prepared.groups))
        self._background.done(goal.window_id)
        self.counters.warm_updates += 1
        self._say(sequence, _warmed(sequence, superseded=False))
        self._leave(sequence)

    def _supersede(self, sequence: Sequence) -> None:
        self.counters.warm_superseded += 1
        self._say(sequence, _warmed(sequence, superseded=True))
        self._leave(sequence)

    # end

    def _fail_holders(self, key: str, error: LiveEdgeError) -> None:
        """Features that cannot be had end the requests that still need them."""
        for sequence in self._holders(key):
            if any(group.key == key for group in sequence.needed()):
                self._fail(sequence, error)
            else:
                self._features.let_go_of(sequence, key)

    def _fail(self, sequence: Sequence, error: LiveEdgeError) -> None:
        goal = sequence.background
        if isinstance(goal, Verifying):
            self._verifier.skip(error.message)
        else:
            self.counters.count_failure(error, warm=goal is not None)
            self._say(sequence, Failed(error=error))
        self._leave(sequence)

    def _say(self, sequence: Sequence, event: Told) -> None:
        self._books.events.append((sequence.request_id, event))

    def _leave(self, sequence: Sequence, *, needs_frames: bool = False) -> None:
        del self._live[sequence.request_id]
        self._features.let_go(sequence)
        if sequence.slot is not None:
            self._slots.release(sequence.slot)
        goal = sequence.background
        if goal is not None:
            self._background.leave(sequence)
        if isinstance(goal, Verifying):
            for group in sequence.prepared.groups:
                if SALT in group.key:
                    self._features.cache.forget(group.key)  # nothing will ask for it by this name
            self._books.ended.append(goal.answer_id)
        elif not needs_frames:
            self._books.ended.append(sequence.request_id)


def _warmed(sequence: Sequence, *, superseded: bool) -> Warmed:
    return Warmed(
        superseded=superseded,
        n_tokens=sequence.prepared.n_tokens,
        n_prefilled=sequence.n_computed,
        n_encoded=sequence.n_encoded,
        busy_s=sequence.busy_s,
    )
