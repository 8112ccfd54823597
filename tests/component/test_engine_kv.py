"""KV memory: every way to attend gives what attention over the whole sequence gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from liveedge.engine.compute.kv import KvMemory, KvShape, PaddedTokens, RowTokens
from liveedge.engine.decide.slots import Copy

N_HEADS, N_KV, WIDTH, MAX_LEN = 4, 2, 8, 24
CPU = torch.device("cpu")


def memory() -> KvMemory:
    shape = KvShape(n_layers=2, n_slots=5, n_kv_heads=N_KV, max_len=MAX_LEN, head_dim=WIDTH)
    return KvMemory(shape, prefill_chunk=8, device=CPU, dtype=torch.float32)


class Whole:
    """A sequence with all its queries, keys and values known."""

    def __init__(self, seed: int, n_tokens: int = MAX_LEN) -> None:
        g = torch.Generator().manual_seed(seed)
        self.q = torch.randn(1, N_HEADS, n_tokens, WIDTH, generator=g)
        self.k = torch.randn(1, N_KV, n_tokens, WIDTH, generator=g)
        self.v = torch.randn(1, N_KV, n_tokens, WIDTH, generator=g)
        self.expected = scaled_dot_product_attention(
            self.q, self.k, self.v, is_causal=True, enable_gqa=True
        )

    def piece(self, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.q[:, :, start:stop], self.k[:, :, start:stop], self.v[:, :, start:stop]


def fill(kv: KvMemory, slot: int, whole: Whole, n_tokens: int) -> None:
    start = 0
    while start < n_tokens:
        n = min(8, n_tokens - start)
        attend = kv.piece(slot=slot, start=start, n_tokens=n)
        for layer in range(2):
            attend(layer, *whole.piece(start, start + n))
        start += n


@pytest.mark.parametrize("cuts", [(8, 16, 24), (1, 2, 9, 17, 24), (5, 6, 13)])
def test_pieces_of_any_size_equal_the_whole(cuts: tuple[int, ...]) -> None:
    kv, whole = memory(), Whole(1)
    start = 0
    for stop in cuts:
        attend = kv.piece(slot=3, start=start, n_tokens=stop - start)
        for layer in range(2):
            found = attend(layer, *whole.piece(start, stop))
            torch.testing.assert_close(found, whole.expected[:, :, start:stop])
        start = stop


def test_packed_pieces_equal_each_sequence_alone() -> None:
    kv = memory()
    wholes = [Whole(seed) for seed in range(3)]
    starts, counts, slots = (0, 5, 8), (8, 1, 6), (4, 0, 2)
    for slot, whole, start in zip(slots, wholes, starts, strict=True):
        fill(kv, slot, whole, start)
    attend = kv.pieces(list(zip(slots, starts, counts, strict=True)))
    new = [w.piece(start, start + n) for w, start, n in zip(wholes, starts, counts, strict=True)]
    q, k, v = (torch.cat(parts, 2) for parts in zip(*new, strict=True))
    expected = [
        w.expected[:, :, start : start + n]
        for w, start, n in zip(wholes, starts, counts, strict=True)
    ]
    for layer in range(2):
        torch.testing.assert_close(attend(layer, q, k, v), torch.cat(expected, 2))


@pytest.mark.parametrize("kind", [RowTokens, PaddedTokens])
@pytest.mark.parametrize("slots", [(2,), (0, 1, 2), (1, 3), (0, 2, 3, 4)])
def test_tokens_of_many_slots_equal_each_sequence_alone(
    kind: type[RowTokens] | type[PaddedTokens], slots: tuple[int, ...]
) -> None:
    kv = memory()
    lengths = [3 + 5 * n for n in range(len(slots))]
    wholes = [Whole(seed) for seed in range(len(slots))]
    for slot, whole, length in zip(slots, wholes, lengths, strict=True):
        fill(kv, slot, whole, length)
    extra = {"places": torch.arange(MAX_LEN)} if kind is PaddedTokens else {}
    attend = kind(kv, slots=slots, lengths=lengths, **extra)
    new = [w.piece(n, n + 1) for w, n in zip(wholes, lengths, strict=True)]
    q, k, v = (torch.cat(parts) for parts in zip(*new, strict=True))
    for layer in range(2):
        found = attend(layer, q, k, v)
        for row, (whole, length) in enumerate(zip(wholes, lengths, strict=True)):
            torch.testing.assert_close(found[row], whole.expected[0, :, length : length + 1])


def test_slots_of_similar_length_side_by_side_go_in_one_call_and_others_row_by_row() -> None:
    kv = memory()
    assert isinstance(kv.tokens(slots=[1, 2], lengths=[10, 12]), PaddedTokens)
    assert isinstance(kv.tokens(slots=[1, 2], lengths=[2, 20]), RowTokens)
    assert isinstance(kv.tokens(slots=[0, 4], lengths=[10, 10]), RowTokens)
    assert isinstance(kv.tokens(slots=[1], lengths=[10]), RowTokens)


def test_a_copied_prefix_continues_like_the_original_and_leaves_it_alone() -> None:
    kv, whole, other = memory(), Whole(1), Whole(2)
    fill(kv, 0, whole, 12)
    fill(kv, 4, other, 20)
    kv.copy(Copy(0, 4, 10))
    attend = kv.piece(slot=4, start=10, n_tokens=2)
    found = attend(1, *whole.piece(10, 12))
    torch.testing.assert_close(found, whole.expected[:, :, 10:12])
    attend = kv.piece(slot=0, start=12, n_tokens=1)
    torch.testing.assert_close(attend(1, *whole.piece(12, 13)), whole.expected[:, :, 12:13])
