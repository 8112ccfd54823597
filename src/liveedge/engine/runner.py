"""The only code that touches the device: executes the parts of a plan.

Owns    the model, the KV memory, the feature memory and the sampling state of every request.
Thread  the engine thread, under `torch.inference_mode`.
Never   decides anything, and never keeps anything that grows: all memory is allocated here once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from liveedge.core.errors import LiveEdgeError
from liveedge.engine.grammar import GrammarCompiler
from liveedge.engine.kv import KvMemory, KvShape, zeros
from liveedge.engine.plan import DecodeBatch, EncodeBatch, PrefillChunk, Sampled
from liveedge.engine.sampler import Chooser, new_chooser, sample
from liveedge.engine.sizing import Sizing
from liveedge.engine.slots import Copy
from liveedge.models.qwen3_vl.text import Deepstack
from liveedge.models.qwen3_vl.weights import Qwen3VL


class Runner(Protocol):
    """What the loop needs of a device. A method that raises has spoilt only what it was given."""

    def copy(self, copy: Copy) -> None: ...

    def encode(self, batch: EncodeBatch) -> None: ...

    def prefill(self, chunk: PrefillChunk) -> Sampled | LiveEdgeError | None: ...

    def decode(self, batch: DecodeBatch) -> list[Sampled | LiveEdgeError]: ...

    def forget(self, request_ids: Iterable[str]) -> None: ...


class TorchRunner:
    """Runs a model on one device."""

    def __init__(
        self,
        model: Qwen3VL,
        *,
        sizing: Sizing,
        compiler: GrammarCompiler,
        entropy: Callable[[], int],
    ) -> None:
        weight = model.text.embed_tokens.weight
        self._device, dtype = weight.device, weight.dtype
        self._model = model
        self._compiler = compiler
        self._entropy = entropy
        self._choosers: dict[str, Chooser] = {}
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
                n_slots=sizing.n_slots,
                n_kv_heads=config.text.n_kv_heads,
                max_len=sizing.max_model_len,
                head_dim=config.text.head_dim,
            ),
            prefill_chunk=sizing.limits.prefill_chunk,
            device=self._device,
            dtype=dtype,
        )

    @torch.inference_mode()
    def copy(self, copy: Copy) -> None:
        """Give a slot the prefix of another."""
        self._kv.copy(copy)

    @torch.inference_mode()
    def encode(self, batch: EncodeBatch) -> None:
        """Compute the features of groups and put them into their rows."""
        patches = torch.stack([_patches(item) for item in batch.patches]).to(self._device)
        height, width = batch.size
        grid = (height // self._patch_px, width // self._patch_px)
        found = self._model.vision(patches, grid)
        features = torch.cat((found.tokens, *found.deepstack), dim=-1).flatten(0, 1)
        rows = torch.from_numpy(np.concatenate(batch.rows)).to(self._device)
        self._features.index_copy_(0, rows, features)

    @torch.inference_mode()
    def prefill(self, chunk: PrefillChunk) -> Sampled | LiveEdgeError | None:
        """Compute a piece of a prompt into its slot; the last piece gives the first token."""
        embeds = self._model.text.embed(self._tensor(chunk.ids)[None])
        deepstack = None
        if len(chunk.visual_index):
            index = self._tensor(chunk.visual_index)
            found = self._features[self._tensor(chunk.visual_rows)]
            parts = found.chunk(self._n_parts, dim=-1)
            embeds = embeds.index_copy(1, index, parts[0][None])
            deepstack = Deepstack(index, parts[1:])
        attend = self._kv.piece(slot=chunk.slot, start=chunk.start, n_tokens=len(chunk.ids))
        positions = self._tensor(chunk.positions)[:, None]
        hidden = self._model.text(embeds, positions, attend, deepstack)
        if chunk.sample is None:
            return None
        schema = chunk.sample.json_schema
        chooser = new_chooser(
            chunk.sample.sampling,
            matcher=None if schema is None else self._compiler.matcher(schema),
            entropy=self._entropy,
        )
        self._choosers[chunk.request_id] = chooser
        return sample(self._model.text.logits(hidden[:, -1]), [chooser])[0]

    @torch.inference_mode()
    def decode(self, batch: DecodeBatch) -> list[Sampled | LiveEdgeError]:
        """One more token for every sequence of the batch."""
        embeds = self._model.text.embed(self._tensor(batch.tokens)[:, None])
        positions = self._tensor(batch.positions)[None, :, None].expand(3, -1, 1)
        attend = self._kv.tokens(slots=batch.slots.tolist(), lengths=batch.lengths.tolist())
        hidden = self._model.text(embeds, positions, attend)
        logits = self._model.text.logits(hidden[:, 0])
        return sample(logits, [self._choosers[request_id] for request_id in batch.request_ids])

    def forget(self, request_ids: Iterable[str]) -> None:
        """These requests ended."""
        for request_id in request_ids:
            self._choosers.pop(request_id, None)

    def _tensor(self, values: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device)


def _patches(item: object) -> Tensor:
    assert isinstance(item, Tensor), type(item)
    return item
