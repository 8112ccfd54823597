"""The scheduler against a device that remembers what lies where, in any order of events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from liveedge.core.errors import DeadlineExceeded, FrameEvicted, InternalError
from liveedge.engine.encoder_cache import EncoderCache
from liveedge.engine.interface import FeatureGroup, PreparedRequest
from liveedge.engine.plan import LoadJob, Plan, Sampled, StepResult
from liveedge.engine.prefix import prompt_identity, visual_identity
from liveedge.engine.request import (
    Delta,
    Event,
    Failed,
    Finished,
    FrameInput,
    GenerateRequest,
    SamplingParams,
)
from liveedge.engine.scheduler import BYTES_PER_PIXEL, Limits, Scheduler
from liveedge.engine.slots import SlotTable

EOS, PAD = 0, 5
N_SLOTS, MAX_LEN, N_ROWS = 3, 40, 10
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
    stop: tuple[str, ...] = (),
) -> PreparedRequest:
    """A prompt of text tokens (numbers) and groups (letters)."""
    ids: list[int] = []
    groups: list[FeatureGroup] = []
    for piece in pieces:
        if isinstance(piece, int):
            ids.append(piece)
            continue
        picture = FrameInput(key=piece, width=SIZES[piece], height=1, load=no_pixels)
        groups.append(
            FeatureGroup(
                key=piece,
                frames=(picture,),
                height=1,
                width=SIZES[piece],
                start=len(ids),
                n_tokens=SIZES[piece],
            )
        )
        ids += [PAD] * SIZES[piece]
    array = np.array(ids, np.int64)
    return PreparedRequest(
        request=GenerateRequest(
            request_id=request_id,
            messages=(),
            sampling=SamplingParams(max_tokens=max_tokens, stop=stop),
            priority="batch" if batch else "interactive",
            deadline_s=deadline_s,
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

    slots: list[list[int]] = field(default_factory=lambda: [[] for _ in range(N_SLOTS)])
    rows: list[int | None] = field(default_factory=lambda: [None] * N_ROWS)

    def execute(self, plan: Plan, tokens: dict[str, int], failing: set[str]) -> StepResult:
        result = StepResult(encode_s=0.001)
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
        if plan.decode is not None:
            self._decode(plan, result, tokens, failing)
        return result

    def _encode(self, plan: Plan, result: StepResult, failing: set[str]) -> None:
        batch = plan.encode
        assert batch is not None
        assert len(batch.keys) == 1 or len(batch.keys) * batch.size[1] <= LIMITS.encode_pixels
        for key, rows, patches in zip(batch.keys, batch.rows, batch.patches, strict=True):
            assert patches == f"patches of {key}"
            assert batch.size == (1, SIZES[key])
            for row, identity in zip(rows, visual_identity(key, SIZES[key]), strict=True):
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

    def __init__(self, *, n_rows: int = N_ROWS) -> None:
        self.slots = SlotTable(n_slots=N_SLOTS, max_len=MAX_LEN)
        self.cache = EncoderCache(n_rows=n_rows)
        self.scheduler = Scheduler(
            slots=self.slots, cache=self.cache, limits=LIMITS, vocabulary=Letters()
        )
        self.device = Device()
        self.now_s = 100.0
        self.loading: list[LoadJob] = []
        self.told: dict[str, list[Event]] = {}
        self.prepared: dict[str, PreparedRequest] = {}
        self.left: set[str] = set()
        self.prefilled: dict[str, int] = {}  # tokens of each prompt that were computed
        self.plan = Plan()

    def submit(self, prepared: PreparedRequest) -> None:
        self.told[prepared.request.request_id] = []
        self.prepared[prepared.request.request_id] = prepared
        self.scheduler.submit(prepared, now_s=self.now_s)

    def step(self, tokens: dict[str, int] | None = None, failing: set[str] | None = None) -> Plan:
        plan = self.plan = self.scheduler.plan(now_s=self.now_s)
        self.loading = [job for job in self.loading if job not in plan.dropped]
        self.loading += plan.loads
        self.check(plan)
        if plan.computes:
            result = self.device.execute(plan, tokens or {}, failing or set())
            self.now_s += 0.01
            self.scheduler.commit(plan, result, now_s=self.now_s)
        self.listen()
        return plan

    def check(self, plan: Plan) -> None:
        """Whatever is computed behind a prefix, that prefix is the request's own."""
        assert sum(len(chunk.ids) for chunk in plan.prefills) <= LIMITS.prefill_chunk
        targets = {item.copy.target for item in plan.copies}
        for chunk in plan.prefills:
            known_so_far = self.prefilled.get(chunk.request_id, 0)
            self.prefilled[chunk.request_id] = known_so_far + len(chunk.ids)
            identity = self.prepared[chunk.request_id].identity
            known = self.slots.content(chunk.slot)
            assert known.tolist() == identity[: chunk.start].tolist()
            if chunk.slot not in targets:
                assert self.device.slots[chunk.slot][: chunk.start] == known.tolist()

    def listen(self) -> None:
        for request_id, event in self.scheduler.take_events():
            events = self.told[request_id]
            assert request_id not in self.left
            assert not any(isinstance(known, Finished | Failed) for known in events)
            events.append(event)
            if isinstance(event, Finished):
                computed = self.prefilled[request_id]
                assert event.usage.cached_tokens + computed == event.usage.prompt_tokens

    def load(self, job: LoadJob, *, works: bool = True) -> None:
        self.loading.remove(job)
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
        for _ in range(1000):
            if self.scheduler.stats(row_bytes=1).running + len(self.waiting()) == 0:
                break
            self.load_all()
            self.step()
        assert not self.waiting()
        self.step()
        gauges = self.scheduler.stats(row_bytes=1)
        assert (gauges.queue_depth, gauges.running, gauges.slots_used) == (0, 0, 0)
        assert (gauges.encoder_pinned_bytes, gauges.loads_in_flight, gauges.patch_bytes) == (
            0,
            0,
            0,
        )
        assert gauges.finished + gauges.failed + gauges.cancelled == len(self.told)

    def waiting(self) -> set[str]:
        """Requests that were not told an end and did not leave."""
        return {
            request_id
            for request_id, events in self.told.items()
            if request_id not in self.left
            and not (events and isinstance(events[-1], Finished | Failed))
        }

    def end(self, request_id: str) -> Event:
        return self.told[request_id][-1]

    def text(self, request_id: str) -> str:
        return "".join(e.text for e in self.told[request_id] if isinstance(e, Delta))


