"""The scheduler against a device that remembers what lies where, in any order of events."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from liveedge.core.errors import DeadlineExceeded, FrameEvicted
from liveedge.engine.decide.limits import BYTES_PER_PIXEL
from liveedge.engine.decide.verify import Verifier
from liveedge.engine.request import Delta, Failed, Finished
from tests.scheduling import EOS, LIMITS, N_ROWS, SIZES, Bench, prepare

TEXT = st.integers(10, 12)
PIECES = st.lists(st.one_of(TEXT, TEXT, st.sampled_from(sorted(SIZES))), min_size=1, max_size=9)


class SchedulerMachine(RuleBasedStateMachine):
    """Requests come, leave, fail and run late; frames arrive in any order or not at all."""

    def __init__(self) -> None:
        super().__init__()
        verifier = Verifier(share=0.5, chance=Random(1).random)
        self.bench = Bench(verifier=verifier)

    @rule(
        pieces=PIECES,
        max_tokens=st.integers(1, 4),
        batch=st.booleans(),
        wait_s=st.none() | st.integers(0, 5),
        fresh_s=st.none() | st.integers(0, 5),
    )
    def submit(
        self,
        pieces: list[int | str],
        max_tokens: int,
        batch: bool,
        wait_s: int | None,
        fresh_s: int | None,
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
                fresh_until_s=None if fresh_s is None else self.bench.now_s + fresh_s,
            )
        )

    @rule(
        pieces=PIECES,
        window_id=st.sampled_from(["one", "two", "three"]),
        wait_s=st.none() | st.none() | st.integers(0, 5),
    )
    def warm(self, pieces: list[int | str], window_id: str, wait_s: int | None) -> None:
        if sum(SIZES[key] for key in {p for p in pieces if isinstance(p, str)}) > N_ROWS:
            return
        deadline_s = None if wait_s is None else self.bench.now_s + wait_s
        name = f"request-{len(self.bench.told)}"
        self.bench.warm(window_id, prepare(name, pieces, deadline_s=deadline_s))

    @rule(window_id=st.sampled_from(["one", "two", "three"]))
    def drop_window(self, window_id: str) -> None:
        self.bench.drop_window(window_id)

    @precondition(lambda self: self.bench.told)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.bench.abort(data.draw(st.sampled_from(sorted(self.bench.told))))

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

    @invariant()
    def a_warm_window_holds_what_was_told(self) -> None:
        assert set(self.bench.slots.windows) == set(self.bench.shown)
        for window_id, slot in self.bench.slots.windows.items():
            shown = self.bench.shown[window_id]
            assert self.bench.slots.content(slot).tolist()[: len(shown)] == shown
            assert self.bench.device.slots[slot][: len(shown)] == shown

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
    for _ in range(4):
        bench.step({"next": 1})
    assert bench.text("next").startswith("b")
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
    bench.submit(prepare("running", [10], max_tokens=30))
    bench.step()
    bench.submit(prepare("long", [11] * 20))
    for n in range(2, 16):
        bench.step()
        assert len(bench.told["running"]) == n
    assert bench.prefilled["long"] == 20
    assert bench.text("long")


def test_interactive_requests_are_prefilled_before_batch_requests() -> None:
    bench = Bench()
    bench.submit(prepare("batch", [11] * 12, batch=True))
    bench.submit(prepare("interactive", [12] * 12))
    assert [chunk.request_id for chunk in bench.step().prefills] == ["interactive"]


def test_a_batch_request_gets_a_slot_under_a_flood_of_interactive_ones() -> None:
    bench = Bench(n_slots=1)
    bench.submit(prepare("batch", [11, 12], batch=True, max_tokens=1))
    for n in range(30):
        bench.submit(prepare(f"q{n}", [10 + n % 9, 13], max_tokens=1))
    while "batch" in bench.waiting():
        bench.step()
    assert len(bench.waiting()) == 27  # one in four
    bench.finish()


@pytest.mark.parametrize("n_slots", [1, 3])
def test_many_requests_of_one_tenant_do_not_stand_before_the_first_of_another(n_slots: int) -> None:
    """The first token of a prompt tells whose it is."""
    bench = Bench(n_slots=n_slots)
    for n in range(12):
        bench.submit(prepare(f"a{n}", [1, 10 + n], max_tokens=1))
    bench.submit(prepare("b0", [2, 10], max_tokens=1))
    bench.submit(prepare("b1", [2, 11], max_tokens=1))
    bench.submit(prepare("c0", [3, 10], max_tokens=1))
    order: list[str] = []
    while bench.waiting():
        before = bench.waiting()
        bench.step()
        order += sorted(before - bench.waiting(), key=lambda one: int(one[1:]))
    assert max(map(order.index, ("b0", "c0"))) <= 2 * n_slots
    assert order.index("b1") <= 3 * n_slots + 2
    assert [one for one in order if one[0] == "a"] == [f"a{n}" for n in range(12)]
    bench.finish()


def test_groups_of_equal_size_are_encoded_together_whoever_asked_for_them() -> None:
    bench = Bench()
    bench.submit(prepare("first", ["a", 10]))
    bench.submit(prepare("second", ["b", 10]))
    bench.step()
    bench.load_all()
    plan = bench.step()
    assert plan.encode is not None
    assert plan.encode.keys == ("a", "b")


def test_groups_of_other_sizes_fill_the_room_that_is_left() -> None:
    """Equal sizes first, and together; what does not fit waits."""
    limits = replace(LIMITS, encode_pixels=9, patch_bytes=99 * BYTES_PER_PIXEL, max_loading=9)
    bench = Bench(limits=limits, n_rows=20)
    bench.submit(prepare("first", ["a", "c", 10]))
    bench.submit(prepare("second", ["d", "b", 10]))
    bench.step()
    bench.load_all()
    plan = bench.step()
    assert plan.encode is not None
    assert plan.encode.keys == ("a", "b", "c")
    assert plan.encode.sizes == ((1, 2), (1, 2), (1, 3))
    bench.finish()


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
