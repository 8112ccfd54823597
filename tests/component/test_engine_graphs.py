"""The decode step over static buffers gives what the ordinary one gives, and harms nobody's memory.

Recording needs a CUDA device (`tests/gpu`); what is recorded runs here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from liveedge.engine.compute.graphs import (
    MAX_GRAPHS,
    SPARE_PLACES,
    USES,
    DecodeGraphs,
    Replay,
    Shape,
    Shapes,
    StaticDecode,
)
from liveedge.engine.compute.kv import KvMemory, KvShape
from liveedge.engine.compute.sampler import best_tokens
from liveedge.engine.decide.plan import DecodeBatch
from liveedge.models.qwen3_vl.config import TextConfig
from liveedge.models.qwen3_vl.text import TextModel

CPU = torch.device("cpu")
N_SLOTS, MAX_LEN = 6, 40
CONFIG = TextConfig(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    n_layers=3,
    n_heads=4,
    n_kv_heads=2,
    head_dim=8,
    rope_theta=1e4,
    mrope_section=(2, 1, 1),
    max_position=64,
    init_std=0.2,
)


@pytest.fixture(scope="module")
def text() -> TextModel:
    torch.manual_seed(3)
    return TextModel(CONFIG).requires_grad_(requires_grad=False).eval()


def memory(spare_places: int = SPARE_PLACES) -> KvMemory:
    """Every place holds something, as after hours of use."""
    shape = KvShape(
        n_layers=CONFIG.n_layers,
        n_slots=N_SLOTS,
        n_kv_heads=CONFIG.n_kv_heads,
        max_len=MAX_LEN,
        head_dim=CONFIG.head_dim,
        spare_places=spare_places,
    )
    kv = KvMemory(shape, prefill_chunk=8, device=CPU, dtype=torch.float32)
    generator = torch.Generator().manual_seed(11)
    for held in (kv.keys, kv.values):
        held.copy_(torch.randn(held.shape, generator=generator))
    return kv


def batch(seed: int, n: int) -> DecodeBatch:
    random = np.random.default_rng(seed)
    lengths = random.integers(1, MAX_LEN, n)
    return DecodeBatch(
        request_ids=tuple(map(str, range(n))),
        slots=np.sort(random.permutation(N_SLOTS)[:n]),
        lengths=lengths,
        tokens=random.integers(0, CONFIG.vocab_size, n),
        positions=lengths + random.integers(-5, 5, n).clip(-lengths),
    )


@torch.inference_mode()
def ordinary(text: TextModel, kv: KvMemory, step: DecodeBatch) -> Tensor:
    """Logits as the runner computes them without graphs."""
    attend = kv.tokens(slots=step.slots.tolist(), lengths=step.lengths.tolist())
    positions = torch.from_numpy(step.positions)[None, :, None].expand(3, -1, 1)
    hidden = text(text.embed(torch.from_numpy(step.tokens)[:, None]), positions, attend)
    return text.logits(hidden[:, 0])


class EagerRecorder:
    """Remembers what it was given, and replays by running it."""

    def __init__(self, error: RuntimeError | None = None) -> None:
        self.n_recorded = 0
        self._error = error

    def record(self, body: Callable[[], None]) -> Replay:
        self.n_recorded += 1
        if self._error is not None:
            raise self._error
        return body


def graphs(
    text: TextModel, kv: KvMemory, recorder: EagerRecorder, max_graphs: int = MAX_GRAPHS
) -> DecodeGraphs:
    return DecodeGraphs(
        StaticDecode(text, kv, n_rows=N_SLOTS),
        shapes=Shapes(n_rows=N_SLOTS, max_len=MAX_LEN),
        recorder=recorder,
        max_graphs=max_graphs,
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("n", [1, 2, 3, 5, 6])
def test_the_static_step_equals_the_ordinary_one(text: TextModel, seed: int, n: int) -> None:
    step = batch(seed, n)
    ours, theirs = memory(), memory()
    static = StaticDecode(text, ours, n_rows=N_SLOTS)
    shape = Shapes(n_rows=N_SLOTS, max_len=MAX_LEN).fit(
        n_rows=n, n_seen=int(step.lengths.max()) + 1
    )
    with torch.inference_mode():
        static.fill(step, shape.n_rows)
        static.body(shape)
    expected = ordinary(text, theirs, step)
    torch.testing.assert_close(static.logits[:n], expected, atol=1e-5, rtol=1e-5)
    assert static.read(n) == best_tokens(expected)
    places = slice(0, MAX_LEN)  # all but the spare one
    torch.testing.assert_close(ours.keys[:, :, :, places], theirs.keys[:, :, :, places])
    torch.testing.assert_close(ours.values[:, :, :, places], theirs.values[:, :, :, places])


def test_rows_that_fill_up_a_batch_change_no_place_of_any_slot(text: TextModel) -> None:
    kv = memory()
    before = kv.keys.clone(), kv.values.clone()
    static = StaticDecode(text, kv, n_rows=N_SLOTS)
    step = batch(1, 1)
    with torch.inference_mode():
        static.fill(step, 4)
        static.body(Shape(4, MAX_LEN))
    slot, length = int(step.slots[0]), int(step.lengths[0])
    for then, now in zip(before, (kv.keys, kv.values), strict=True):
        changed = {tuple(place) for place in (then != now).nonzero()[:, [1, 3]].tolist()}
        assert changed == {(slot, length), (0, MAX_LEN)}


def test_running_the_body_twice_is_running_it_once(text: TextModel) -> None:
    kv = memory()
    static = StaticDecode(text, kv, n_rows=N_SLOTS)
    shape = Shape(4, MAX_LEN)
    with torch.inference_mode():
        static.fill(batch(2, 3), 4)
        static.body(shape)
        once = static.logits.clone(), kv.keys.clone()
        static.body(shape)
    assert torch.equal(once[0], static.logits)
    assert torch.equal(once[1], kv.keys)


def test_a_row_without_usable_scores_says_so_and_spoils_no_other(text: TextModel) -> None:
    kv, clean = memory(), memory()
    step = batch(3, 2)
    kv.keys[0, int(step.slots[0]), 0, 0] = float("nan")
    static = StaticDecode(text, kv, n_rows=N_SLOTS)
    with torch.inference_mode():
        static.fill(step, 4)
        static.body(Shape(4, MAX_LEN))
    assert static.read(2) == [-1, best_tokens(ordinary(text, clean, step))[1]]


def test_memory_without_a_spare_place_is_refused(text: TextModel) -> None:
    with pytest.raises(ValueError, match="40 places and none behind"):
        StaticDecode(text, memory(spare_places=0), n_rows=N_SLOTS)


def test_shapes_are_rounded_up_and_end_at_the_limits() -> None:
    shapes = Shapes(n_rows=6, max_len=2500)
    assert shapes.rows == (1, 2, 4, 6)
    assert shapes.seen == (512, 768, 1024, 1536, 2048, 2500)
    assert shapes.fit(n_rows=1, n_seen=1) == Shape(1, 512)
    assert shapes.fit(n_rows=3, n_seen=513) == Shape(4, 768)
    assert shapes.fit(n_rows=6, n_seen=2500) == Shape(6, 2500)


def test_a_shape_is_recorded_when_it_was_used_often_enough(text: TextModel) -> None:
    recorder = EagerRecorder()
    found = graphs(text, memory(), recorder)
    with torch.inference_mode():
        for _ in range(USES - 1):
            found.step(batch(4, 2))
        assert (recorder.n_recorded, found.n_graphs, found.n_eager) == (0, 0, USES - 1)
        found.step(batch(5, 2))
        found.step(batch(6, 2))
    assert (recorder.n_recorded, found.n_graphs, found.n_replayed) == (1, 1, 2)


def test_what_a_step_gives_is_the_same_before_and_after_recording(text: TextModel) -> None:
    found = graphs(text, memory(), EagerRecorder())
    step = batch(7, 3)
    with torch.inference_mode():
        results = [found.step(step) for _ in range(USES + 2)]
        logits = results[-1][0].clone()
    assert len({tuple(best) for _, best in results}) == 1
    torch.testing.assert_close(logits, ordinary(text, memory(), step), atol=1e-5, rtol=1e-5)


def test_beyond_the_bound_and_where_recording_fails_steps_run_eagerly(text: TextModel) -> None:
    failing = EagerRecorder(RuntimeError("out of memory"))
    for recorder, most in ((failing, MAX_GRAPHS), (EagerRecorder(), 0)):
        found = graphs(text, memory(), recorder, max_graphs=most)
        step = batch(8, 2)
        expected = best_tokens(ordinary(text, memory(), step))
        with torch.inference_mode():
            assert all(found.step(step)[1] == expected for _ in range(2 * USES))
        assert (found.n_graphs, found.n_replayed) == (0, 0)
        assert found.n_eager == 2 * USES
    assert failing.n_recorded == 1  # a shape that failed is never tried again