TEXT = st.integers(10, 12)
PIECES = st.lists(st.one_of(TEXT, TEXT, st.sampled_from(sorted(SIZES))), min_size=1, max_size=9)


class SchedulerMachine(RuleBasedStateMachine):
    """Requests come, leave, fail and run late; frames arrive in any order or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()

    @rule(
        pieces=PIECES,
        max_tokens=st.integers(1, 4),
        batch=st.booleans(),
        wait_s=st.none() | st.integers(0, 5),
    )
    def submit(
        self, pieces: list[int | str], max_tokens: int, batch: bool, wait_s: int | None
    ) -> None:
        if sum(SIZES[key] for key in {p for p in pieces if isinstance(p, str)}) > N_ROWS:
            return  # refused by `prepare`
        self.bench.submit(
            prepare(
                f"request-{len(self.bench.told)}",
                pieces,
                max_tokens=max_tokens,
                batch=batch,
                deadline_s=None if wait_s is None else self.bench.now_s + wait_s,
            )
        )

    @precondition(lambda self: self.bench.told)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.bench.told)))
        if request_id in self.bench.waiting():
            self.bench.left.add(request_id)
        self.bench.scheduler.abort(request_id)

    @precondition(lambda self: self.bench.loading)
    @rule(data=st.data(), works=st.sampled_from([True, True, True, False]))
    def load(self, data: st.DataObject, works: bool) -> None:
        self.bench.load(data.draw(st.sampled_from(self.bench.loading)), works=works)

    @rule(tokens=st.lists(st.sampled_from([EOS, 7, 10, 11]), max_size=6))
    def step(self, tokens: list[int]) -> None:
        waiting = sorted(self.bench.waiting())
        self.bench.step(dict(zip(waiting, tokens, strict=False)))

    @rule(data=st.data())
    def failing_step(self, data: st.DataObject) -> None:
        names = sorted(self.bench.waiting() | set(SIZES))
        self.bench.step(failing={data.draw(st.sampled_from(names))})

    @rule(seconds=st.integers(1, 3))
    def pass_time(self, seconds: int) -> None:
        self.bench.now_s += seconds

    @invariant()
    def loads_are_bounded(self) -> None:
        assert len(self.bench.loading) <= LIMITS.max_loading
        gauges = self.bench.scheduler.stats(row_bytes=1)
        largest = max(SIZES.values()) * BYTES_PER_PIXEL
        assert gauges.patch_bytes <= max(LIMITS.patch_bytes, largest)

    @invariant()
    def what_is_known_of_a_slot_is_in_its_memory(self) -> None:
        for slot, memory in enumerate(self.bench.device.slots):
            known = self.bench.slots.content(slot).tolist()
            copied = {item.copy.target for item in self.bench.plan.copies}
            assert slot in copied or memory[: len(known)] == known

    def teardown(self) -> None:
        self.bench.finish()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_an_answer_ends_at_its_end_token_which_is_no_part_of_it() -> None:
    bench = Bench()
    bench.submit(prepare("q", [10, 11]))
    bench.step({"q": 1})
    bench.step({"q": EOS})
    assert bench.text("q") == "b"
    end = bench.end("q")
    assert isinstance(end, Finished)
    assert (end.reason, end.usage.completion_tokens) == ("stop", 1)


def test_an_answer_without_a_token_ends_well_and_the_next_turn_works() -> None:
    """Case 20."""
    bench = Bench()
    bench.submit(prepare("other", [10, 12], max_tokens=9))
    bench.submit(prepare("empty", [10, 11]))
    bench.step({"empty": EOS})
    end = bench.end("empty")
    assert isinstance(end, Finished)
    assert (end.reason, end.usage.completion_tokens) == ("stop", 0)
    assert bench.told["empty"] == [end]
    bench.submit(prepare("next", [10, 11, 12]))
    bench.step({"next": 1})
    assert bench.text("next") == "b"
    bench.finish()
    assert bench.text("other") == "h" * 9


def test_a_stop_string_ends_the_answer_and_is_not_shown() -> None:
    bench = Bench()
    bench.submit(prepare("q", [10], max_tokens=9, stop=("cd",)))
    for token in (1, 2, 3):  # b, c, d
        bench.step({"q": token})
    assert bench.text("q") == "b"
    assert isinstance(bench.end("q"), Finished)
    assert sum(e.n_tokens for e in bench.told["q"] if isinstance(e, Delta)) == 3


def test_text_held_back_for_a_stop_string_is_shown_when_the_answer_ends() -> None:
    bench = Bench()
    bench.submit(prepare("q", [10], max_tokens=2, stop=("cd",)))
    bench.step({"q": 1})
    bench.step({"q": 2})
    assert bench.text("q") == "bc"
    end = bench.end("q")
    assert isinstance(end, Finished)
    assert end.reason == "length"


def test_the_first_token_is_told_even_when_it_shows_nothing() -> None:
    bench = Bench()
    bench.submit(prepare("q", [10], stop=("bc",)))
    bench.step({"q": 1})
    assert bench.told["q"] == [Delta(text="", n_tokens=1)]


def test_every_running_request_gets_a_token_in_every_step_while_others_are_prefilled() -> None:
    bench = Bench()
    bench.submit(prepare("running", [10], max_tokens=9))
    bench.step()
    bench.submit(prepare("long", [11] * 20))
    for n in range(2, 5):
        plan = bench.step()
        assert len(plan.prefills) == 1
        assert len(bench.told["running"]) == n


def test_interactive_requests_are_prefilled_before_batch_requests() -> None:
    bench = Bench()
    bench.submit(prepare("batch", [11] * 12, batch=True))
    bench.submit(prepare("interactive", [12] * 12))
    assert [chunk.request_id for chunk in bench.step().prefills] == ["interactive"]


def test_groups_of_equal_size_are_encoded_together_whoever_asked_for_them() -> None:
    bench = Bench()
    bench.submit(prepare("first", ["a", 10]))
    bench.submit(prepare("second", ["b", 10]))
    bench.step()
    bench.load_all()
    plan = bench.step()
    assert plan.encode is not None
    assert plan.encode.keys == ("a", "b")


def test_a_group_is_loaded_and_encoded_once_for_all_who_wait_for_it() -> None:
    bench = Bench()
    for name in ("one", "two", "three"):
        bench.submit(prepare(name, ["a", 10, 11]))
    plan = bench.step()
    assert [job.group.key for job in plan.loads] == ["a"]
    bench.finish()
    assert bench.scheduler.counters.encoder_misses == 3
    assert all(isinstance(bench.end(name), Finished) for name in ("one", "two", "three"))


def test_a_request_copies_a_prefix_that_an_earlier_one_is_computing() -> None:
    bench = Bench()
    bench.submit(prepare("first", [10] * 10 + [11]))
    bench.submit(prepare("second", [10] * 10 + [12]))
    bench.step()
    bench.step()
    bench.step()
    bench.finish()
    end = bench.end("second")
    assert isinstance(end, Finished)
    assert end.usage.cached_tokens == 10


def test_a_frame_that_cannot_be_loaded_fails_only_the_requests_that_need_it() -> None:
    bench = Bench()
    bench.submit(prepare("broken", ["a", 10]))
    bench.submit(prepare("broken too", [11, "a"]))
    bench.submit(prepare("fine", ["b", 10]))
    bench.step()
    for job in list(bench.loading):
        bench.load(job, works=job.group.key != "a")
    bench.finish()
    for name in ("broken", "broken too"):
        end = bench.end(name)
        assert isinstance(end, Failed)
        assert isinstance(end.error, FrameEvicted)
    assert isinstance(bench.end("fine"), Finished)


def test_a_failing_step_fails_its_request_and_its_memory_is_not_reused() -> None:
    bench = Bench()
    bench.submit(prepare("bad", [10] * 5, max_tokens=9))
    bench.step()
    bench.step(failing={"bad"})
    assert isinstance(bench.end("bad"), Failed)
    bench.submit(prepare("next", [10] * 5))
    bench.finish()
    end = bench.end("next")
    assert isinstance(end, Finished)
    assert end.usage.cached_tokens == 0


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_deadline_ends_a_request_in_every_phase(steps: int) -> None:
    bench = Bench()
    bench.submit(prepare("late", [10, 11], max_tokens=9, deadline_s=bench.now_s + 5))
    for _ in range(steps):
        bench.step()
    bench.now_s += 5
    bench.step()
    end = bench.end("late")
    assert isinstance(end, Failed)
    assert isinstance(end.error, DeadlineExceeded)
    bench.finish()


def test_two_requests_that_fill_the_feature_memory_alone_run_one_after_the_other() -> None:
    """Case 16: neither waits for the other for ever."""
    bench = Bench(n_rows=6)
    bench.submit(prepare("first", ["a", "d", 10]))
    bench.submit(prepare("second", ["b", "c", 11]))
    bench.finish()
    assert isinstance(bench.end("first"), Finished)
    assert isinstance(bench.end("second"), Finished)


def test_a_request_that_waits_for_room_is_not_overtaken() -> None:
    bench = Bench(n_rows=6)
    bench.submit(prepare("running", ["a", "d", 10]))
    bench.step()
    bench.submit(prepare("big", ["b", "c", 11]))
    bench.submit(prepare("small", [12]))
    bench.step()
    gauges = bench.scheduler.stats(row_bytes=1)
    assert (gauges.running, gauges.queue_depth) == (1, 2)
    bench.finish()
    assert all(isinstance(bench.end(name), Finished) for name in ("big", "small"))


def test_a_result_that_arrives_after_its_request_left_is_ignored() -> None:
    bench = Bench()
    bench.submit(prepare("gone", ["a", 10]))
    job = bench.step().loads[0]
    bench.scheduler.abort("gone")
    bench.left.add("gone")
    assert bench.step().dropped == (job,)
    bench.scheduler.loaded(job, "patches of a", now_s=bench.now_s)
    bench.submit(prepare("next", ["a", 10]))
    again = bench.step().loads[0]
    bench.scheduler.load_failed(job, FrameEvicted("of the old job"))
    bench.load(again)
    bench.finish()
    assert isinstance(bench.end("next"), Finished)


def test_the_stages_of_a_request_add_up_to_no_more_than_its_time() -> None:
    bench = Bench()
    bench.submit(prepare("q", ["a", 10, 11, "c", 12]))
    bench.finish()
    end = bench.end("q")
    assert isinstance(end, Finished)
    t = end.timings
    stages = t.queue_ms + t.preprocess_ms + t.encode_ms + t.prefill_ms + t.decode_ms
    assert 0 < t.first_token_ms <= t.total_ms
    assert stages <= t.total_ms + 1e-6
