"""The native text model computes what the torch modules compute, for any shape and any packing."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from liveedge.engine.compute.kv import KvMemory, KvShape
from liveedge.models.qwen3_vl.config import TextConfig
from liveedge.models.qwen3_vl.native_text import Memory, NativeText, Piece, Room
from liveedge.models.qwen3_vl.text import Deepstack, TextModel
from tests.compiler import built_library

N_SLOTS, MAX_LEN = 5, 75
NONE = np.zeros(0, dtype=np.int64)


@pytest.fixture(scope="module")
def lib() -> ctypes.CDLL:
    return built_library()


def text_config(**changes: object) -> TextConfig:
    shape: dict[str, object] = {
        "vocab_size": 101,
        "hidden_size": 48,
        "intermediate_size": 56,
        "n_layers": 3,
        "n_heads": 6,
        "n_kv_heads": 2,
        "head_dim": 16,
        "rope_theta": 10_000.0,
        "mrope_section": (4, 2, 2),
        "max_position": MAX_LEN,
    }
    return TextConfig(**(shape | changes))  # type: ignore[arg-type]


# Every size that the kernels treat in a way of its own: tails of 8, 4 and 32, one head, wide heads.
SHAPES: dict[str, dict[str, Any]] = {
    "as the shipped model": {"head_dim": 32, "mrope_section": (6, 5, 5), "tied": True},
    "with biases": {"attention_bias": True},
    "gelu by tanh": {"activation": "gelu_pytorch_tanh"},
    "gelu": {"activation": "gelu"},
    "one layer": {"n_layers": 1},
    "no multiple of anything": {
        "vocab_size": 37,
        "hidden_size": 21,
        "intermediate_size": 19,
        "n_heads": 3,
        "n_kv_heads": 1,
        "head_dim": 10,
        "mrope_section": (1, 2, 2),
        "attention_bias": True,
    },
    "one key head for many": {"n_heads": 16, "n_kv_heads": 1, "head_dim": 8, "mrope_section": (4, 0, 0)},
    "no grouped heads": {"n_heads": 2, "n_kv_heads": 2, "head_dim": 72, "mrope_section": (12, 12, 12)},
}  # fmt: skip


@dataclass
class Both:
    """One model, its torch memory, and the same memory as the native side sees it."""

    model: TextModel
    torch_kv: KvMemory
    native_kv: KvMemory
    features: Tensor
    native: NativeText
    n_deepstack: int

    def torch_side(self, pieces: Sequence[Piece]) -> Tensor:
        """Hidden states [rows, D], a piece after the other."""
        with torch.inference_mode():
            return torch.cat([self._one(piece) for piece in pieces])

    def _one(self, piece: Piece) -> Tensor:
        embeds = self.model.embed(torch.from_numpy(piece.ids)[None])
        deepstack = None
        if len(piece.visual_index):
            index = torch.from_numpy(piece.visual_index)
            parts = self.features[torch.from_numpy(piece.visual_rows)].chunk(
                1 + self.n_deepstack, dim=-1
            )
            embeds = embeds.index_copy(1, index, parts[0][None])
            deepstack = Deepstack(index, parts[1:])
        attend = self.torch_kv.piece(slot=piece.slot, start=piece.start, n_tokens=len(piece.ids))
        positions = torch.from_numpy(piece.positions)[:, None]
        return self.model(embeds, positions, attend, deepstack)[0]

    def check(self, pieces: Sequence[Piece], asked: Sequence[int]) -> None:
        """Both sides compute these pieces and agree in what they give and in what they keep."""
        best = self.native.prefill(pieces, asked)
        hidden = self.torch_side(pieces)[list(asked)]
        with torch.inference_mode():
            logits = self.model.logits(hidden)
        assert_near(self.native.hidden[: len(asked)], hidden)
        assert_near(self.native.logits[: len(asked)], logits)
        assert best == self.native.logits[: len(asked)].argmax(-1).tolist()
        self.check_memory()

    def check_memory(self) -> None:
        assert_near(self.native_kv.keys, self.torch_kv.keys)
        assert_near(self.native_kv.values, self.torch_kv.values)


def assert_near(found: Tensor, expected: Tensor) -> None:
    """Equal to 1e-5 of the largest value."""
    if expected.numel():
        difference, scale = (found - expected).abs().max(), expected.abs().max()
        assert difference <= 1e-5 * scale, (float(difference), float(scale))


def both(
    lib: ctypes.CDLL,
    config: TextConfig,
    *,
    seed: int = 0,
    n_deepstack: int = 0,
    threads: int = 1,
    plain_only: bool = False,
) -> Both:
    torch.manual_seed(seed)
    model = TextModel(config).eval().requires_grad_(requires_grad=False)
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            parameter.copy_(torch.rand_like(parameter) + 0.5)
        else:
            parameter.copy_(torch.randn_like(parameter) * parameter.shape[-1] ** -0.5)
    shape = KvShape(
        n_layers=config.n_layers,
        n_slots=N_SLOTS,
        n_kv_heads=config.n_kv_heads,
        max_len=MAX_LEN,
        head_dim=config.head_dim,
    )
    ours, theirs = (
        KvMemory(shape, prefill_chunk=MAX_LEN, device=torch.device("cpu"), dtype=torch.float32)
        for _ in range(2)
    )
    features = torch.randn(30, (1 + n_deepstack) * config.hidden_size)
    native = NativeText.of(
        model,
        Memory(keys=ours.keys, values=ours.values, features=features),
        room=Room(rows=200, asked=50, threads=threads, plain_only=plain_only),
        lib=lib,
    )
    assert native is not None
    return Both(model, theirs, ours, features, native, n_deepstack)


def piece(
    rng: np.random.Generator,
    config: TextConfig,
    *,
    slot: int,
    start: int,
    n: int,
    n_visual: int = 0,
) -> Piece:
    # Three axes that differ, as in a picture.
    positions = np.stack([np.arange(start, start + n)] * 3) // np.array([[1], [2], [3]])
    return Piece(
        slot,
        start,
        rng.integers(0, config.vocab_size, n),
        positions,
        np.sort(rng.choice(n, n_visual, replace=False)) if n_visual else NONE,
        rng.integers(0, 30, n_visual) if n_visual else NONE,
    )


@pytest.mark.parametrize("plain_only", [False, True], ids=["fast", "plain"])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_packed_pieces_equal_torch_whatever_the_shape(
    lib: ctypes.CDLL, shape: str, threads: int, plain_only: bool
) -> None:
    config = text_config(**SHAPES[shape])
    sides = both(lib, config, threads=threads, plain_only=plain_only)
    rng = np.random.default_rng(1)
    first = [
        piece(rng, config, slot=slot, start=0, n=n)
        for slot, n in ((3, 17), (0, 1), (1, 40), (4, 2))
    ]
    sides.check(first, [16, 17, 20, 57, 59])
    second = [
        piece(rng, config, slot=slot, start=start, n=n)
        for slot, start, n in ((1, 40, 1), (0, 1, 30), (3, 17, 3))
    ]
    sides.check(second, [0, 30, 31, 32, 33])


@pytest.mark.parametrize("seed", range(12))
def test_random_batches_equal_torch(lib: ctypes.CDLL, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_deepstack = int(rng.integers(0, 4))
    width = 2 * int(rng.integers(1, 20))
    config = text_config(
        hidden_size=int(rng.integers(8, 80)),
        intermediate_size=int(rng.integers(8, 90)),
        n_kv_heads=(n_kv := int(rng.integers(1, 4))),
        n_heads=n_kv * int(rng.integers(1, 6)),
        head_dim=width,
        mrope_section=(width // 2, 0, 0) if width < 8 else (width // 2 - 2, 1, 1),
        attention_bias=bool(rng.integers(0, 2)),
    )
    sides = both(lib, config, seed=seed, n_deepstack=n_deepstack, threads=1 + seed % 2)
    lengths = [0] * N_SLOTS
    for _ in range(4):
        slots = rng.permutation(N_SLOTS)[: rng.integers(1, N_SLOTS + 1)]
        pieces = []
        for slot in slots.tolist():
            n = int(rng.integers(1, 18))
            n_visual = int(rng.integers(0, n + 1))
            pieces.append(
                piece(rng, config, slot=slot, start=lengths[slot], n=n, n_visual=n_visual)
            )
            lengths[slot] += n
        n_rows = sum(len(p.ids) for p in pieces)
        n_asked = int(rng.integers(0, min(n_rows, 50) + 1))
        sides.check(pieces, sorted(rng.permutation(n_rows)[:n_asked].tolist()))


@pytest.mark.parametrize("n_deepstack", [1, 3])
@pytest.mark.parametrize("asked", [[], [4], [9], list(range(10))])
def test_visual_features_enter_where_torch_adds_them(
    lib: ctypes.CDLL, n_deepstack: int, asked: list[int]
) -> None:
    # Three of three layers with features: the last one's are added to the asked rows alone.
    config = text_config()
    sides = both(lib, config, n_deepstack=n_deepstack)
    rng = np.random.default_rng(2)
    sides.check([piece(rng, config, slot=2, start=0, n=10, n_visual=6)], asked)


@pytest.mark.parametrize("threads", [1, 2])
def test_decoding_equals_torch_for_sequences_of_any_length(lib: ctypes.CDLL, threads: int) -> None:
    config = text_config(tied=True)
    sides = both(lib, config, threads=threads)
    rng = np.random.default_rng(3)
    lengths = np.array([1, 33, 8, 70])
    slots = np.array([0, 1, 3, 4])
    for slot, length in zip(slots.tolist(), lengths.tolist(), strict=True):
        sides.check([piece(rng, config, slot=slot, start=0, n=length)], [length - 1])
    for _ in range(5):
        tokens, positions = rng.integers(0, config.vocab_size, 4), lengths - rng.integers(0, 2, 4)
        best = sides.native.decode(tokens=tokens, slots=slots, lengths=lengths, positions=positions)
        attend = sides.torch_kv.tokens(slots=slots.tolist(), lengths=lengths.tolist())
        with torch.inference_mode():
            hidden = sides.model(
                sides.model.embed(torch.from_numpy(tokens)[:, None]),
                torch.from_numpy(positions)[None, :, None].expand(3, -1, 1),
                attend,
            )[:, 0]
            logits = sides.model.logits(hidden)
        assert_near(sides.native.logits[:4], logits)
        assert best == sides.native.logits[:4].argmax(-1).tolist()
        sides.check_memory()
        lengths = lengths + 1


def test_the_number_of_threads_changes_no_bit(lib: ctypes.CDLL) -> None:
    config = text_config()
    found = []
    for threads in (1, 2, 3):
        sides = both(lib, config, threads=threads)
        rng = np.random.default_rng(4)
        pieces = [piece(rng, config, slot=slot, start=0, n=20) for slot in range(3)]
        sides.native.prefill(pieces, [19, 39, 59])
        found.append((sides.native.logits[:3].clone(), sides.native_kv.keys.clone()))
    for logits, keys in found[1:]:
        assert torch.equal(logits, found[0][0])
        assert torch.equal(keys, found[0][1])


def test_a_row_does_not_depend_on_what_it_is_packed_with(lib: ctypes.CDLL) -> None:
    config = text_config()
    rng = np.random.default_rng(5)
    pieces = [piece(rng, config, slot=slot, start=0, n=11 + slot) for slot in range(3)]
    together, alone = both(lib, config), both(lib, config)
    together.native.prefill(pieces, [10, 22, 35])
    for number, one in enumerate(pieces):
        alone.native.prefill([one], [len(one.ids) - 1])
        assert_near(alone.native.logits[:1], together.native.logits[number : number + 1])


def test_one_spoilt_sequence_says_so_and_leaves_the_others_alone(lib: ctypes.CDLL) -> None:
    config = text_config()
    sides = both(lib, config)
    rng = np.random.default_rng(6)
    pieces = [piece(rng, config, slot=slot, start=0, n=5) for slot in range(3)]
    clean = sides.native.prefill(pieces, [4, 9, 14])
    sides.native_kv.keys[0, 1, 0, 2, 3] = float("nan")
    batch = np.arange(3)
    found = sides.native.decode(
        tokens=np.array(clean), slots=batch, lengths=np.full(3, 5), positions=np.full(3, 5)
    )
    assert found[1] == -1
    assert found[0] >= 0
    assert found[2] >= 0
    assert sides.native.logits[[0, 2]].isfinite().all()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_head_with_one_unusable_weight_chooses_nothing(lib: ctypes.CDLL, value: float) -> None:
    config = text_config()
    sides = both(lib, config)
    assert sides.model.lm_head is not None
    sides.model.lm_head.weight[100, 0] = value  # the last token: behind the last whole vector
    rng = np.random.default_rng(7)
    best = sides.native.prefill([piece(rng, config, slot=0, start=0, n=3)], [0, 1, 2])
    positive = (sides.native.logits[:3, 100] != -float("inf")).tolist()
    assert [token == -1 for token in best] == positive
    assert any(positive)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"slot": N_SLOTS}, "a slot"),
        ({"slot": -1}, "a slot"),
        ({"start": MAX_LEN - 2}, "a place in a slot"),
        ({"ids": np.array([0, 101, 3])}, "a token"),
        ({"positions": np.full((3, 3), MAX_LEN)}, "a rotary position"),
        ({"positions": np.full((3, 3), -1)}, "a rotary position"),
        ({"visual_index": np.array([1]), "visual_rows": np.array([30])}, "a row of the features"),
    ],
)
def test_what_is_out_of_range_is_refused_before_anything_is_written(
    lib: ctypes.CDLL, changes: dict[str, object], named: str
) -> None:
    sides = both(lib, text_config())
    good: dict[str, object] = {
        "slot": 0,
        "start": 0,
        "ids": np.arange(3),
        "positions": np.zeros((3, 3), dtype=np.int64),
        "visual_index": NONE,
        "visual_rows": NONE,
    }
    with pytest.raises(ValueError, match=named):
        sides.native.prefill([Piece(**(good | changes))], [])  # type: ignore[arg-type]
    assert not sides.native_kv.keys.any()
    assert not sides.native_kv.values.any()


def test_more_rows_than_there_is_room_for_are_refused(lib: ctypes.CDLL) -> None:
    config = text_config()
    sides = both(lib, config)
    rng = np.random.default_rng(8)
    pieces = [piece(rng, config, slot=slot, start=0, n=70) for slot in range(3)]
    with pytest.raises(ValueError, match="210 rows or more, takes 200"):
        sides.native.prefill(pieces, [])
    with pytest.raises(ValueError, match="the order of the asked rows"):
        sides.native.prefill(pieces[:1], [5, 5])
    with pytest.raises(ValueError, match="the number of rows or of asked rows"):
        sides.native.prefill(pieces[:1], list(range(51)))


def test_models_and_memories_of_another_kind_are_left_to_torch(lib: ctypes.CDLL) -> None:
    model = TextModel(text_config())
    room = Room(rows=8, asked=8, threads=1)
    keys = torch.zeros(3, 2, 2, 8, 16)
    good = Memory(keys=keys, values=keys.clone(), features=torch.zeros(4, 48))
    half = Memory(keys=keys.half(), values=keys.half(), features=torch.zeros(4, 48))
    cut = Memory(keys=keys[:, :, :, ::2], values=keys.clone(), features=torch.zeros(4, 48))
    assert NativeText.of(model, good, room=room, lib=lib) is not None
    assert NativeText.of(model, good, room=room, lib=None) is None
    assert NativeText.of(model, half, room=room, lib=lib) is None
    assert NativeText.of(model, cut, room=room, lib=lib) is None
    assert NativeText.of(TextModel(text_config()).bfloat16(), good, room=room, lib=lib) is None


def n_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_closing_releases_the_threads_and_ends_all_use(lib: ctypes.CDLL) -> None:
    before = n_threads()
    sides = both(lib, text_config(), threads=4)
    assert n_threads() == before + 3
    sides.native.close()
    sides.native.close()  # once is enough, twice does no harm
    assert n_threads() == before
    with pytest.raises(RuntimeError, match="closed"):
        sides.native.prefill([], [])


def test_calls_from_many_threads_take_turns(lib: ctypes.CDLL) -> None:
    config = text_config()
    sides = both(lib, config, threads=3)
    rng = np.random.default_rng(9)
    one = piece(rng, config, slot=0, start=0, n=12)
    expected = sides.native.prefill([one], [11])
    barrier = threading.Barrier(4)

    def work() -> list[list[int]]:
        barrier.wait()
        return [sides.native.prefill([one], [11]) for _ in range(200)]

    with ThreadPoolExecutor(4) as pool:
        found = [future.result(timeout=60) for future in [pool.submit(work) for _ in range(4)]]
    assert all(answer == expected for answers in found for answer in answers)
