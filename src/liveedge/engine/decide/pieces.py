"""The parts of a plan as the runner reads them, from sequences and the encoder cache. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from liveedge.engine.decide.encoder_cache import EncoderCache
from liveedge.engine.decide.limits import group_pixels
from liveedge.engine.decide.loads import Loads
from liveedge.engine.decide.plan import DecodeBatch, EncodeBatch, PrefillChunk, SampleSpec
from liveedge.engine.decide.sequence import Sequence, Verifying
from liveedge.engine.decide.verify import compare_rows
from liveedge.engine.interface import FeatureGroup


def decode_batch(running: Seq[Sequence]) -> DecodeBatch:
    """One more token for each."""
    running = sorted(running, key=lambda sequence: sequence.slot or 0)
    lengths = np.array([sequence.n_ready for sequence in running], dtype=np.int64)
    deltas = [sequence.prepared.position_delta for sequence in running]
    return DecodeBatch(
        request_ids=tuple(sequence.request_id for sequence in running),
        slots=np.array([sequence.slot for sequence in running], dtype=np.int64),
        lengths=lengths,
        tokens=np.array([sequence.tokens[-1] for sequence in running], dtype=np.int64),
        positions=lengths + np.array(deltas, dtype=np.int64),
    )


def prefill_chunk(sequence: Sequence, n_tokens: int, *, cache: EncoderCache) -> PrefillChunk:
    """The next tokens of a prompt; the last piece of an answer's prompt samples."""
    assert sequence.slot is not None
    prepared, goal = sequence.prepared, sequence.background
    start, stop = sequence.n_ready, sequence.n_ready + n_tokens
    index, rows = _visual_places(prepared.groups, start, stop, cache)
    request = prepared.request
    sample = None
    if goal is None and stop == prepared.n_tokens:
        sample = SampleSpec(request.sampling, request.form, keep_logits=sequence.keep_logits)
    return PrefillChunk(
        request_id=sequence.request_id,
        slot=sequence.slot,
        start=start,
        ids=prepared.ids[start:stop],
        positions=prepared.positions[:, start:stop],
        visual_index=index,
        visual_rows=rows,
        sample=sample,
        compare=compare_rows(goal, start, stop) if isinstance(goal, Verifying) else None,
    )


def _visual_places(
    groups: Iterable[FeatureGroup], start: int, stop: int, cache: EncoderCache
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places in a piece that hold visual tokens, and the rows of their features."""
    index, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for group in groups:
        low, high = max(group.start, start), min(group.stop, stop)
        if low < high:
            index.append(np.arange(low - start, high - start, dtype=np.int64))
            rows.append(cache.rows(group.key)[low - group.start : high - group.start])
    return np.concatenate(index), np.concatenate(rows)


def encode_batch(
    groups: Seq[FeatureGroup], *, max_pixels: int, loads: Loads, cache: EncoderCache
) -> EncodeBatch:
    """The first of these loaded groups, then those of its size, then others, while they fit."""
    first = groups[0]
    rest = sorted(groups[1:], key=lambda group: (_size(group) != _size(first), _size(group)))
    chosen = {first.key: first}
    pixels = group_pixels(first)
    for group in rest:
        if group.key not in chosen and pixels + group_pixels(group) <= max_pixels:
            chosen[group.key] = group
            pixels += group_pixels(group)
    return EncodeBatch(
        keys=tuple(chosen),
        patches=tuple(loads.patches(key) for key in chosen),
        rows=tuple(cache.rows(key) for key in chosen),
        sizes=tuple(_size(group) for group in chosen.values()),
    )


def _size(group: FeatureGroup) -> tuple[int, int]:
    return (group.height, group.width)
