"""A scheduler beside a device that remembers what lies where, for tests of its decisions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from liveedge.core.errors import FrameEvicted, InternalError
from liveedge.engine.decide.encoder_cache import EncoderCache
from liveedge.engine.decide.limits import BYTES_PER_PIXEL, Limits
from liveedge.engine.decide.plan import (
    Compare,
    Compared,
    LoadJob,
    Plan,
    PrefillChunk,
    Sampled,
    StepResult,
)
from liveedge.engine.decide.prefix import prompt_identity, visual_identity
from liveedge.engine.decide.scheduler import Scheduler
from liveedge.engine.decide.slots import SlotTable
from liveedge.engine.decide.verify import Verifier
from liveedge.engine.interface import FeatureGroup, PreparedRequest, Warmed, WindowPrefix
from liveedge.engine.request import (
    Delta,
    Event,
    Failed,
    Finished,
    FrameInput,
    GenerateRequest,
    SamplingParams,
)

ENDS = Finished | Failed | Warmed
EOS, PAD = 0, 5
N_SLOTS, N_WINDOWS, MAX_LEN, N_ROWS = 3, 2, 40, 10
SIZES = {"a": 2, "b": 2, "c": 3, "d": 4}  # visual tokens of each group
LIMITS = Limits(
    prefill_chunk=6,
    encode_pixels=4,
    patch_bytes=6 * BYTES_PER_PIXEL,
    max_loading=2,
    min_piece=2,
)


class Letters:
    """Token n writes one letter; token 0 ends."""

    eos_ids = (EOS,)

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([ord("a") + token_id % 26])


def no_pixels() -> np.ndarray:
    raise AssertionError("the scheduler loads nothing")


def prepare(
    request_id: str,
    pieces: Iterable[int | str],
    *,
    max_tokens: int = 3,
    batch: bool = False,
    deadline_s: float | None = None,
    fresh_until_s: float | None = None,
    stop: tuple[str, ...] = (),
) -> PreparedRequest:
    """A prompt of text tokens (numbers) and groups (letters)."""
    ids: list[int] = []
    groups: list[FeatureGroup] = []
    for piece in pieces:
        if isinstance(piece, int):
            ids.append(piece)
            continue
        picture = FrameInput(key=piece, width=SIZES[piece[0]], height=1, load=no_pixels)
        groups.append(
            FeatureGroup(
                key=piece,
                frames=(picture,),
                height=1,
                width=SIZES[piece[0]],
                start=len(ids),
                n_tokens=SIZES[piece[0]],
            )
        )
        ids += [PAD] * SIZES[piece[0]]
    array = np.array(ids, np.int64)
    return PreparedRequest(
        request=GenerateRequest(
            request_id=request_id,
            messages=(),
            sampling=SamplingParams(max_tokens=max_tokens, stop=stop),
            priority="batch" if batch else "interactive",
            deadline_s=deadline_s,
            fresh_until_s=fresh_until_s,
        ),
        ids=array,
        positions=np.broadcast_to(np.arange(len(ids), dtype=np.int64), (3, len(ids))),
        position_delta=-1,
        identity=prompt_identity(array, [(g.start, g.n_tokens, g.key) for g in groups]),
        groups=tuple(groups),
        image_tokens=sum(group.n_tokens for group in groups),
        max_new_tokens=max_tokens,
    )


@dataclass
class Device:
    """Slots and feature rows as lists of identities; checks that a plan reads only what is there."""

    limits: Limits
    slots: list[list[int]]
    rows: list[int | None]
    part_s: float = 0.001  # what each part of a step takes
    verified: list[Compare] = field(default_factory=list)
    drifts: bool = False  # what is computed again comes out different

    def execute(self, plan: Plan, tokens: dict[str, int], failing: set[str]) -> StepResult:
        result = StepResult()
        if plan.decode is not None:
            self._decode(plan, result, tokens, failing)
        for item in plan.copies:
            source = self.slots[item.copy.source]
            assert len(source) >= item.copy.n_tokens
            self.slots[item.copy.target] = source[: item.copy.n_tokens]
        if plan.encode is not None:
            self._encode(plan, result, failing)
        for chunk in plan.prefills:
            assert len(chunk.ids) > 0
            identity = chunk.ids.copy()
            identity[chunk.visual_index] = [self.rows[row] for row in chunk.visual_rows]
            assert PAD not in identity  # every visual token has its features
            slot = self.slots[chunk.slot]
            assert len(slot) >= chunk.start
            self.slots[chunk.slot] = slot[: chunk.start] + identity.tolist()
            self._answer(
                chunk.request_id, result, tokens, failing, samples=chunk.sample is not None
            )
            if chunk.compare is not None and chunk.request_id not in result.failed:
                result.compared[chunk.request_id] = self._compare(chunk)
        result.decode_s = self.part_s if plan.decode else 0.0
        result.encode_s = self.part_s if plan.encode else 0.0
        result.prefill_s = self.part_s if plan.prefills else 0.0
        return result

    def _compare(self, chunk: PrefillChunk) -> Compared:
        assert chunk.compare is not None
        self.verified.append(chunk.compare)
        numbers = tuple(number for _, number in chunk.compare.rows)
        differing = tuple((number, 1, 2) for number in numbers) if self.drifts else ()
        return Compared(
            n_rows=len(numbers),
            max_difference=0.5 if self.drifts else 0.0,
            scale=10.0,
            differing=differing,
        )

    def _encode(self, plan: Plan, result: StepResult, failing: set[str]) -> None:
        batch = plan.encode
        assert batch is not None
        pixels = sum(height * width for height, width in batch.sizes)
        assert len(batch.keys) == 1 or pixels <= self.limits.encode_pixels
        runs = [size for size, _ in groupby(batch.sizes)]
        assert len(runs) == len(set(runs))  # equal sizes stand together
        parts = zip(batch.keys, batch.rows, batch.patches, batch.sizes, strict=True)
        for key, rows, patches, size in parts:
            assert patches == f"patches of {key}"
            assert size == (1, SIZES[key[0]])
            for row, identity in zip(rows, visual_identity(key, SIZES[key[0]]), strict=True):
                self.rows[row] = int(identity)
        if failing & set(batch.keys):
            error = InternalError("the encoder failed")
            result.encode_failed = dict.fromkeys(batch.keys, error)
        else:
            result.encoded = batch.keys

    def _decode(
        self, plan: Plan, result: StepResult, tokens: dict[str, int], failing: set[str]
    ) -> None:
        batch = plan.decode
        assert batch is not None
        assert list(batch.slots) == sorted(set(batch.slots.tolist()))
        for i, request_id in enumerate(batch.request_ids):
            slot = self.slots[batch.slots[i]]
            assert len(slot) >= batch.lengths[i]
            assert batch.positions[i] == batch.lengths[i] - 1  # position_delta
            self.slots[batch.slots[i]] = [*slot[: batch.lengths[i]], int(batch.tokens[i])]
            self._answer(request_id, result, tokens, failing, samples=True)

    def _answer(
        self,
        request_id: str,
        result: StepResult,
        tokens: dict[str, int],
        failing: set[str],
        *,
        samples: bool,
    ) -> None:
        if request_id in failing:
            result.failed[request_id] = InternalError("the model failed")
        elif samples:
            result.sampled[request_id] = Sampled(tokens.get(request_id, 7))


class Bench:
    """A scheduler with a device, and what every request was told."""

    def __init__(
        self,
        *,
        n_rows: int = N_ROWS,
        n_slots: int = N_SLOTS,
        limits: Limits = LIMITS,
        verifier: Verifier | None = None,
        step_s: float = 0.001,
    ) -> None:
        self.limits = limits
        self.slots = SlotTable(n_slots=n_slots, n_windows=N_WINDOWS, max_len=MAX_LEN)
        self.cache = EncoderCache(n_rows=n_rows)
        self.scheduler = Scheduler(
            slots=self.slots,
            cache=self.cache,
            limits=limits,
            vocabulary=Letters(),
            verifier=verifier,
        )
        self.device = Device(limits, [[] for _ in range(self.slots.n_total)], [None] * n_rows)
        self.device.part_s = step_s
        self.now_s = 100.0
        self.loading: list[LoadJob] = []
        self.loaded: list[str] = []  # keys as the owner of the frames knows them
        self.told: dict[str, list[Event | Warmed]] = {}
        self.prepared: dict[str, PreparedRequest] = {}
        self.window_of: dict[str, str] = {}  # request id of a prefix
        self.shown: dict[str, list[int]] = {}  # what each warm window holds
        self.left: set[str] = set()
        self.n_left = self.n_forgotten = 0  # of answers before `forget`
        self.ended: list[str] = []
        self.prefilled: dict[str, int] = {}  # tokens of each prompt that were computed
        self.plan = Plan()

    def submit(self, prepared: PreparedRequest) -> None:
        self.told[prepared.request.request_id] = []
        self.prepared[prepared.request.request_id] = prepared
        self.scheduler.submit(prepared, now_s=self.now_s)
        self.listen()

    def warm(self, window_id: str, prepared: PreparedRequest) -> None:
        request_id = prepared.request.request_id
        self.told[request_id] = []
        self.prepared[request_id] = prepared
        self.window_of[request_id] = window_id
        prefix = WindowPrefix(window_id=window_id, prepared=prepared)
        self.scheduler.warm(prefix, now_s=self.now_s)
        self.listen()

    def drop_window(self, window_id: str) -> None:
        self.shown.pop(window_id, None)
        self.scheduler.drop_window(window_id)
        self.listen()

    def abort(self, request_id: str) -> None:
        if request_id in self.waiting():
            self.left.add(request_id)
        self.scheduler.abort(request_id)

    def step(self, tokens: dict[str, int] | None = None, failing: set[str] | None = None) -> Plan:
        plan = self.plan = self.scheduler.plan(now_s=self.now_s)
        self.loading = [job for job in self.loading if job not in plan.dropped]
        self.loading += plan.loads
        self.ended += plan.ended
        self.check(plan)
        if plan.computes:
            result = self.device.execute(plan, tokens or {}, failing or set())
            self.now_s += 0.01
            self.scheduler.commit(plan, result, now_s=self.now_s)
            self.salt(plan)
        self.listen()
        return plan

    def salt(self, plan: Plan) -> None:
        """What verifies an answer has a name of its own for its first token."""
        for chunk in plan.prefills:
            if chunk.request_id not in self.prepared and chunk.start == 0:
                self.device.slots[chunk.slot][:1] = self.slots.content(chunk.slot)[:1].tolist()

    def check(self, plan: Plan) -> None:
        """Whatever is computed behind a prefix, that prefix is the request's own; what a window
        shows is never written."""
        assert sum(len(chunk.ids) for chunk in plan.prefills) <= self.limits.prefill_chunk
        targets = {item.copy.target for item in plan.copies}
        written = targets | {chunk.slot for chunk in plan.prefills}
        assert written.isdisjoint(self.slots.windows.values())
        for chunk in plan.prefills:
            known = self.slots.content(chunk.slot)
            if chunk.request_id in self.prepared:
                known_so_far = self.prefilled.get(chunk.request_id, 0)
                self.prefilled[chunk.request_id] = known_so_far + len(chunk.ids)
                identity = self.prepared[chunk.request_id].identity
                assert known.tolist() == identity[: chunk.start].tolist()
            if chunk.slot not in targets:
                assert self.device.slots[chunk.slot][: chunk.start] == known.tolist()

    def listen(self) -> None:
        for request_id, event in self.scheduler.take_events():
            events = self.told[request_id]
            assert request_id not in self.left
            assert not any(isinstance(known, ENDS) for known in events)
            events.append(event)
            if isinstance(event, Finished):
                computed = self.prefilled[request_id]
                assert event.usage.cached_tokens + computed == event.usage.prompt_tokens
            if isinstance(event, Warmed) and not event.superseded:
                identity = self.prepared[request_id].identity
                self.shown[self.window_of[request_id]] = identity.tolist()
                assert event.n_prefilled == self.prefilled.get(request_id, 0)

    def load(self, job: LoadJob, *, works: bool = True) -> None:
        self.loading.remove(job)
        self.loaded.append(job.source_key)
        if works:
            self.scheduler.loaded(job, f"patches of {job.group.key}", now_s=self.now_s)
        else:
            self.scheduler.load_failed(job, FrameEvicted("the frame is gone"))
        self.listen()

    def load_all(self) -> None:
        for job in list(self.loading):
            self.load(job)

    def finish(self) -> None:
        """Let everything end; nothing may be stuck."""
        for _ in range(2000):
            if not self.waiting() and not self.busy():
                break
            self.load_all()
            self.step()
        assert not self.waiting()
        self.step()
        gauges = self.scheduler.stats(row_bytes=1)
        assert (gauges.queue_depth, gauges.running, gauges.slots_used) == (0, 0, 0)
        assert self.slots.owner(self.slots.spare) is None
        assert (gauges.encoder_pinned_bytes, gauges.loads_in_flight, gauges.patch_bytes) == (
            0,
            0,
            0,
        )
        assert sorted(self.ended) == sorted(self.told)
        outcomes = gauges.finished + gauges.failed + gauges.stale + gauges.predicted_late
        departures = self.n_left + len(self.left - set(self.window_of))
        assert gauges.cancelled == departures
        answers = self.n_forgotten + len(set(self.told) - set(self.window_of))
        assert outcomes + departures == answers

    def forget(self) -> None:
        """What this bench itself keeps of requests that ended."""
        self.n_forgotten += len(set(self.told) - set(self.window_of))
        self.n_left += len(self.left - set(self.window_of))
        for kept in (self.told, self.prepared, self.window_of, self.prefilled):
            kept.clear()
        self.left.clear()
        self.ended.clear()
        self.loaded.clear()

    def busy(self) -> bool:
        """Something is still computed, for somebody or to verify an answer."""
        return len(self.ended) < len(self.told)

    def waiting(self) -> set[str]:
        """Requests that were not told an end and did not leave."""
        return {
            request_id
            for request_id, events in self.told.items()
            if request_id not in self.left and not (events and isinstance(events[-1], ENDS))
        }

    def end(self, request_id: str) -> Event | Warmed:
        return self.told[request_id][-1]

    def warmed(self, request_id: str) -> Warmed:
        end = self.end(request_id)
        assert isinstance(end, Warmed), end
        return end

    def text(self, request_id: str) -> str:
        return "".join(e.text for e in self.told[request_id] if isinstance(e, Delta))
