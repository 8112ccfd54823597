"""The only code that touches the device: executes the parts of a plan.

Owns    the model, the KV memory, the feature memory and the sampling state of every request.
Thread  the engine thread, under `torch.inference_mode`.
Never   decides anything, and never keeps anything that grows: all memory is allocated here once.

Two ways compute the same. On a CPU with the native library everything up to NATIVE_ROWS tokens
goes there: one call for all layers. Torch is the reference, the way of every other device, of
larger pieces, and of the vision tower. On CUDA the decode step is recorded (`graphs`).
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from liveedge.core.errors import InternalError, LiveEdgeError
from liveedge.engine.compute.graphs import SPARE_PLACES, DecodeGraphs, open_graphs
from liveedge.engine.compute.kv import KvMemory, KvShape, zeros
from liveedge.engine.compute.masks import Masks
from liveedge.engine.compute.sampler import Chooser, new_chooser, sample
from liveedge.engine.decide.plan import (
    Compare,
    Compared,
    DecodeBatch,
    EncodeBatch,
    PrefillChunk,
    Sampled,
    SampleSpec,
)
from liveedge.engine.decide.slots import Copy
from liveedge.engine.memory.sizing import Sizing
from liveedge.models.qwen3_vl.native_text import Memory, NativeText, Piece, Room
from liveedge.models.qwen3_vl.text import Deepstack
from liveedge.models.qwen3_vl.vision import VisionFeatures
from liveedge.models.qwen3_vl.weights import Qwen3VL

if TYPE_CHECKING:  # it imports a library that answers without a schema do not need
    from liveedge.engine.form.grammar import GrammarCompiler, Matcher

log = logging.getLogger("liveedge.engine")

# Tokens of one native call. Measured up to here on two Zen 3 cores, hidden sizes 192 to 1024:
# native was ahead of torch at every size, 25x at one token, 1.3x at 512.
NATIVE_ROWS: Final = 512
KEPT_TOKENS: Final = 16  # first tokens of an answer whose logits are kept to compare

Outcome: TypeAlias = Sampled | Compared | LiveEdgeError | None
_Opened: TypeAlias = dict[str, Chooser | LiveEdgeError]


class Runner(Protocol):
    """What the loop needs of a device. A method that raises has spoilt only what it was given."""

    def copy(self, copy: Copy) -> None: ...

    def encode(self, batch: EncodeBatch) -> None: ...

    def prefill(self, chunks: Sequence[PrefillChunk]) -> list[Outcome]:
        """All pieces of a step in one pass, one outcome each, in order; slots are different."""
        ...

    def decode(self, batch: DecodeBatch) -> list[Sampled | LiveEdgeError]: ...

    def forget(self, request_ids: Iterable[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class _Scores:
    """Logits [n, vocab] of the rows that were asked, valid until the next pass."""

    logits: Tensor
    best: list[int] | None  # see `sample`


class TorchRunner:
    """Runs a model on one device. `lib`: see `native.library.load`; None leaves all to torch."""

    def __init__(
        self,
        model: Qwen3VL,
        *,
        sizing: Sizing,
        compiler: GrammarCompiler,
        entropy: Callable[[], int],
        lib: ctypes.CDLL | None,
        use_graphs: bool = True,
    ) -> None:
        weight = model.text.embed_tokens.weight
        self._device, dtype = weight.device, weight.dtype
        self._is_cuda = self._device.type == "cuda"
        use_graphs = use_graphs and self._is_cuda
        self._model = model
        self._compiler = compiler
        self._masks = Masks(n_threads=torch.get_num_threads() // 2)
        self._entropy = entropy
        self._choosers: dict[str, Chooser] = {}
        self._kept: dict[str, list[Tensor]] = {}
        config = model.config
        self._patch_px = config.vision.patch_size
        self._n_parts = 1 + len(config.vision.deepstack_layers)
        self._features = zeros(
            (sizing.feature_rows, self._n_parts * config.text.hidden_size),
            device=self._device,
            dtype=dtype,
        )
        self._kv = KvMemory(
            KvShape(
                n_layers=config.text.n_layers,
                n_slots=sizing.n_kv_slots,
                n_kv_heads=config.text.n_kv_heads,
                max_len=sizing.max_model_len,
                head_dim=config.text.head_dim,
                spare_places=SPARE_PLACES if use_graphs else 0,
            ),
            prefill_chunk=sizing.limits.prefill_chunk,
            device=self._device,
            dtype=dtype,
        )
        self._native = self._open_native(sizing, lib)
        self._graphs: DecodeGraphs | None = None
        if use_graphs:
            self._graphs = open_graphs(model.text, self._kv, n_rows=sizing.n_slots)
        log.info("the text model runs %s", "in C" if self.is_native else "by torch")

    def _open_native(self, sizing: Sizing, lib: ctypes.CDLL | None) -> NativeText | None:
        memory = Memory(keys=self._kv.keys, values=self._kv.values, features=self._features)
        room = Room(
            rows=max(NATIVE_ROWS, sizing.n_slots),
            asked=sizing.n_slots + 2 * KEPT_TOKENS,
            threads=torch.get_num_threads(),
        )
        return NativeText.of(self._model.text, memory, room=room, lib=lib)

    @property
    def is_native(self) -> bool:
        """Whether small pieces run in C."""
        return self._native is not None

    def close(self) -> None:
        """End the threads; nothing can be computed afterwards."""
        self._masks.close()
        if self._native is not None:
            self._native.close()

    @torch.inference_mode()
    def copy(self, copy: Copy) -> None:
        """Give a slot the prefix of another."""
        self._kv.copy(copy)

    # encode

    @torch.inference_mode()
    def encode(self, batch: EncodeBatch) -> None:
        """Compute the features of groups and put them into their rows."""
        patches = [_patches(item).to(self._device, non_blocking=True) for item in batch.patches]
        grids = [
            (height // self._patch_px, width // self._patch_px) for height, width in batch.sizes
        ]
        if len(set(grids)) == 1:
            found = [self._model.vision(torch.stack(patches), grids[0])]
        else:
            found = self._model.vision.forward_packed(list(zip(patches, grids, strict=True)))
        features = torch.cat([_joined(part) for part in found])
        self._features.index_copy_(0, self._tensor(np.concatenate(batch.rows)), features)
        self._settle()

    def _clear_failed(self, slots: Iterable[int], outcomes: Iterable[Outcome]) -> None:
        """What is not a number would reach the slot's next owner: padded attention multiplies what
        it does not see by zero."""
        for slot, outcome in zip(slots, outcomes, strict=True):
            if isinstance(outcome, LiveEdgeError) and self._native is None:
                self._kv.clear(slot)

    def _settle(self) -> None:
        """Wait for the device: the scheduler sizes its slices by what they took, and pinned memory
        that was copied from goes back to its pool."""
        if self._is_cuda:
            torch.cuda.synchronize(self._device)

    # prefill

    @torch.inference_mode()
    def prefill(self, chunks: Sequence[PrefillChunk]) -> list[Outcome]:
        """Compute pieces of prompts into their slots; the last piece of each gives a token."""
        outcomes: list[Outcome] = []
        opened = self._open_choosers(chunks)
        for pack in self._packs(chunks):
            asked = [_asked(chunk) for chunk in pack]
            scores = self._compute(pack, _places(pack, asked))
            begin = 0
            for chunk, rows in zip(pack, asked, strict=True):
                own = slice(begin, begin + len(rows))
                outcomes.append(self._outcome(chunk, scores, own, opened) if rows else None)
                begin = own.stop
        self._clear_failed([chunk.slot for chunk in chunks], outcomes)
        self._settle()
        return outcomes

    def _packs(self, chunks: Sequence[PrefillChunk]) -> Iterator[Sequence[PrefillChunk]]:
        """All together, or as many at once as fit the native batch."""
        if self._native is None:
            yield chunks
            return
        room = self._native.room
        pack: list[PrefillChunk] = []
        n_rows = n_asked = 0
        for chunk in chunks:
            n_rows += len(chunk.ids)
            n_asked += len(_asked(chunk))
            if pack and (n_rows > room.rows or n_asked > room.asked):
                yield pack
                pack, n_rows, n_asked = [], len(chunk.ids), len(_asked(chunk))
            pack.append(chunk)
        yield pack

    def _compute(self, pack: Sequence[PrefillChunk], asked: Sequence[int]) -> _Scores:
        native = self._native
        if native is None or sum(len(chunk.ids) for chunk in pack) > native.room.rows:
            return self._compute_by_torch(pack, asked)
        best = native.prefill(map(_piece, pack), asked)
        return _Scores(native.logits[: len(asked)], best)

    def _compute_by_torch(self, pack: Sequence[PrefillChunk], asked: Sequence[int]) -> _Scores:
        text = self._model.text
        embeds = text.embed(self._tensor(np.concatenate([chunk.ids for chunk in pack]))[None])
        index = self._tensor(_places(pack, [chunk.visual_index.tolist() for chunk in pack]))
        deepstack = None
        if len(index):
            rows = self._tensor(np.concatenate([chunk.visual_rows for chunk in pack]))
            parts = self._features[rows].chunk(self._n_parts, dim=-1)
            embeds = embeds.index_copy(1, index, parts[0][None])
            deepstack = Deepstack(index, parts[1:])
        attend = self._kv.pieces([(chunk.slot, chunk.start, len(chunk.ids)) for chunk in pack])
        positions = self._tensor(np.concatenate([chunk.positions for chunk in pack], 1))[:, None]
        hidden = text(embeds, positions, attend, deepstack, asked=self._tensor(asked))
        return _Scores(text.logits(hidden[0]), None)

    def _outcome(
        self, chunk: PrefillChunk, scores: _Scores, own: slice, opened: _Opened
    ) -> Outcome:
        logits = scores.logits[own]
        if chunk.compare is not None:
            return self._compared(chunk.compare, logits)
        assert chunk.sample is not None, "only rows that somebody wants are asked"
        chooser = opened[chunk.request_id]
        if isinstance(chooser, LiveEdgeError):
            return chooser
        self._choosers[chunk.request_id] = chooser
        if chunk.sample.keep_logits:
            self._kept[chunk.request_id] = [logits[0].clone()]
        return sample(logits, [chooser], scores.best and scores.best[own])[0]

    def _open_choosers(self, chunks: Sequence[PrefillChunk]) -> _Opened:
        """Of every chunk that samples. Before the pass, so that masks are computed beside it."""
        opened = {
            chunk.request_id: self._open_chooser(chunk.sample)
            for chunk in chunks
            if chunk.sample is not None
        }
        self._masks.begin(_matchers(opened.values()))
        return opened

    def _open_chooser(self, spec: SampleSpec) -> Chooser | LiveEdgeError:
        form = spec.form
        try:
            matcher = None if form is None else self._compiler.matcher(form)
        except LiveEdgeError as error:
            return error
        except Exception:  # one request's form must not end the others of the pass
            log.exception("a grammar could not be opened")
            return InternalError("the answer's grammar could not be opened")
        return new_chooser(spec.sampling, matcher=matcher, entropy=self._entropy)

    def _compared(self, compare: Compare, logits: Tensor) -> Compared | LiveEdgeError:
        kept = self._kept.get(compare.request_id, [])
        pairs = [
            (number, row, kept[number])
            for (_, number), row in zip(_rising(compare), logits, strict=True)
            if number < len(kept)
        ]
        if not pairs:
            return InternalError(f"no logits of {compare.request_id} are kept to compare with")
        numbers = [number for number, _, _ in pairs]
        now = torch.stack([row for _, row, _ in pairs]).float()
        then = torch.stack([row for _, _, row in pairs]).float()
        differences = (now - then).abs().nan_to_num(nan=float("inf"))
        tokens = zip(numbers, then.argmax(-1).tolist(), now.argmax(-1).tolist(), strict=True)
        return Compared(
            n_rows=len(pairs),
            max_difference=float(differences.max()),
            scale=float(then.abs().max()),
            differing=tuple(item for item in tokens if item[1] != item[2]),
        )

    # decode

    @torch.inference_mode()
    def decode(self, batch: DecodeBatch) -> list[Sampled | LiveEdgeError]:
        """One more token for every sequence of the batch."""
        choosers = [self._choosers[request_id] for request_id in batch.request_ids]
        self._masks.begin(_matchers(choosers))
        scores = self._step(batch)
        if self._kept:
            self._keep(batch.request_ids, scores.logits)
        sampled = sample(scores.logits, choosers, scores.best)
        self._clear_failed(batch.slots.tolist(), sampled)
        return sampled

    def _step(self, batch: DecodeBatch) -> _Scores:
        if self._graphs is not None:
            return _Scores(*self._graphs.step(batch))
        if self._native is not None:
            best = self._native.decode(
                tokens=batch.tokens,
                slots=batch.slots,
                lengths=batch.lengths,
                positions=batch.positions,
            )
            return _Scores(self._native.logits[: len(best)], best)
        text = self._model.text
        embeds = text.embed(self._tensor(batch.tokens)[:, None])
        positions = self._tensor(batch.positions)[None, :, None].expand(3, -1, 1)
        attend = self._kv.tokens(slots=batch.slots.tolist(), lengths=batch.lengths.tolist())
        return _Scores(text.logits(text(embeds, positions, attend)[:, 0]), None)

    def _keep(self, request_ids: Sequence[str], logits: Tensor) -> None:
        for row, request_id in zip(logits, request_ids, strict=True):
            kept = self._kept.get(request_id)
            if kept is not None and len(kept) < KEPT_TOKENS:
                kept.append(row.clone())

    def forget(self, request_ids: Iterable[str]) -> None:
        """These requests ended."""
        for request_id in request_ids:
            self._choosers.pop(request_id, None)
            self._kept.pop(request_id, None)

    def _tensor(self, values: NDArray[np.int64] | Sequence[int]) -> Tensor:
        whole = torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
        if self._is_cuda and len(whole):  # from pageable memory it would wait for the device
            whole = whole.pin_memory()
        return whole.to(self._device, non_blocking=True)


def _matchers(choosers: Iterable[Chooser | LiveEdgeError]) -> list[Matcher]:
    return [
        chooser.matcher
        for chooser in choosers
        if isinstance(chooser, Chooser) and chooser.matcher is not None
    ]


def _asked(chunk: PrefillChunk) -> list[int]:
    """Places in the piece whose logits are wanted, rising."""
    if chunk.compare is not None:
        return [place for place, _ in _rising(chunk.compare)]
    return [] if chunk.sample is None else [len(chunk.ids) - 1]


def _rising(compare: Compare) -> list[tuple[int, int]]:
    return sorted(compare.rows)


def _places(pack: Sequence[PrefillChunk], inside: Sequence[Sequence[int]]) -> list[int]:
    """Places in each piece as places in the pack."""
    places: list[int] = []
    begin = 0
    for chunk, own in zip(pack, inside, strict=True):
        places += [begin + place for place in own]
        begin += len(chunk.ids)
    return places


def _piece(chunk: PrefillChunk) -> Piece:
    return Piece(
        slot=chunk.slot,
        start=chunk.start,
        ids=chunk.ids,
        positions=chunk.positions,
        visual_index=chunk.visual_index,
        visual_rows=chunk.visual_rows,
    )


def _joined(found: VisionFeatures) -> Tensor:
    """[G * M, (1 + deepstack layers) * D]"""
    return torch.cat((found.tokens, *found.deepstack), dim=-1).flatten(0, 1)


def _patches(item: object) -> Tensor:
    assert isinstance(item, Tensor), type(item)
    return item
