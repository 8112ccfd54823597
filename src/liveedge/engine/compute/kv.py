"""KV memory and the ways to attend to it: prompt pieces, alone or packed, and one token per slot.

Allocated once; a slot is a contiguous piece [layers, heads, max_len, width]. `Attend` objects live
for one step: they write the new keys and values into their slots and attend to everything there.
Shapes    B sequences, T tokens, Hq / Hkv query / key heads, d head width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from liveedge.core.machine import physical_bytes
from liveedge.engine.compute.attention import attend_behind
from liveedge.engine.decide.slots import Copy

PADDING_WORTH = 1.5  # padded rows may cost this much more than exact ones before we go row by row


@dataclass(frozen=True, slots=True, kw_only=True)
class KvShape:
    """Dimensions of the memory, in the order in which it lies."""

    n_layers: int
    n_slots: int
    n_kv_heads: int
    max_len: int
    head_dim: int
    spare_places: int = 0  # behind the last place of each slot: see `graphs`


class KvMemory:
    """Keys and values of every slot. Used by the engine thread only."""

    def __init__(
        self, dims: KvShape, *, prefill_chunk: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        max_len = dims.max_len
        n_places = max_len + dims.spare_places
        shape = (dims.n_layers, dims.n_slots, dims.n_kv_heads, n_places, dims.head_dim)
        # Zeros, because masked attention multiplies what it does not see by zero: never NaN.
        self.keys = zeros(shape, device=device, dtype=dtype)
        self.values = zeros(shape, device=device, dtype=dtype)
        self.max_len = max_len
        # Row i of a piece that starts at s sees places 0..s+i: one band serves every start.
        columns = torch.arange(max_len + prefill_chunk, device=device)
        rows = torch.arange(prefill_chunk, device=device)
        self._band = columns[None, :] <= rows[:, None] + max_len
        self._places = torch.arange(max_len, device=device)

    def copy(self, copy: Copy) -> None:
        """Make the first tokens of the target slot those of the source slot."""
        for memory in (self.keys, self.values):
            source = memory[:, copy.source, :, : copy.n_tokens]
            memory[:, copy.target, :, : copy.n_tokens] = source

    def clear(self, slot: int) -> None:
        """Make it as it was at the start."""
        self.keys[:, slot].zero_()
        self.values[:, slot].zero_()

    def piece(self, *, slot: int, start: int, n_tokens: int) -> PieceAttend:
        """Attention of a prompt piece."""
        mask = None
        if start:
            first = self.max_len - start
            mask = self._band[:n_tokens, first : first + start + n_tokens]
        return PieceAttend(self, slot=slot, start=start, stop=start + n_tokens, mask=mask)

    def pieces(self, pieces: Sequence[tuple[int, int, int]]) -> PackedPieces:
        """Attention of prompt pieces side by side, each (slot, start, n_tokens), slots different."""
        return PackedPieces(
            [(self.piece(slot=slot, start=start, n_tokens=n), n) for slot, start, n in pieces]
        )

    def tokens(self, *, slots: Sequence[int], lengths: Sequence[int]) -> TokenAttend:
        """Attention of one new token per slot; `slots` rise."""
        if self._is_worth_padding(slots, lengths):
            return PaddedTokens(self, slots=slots, lengths=lengths, places=self._places)
        return RowTokens(self, slots=slots, lengths=lengths)

    def _is_worth_padding(self, slots: Sequence[int], lengths: Sequence[int]) -> bool:
        if self.keys.device.type != "cpu":
            return True
        span = slots[-1] - slots[0] + 1
        exact = sum(lengths) + len(lengths)
        return len(slots) > 1 and span * (max(lengths) + 1) <= PADDING_WORTH * exact


def zeros(shape: tuple[int, ...], *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeros whose pages are touched now: memory that is planned at the start is taken at the start,
    and does not grow as slots and caches fill (250 MB take about 0.1 s). More than the machine has
    is a MemoryError before anything is touched."""
    n_bytes = math.prod(shape) * dtype.itemsize
    if device.type == "cpu" and n_bytes > physical_bytes():
        raise MemoryError(f"{n_bytes} bytes asked for, the machine has {physical_bytes()}")
    return torch.empty(shape, device=device, dtype=dtype).zero_()


class PieceAttend:
    """A piece of one sequence, behind what its slot holds."""

    def __init__(
        self, memory: KvMemory, *, slot: int, start: int, stop: int, mask: Tensor | None
    ) -> None:
        self._keys, self._values = memory.keys[:, slot], memory.values[:, slot]
        self._start, self._stop = start, stop
        self._mask = mask

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [1, Hq, T, d], k and v [1, Hkv, T, d] -> [1, Hq, T, d]."""
        keys, values = self._keys[layer], self._values[layer]
        keys[:, self._start : self._stop] = k[0]
        values[:, self._start : self._stop] = v[0]
        seen = slice(0, self._stop)
        return attend_behind(q, keys[None, :, seen], values[None, :, seen], self._mask)


class PackedPieces:
    """Pieces of different sequences, one behind the other in one row of tokens."""

    def __init__(self, pieces: Sequence[tuple[PieceAttend, int]]) -> None:
        self._pieces = pieces

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [1, Hq, T, d], k and v [1, Hkv, T, d] -> [1, Hq, T, d], T of all pieces together."""
        out = []
        begin = 0
        for attend, n_tokens in self._pieces:
            own = slice(begin, begin + n_tokens)
            out.append(attend(layer, q[:, :, own], k[:, :, own], v[:, :, own]))
            begin += n_tokens
        return out[0] if len(out) == 1 else torch.cat(out, 2)


class RowTokens:
    """One new token per slot, a slot at a time: nothing is read that is not needed."""

    def __init__(self, memory: KvMemory, *, slots: Sequence[int], lengths: Sequence[int]) -> None:
        self._memory = memory
        self._rows = tuple(enumerate(zip(slots, lengths, strict=True)))

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, Hq, 1, d], k and v [B, Hkv, 1, d] -> [B, Hq, 1, d]."""
        keys, values = self._memory.keys[layer], self._memory.values[layer]
        n_kv_heads = k.shape[1]
        out = []
        for row, (slot, length) in self._rows:
            keys[slot, :, length] = k[row, :, 0]
            values[slot, :, length] = v[row, :, 0]
            # The queries of one key head stand in the place of tokens: no key is repeated.
            grouped = q[row].view(1, n_kv_heads, -1, q.shape[-1])
            seen = slice(0, length + 1)
            out.append(
                scaled_dot_product_attention(
                    grouped, keys[slot : slot + 1, :, seen], values[slot : slot + 1, :, seen]
                )
            )
        return torch.cat(out).view(q.shape)


class PaddedTokens:
    """One new token per slot, all slots of a range in one call, padded to the longest."""

    def __init__(
        self, memory: KvMemory, *, slots: Sequence[int], lengths: Sequence[int], places: Tensor
    ) -> None:
        first, last = slots[0], slots[-1] + 1
        device = places.device
        self._range = slice(first, last)
        self._memory = memory
        self._slots = torch.tensor(slots, device=device)
        self._lengths = torch.tensor(lengths, device=device)
        self._seen = max(lengths) + 1
        self._rows = None if last - first == len(slots) else self._slots - first
        limits = torch.zeros(last - first, dtype=torch.long, device=device)
        limits[self._slots - first] = self._lengths
        self._mask = (places[: self._seen] <= limits[:, None])[:, None, None]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, Hq, 1, d], k and v [B, Hkv, 1, d] -> [B, Hq, 1, d]."""
        keys, values = self._memory.keys[layer], self._memory.values[layer]
        keys[self._slots, :, self._lengths] = k[:, :, 0]
        values[self._slots, :, self._lengths] = v[:, :, 0]
        grouped = q.view(q.shape[0], k.shape[1], -1, q.shape[-1])
        if self._rows is not None:
            spread = grouped.new_zeros(len(self._mask), *grouped.shape[1:])
            grouped = spread.index_copy(0, self._rows, grouped)
        out = scaled_dot_product_attention(
            grouped,
            keys[self._range, :, : self._seen],
            values[self._range, :, : self._seen],
            attn_mask=self._mask,
        )
        return (out if self._rows is None else out[self._rows]).reshape(q.shape)


TokenAttend = RowTokens | PaddedTokens
