"""The decode step as CUDA graphs: one launch per token instead of a thousand.

Owns    the buffers that never move, from which and into which a step computes, and the graphs.
Thread  the engine thread, under `torch.inference_mode`; workers may go on while a graph is recorded.
Never   records on the way to a first answer: see USES.

A graph computes fixed shapes, so a step is rounded up: its rows to a power of two (and the number
of slots), what they see to 512, 768, 1024, 1536, ... places. There is a graph for every such pair
that is in use. Until a pair has one, the same function runs eagerly on the same buffers, so when a
graph is recorded changes no answer.

Rows that fill up a batch write behind the last place of slot 0, which belongs to nobody and is
never read by anybody else. Every row's keys and values are gathered side by side, and attended to
under a mask made of the lengths. Flash attention takes no mask, and the efficient kernel takes no
grouped heads, so the queries of a key head stand in the place of tokens: that is what every version
of torch from 2.9 on can do in a graph.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from liveedge.engine.compute.kv import KvMemory
from liveedge.engine.decide.plan import DecodeBatch
from liveedge.models.qwen3_vl.text import TextModel, rotary_plan

log = logging.getLogger("liveedge.engine")

SPARE_PLACES: Final = 1  # behind the last place of each slot, for the rows that fill up a batch
SEEN_LEAST: Final = 512  # places; fewer would save less than a graph is worth
# A shape is recorded when it comes up the USES-th time. A first answer is not held up by it, and a
# shape that is only passed through is never recorded.
USES: Final = 8
MAX_GRAPHS: Final = 64  # 8 slots of 4,096 tokens have 28 shapes; what comes after runs eagerly
WARM_UPS: Final = 2  # eager runs on the side stream before recording: libraries open themselves
BACKENDS: Final = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

Replay: TypeAlias = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a graph is made for."""

    n_rows: int
    n_seen: int  # places of each slot


class Shapes:
    """Rounds a step up to a shape: the only ones there are."""

    def __init__(self, *, n_rows: int, max_len: int) -> None:
        self.rows = (*itertools.takewhile(lambda n: n < n_rows, _powers(1)), n_rows)
        self.seen = (*itertools.takewhile(lambda n: n < max_len, _steps(SEEN_LEAST)), max_len)

    def fit(self, *, n_rows: int, n_seen: int) -> Shape:
        """The smallest that holds so much."""
        return Shape(
            next(n for n in self.rows if n >= n_rows), next(n for n in self.seen if n >= n_seen)
        )


def _powers(first: int) -> Iterator[int]:
    return (first << number for number in itertools.count())


def _steps(first: int) -> Iterator[int]:
    """512, 768, 1024, 1536, ...: at most a third of what is read is padding."""
    return (size for power in _powers(first) for size in (power, power * 3 // 2))


class StaticDecode:
    """The decode step over buffers that never move. Runs on any device."""

    def __init__(self, text: TextModel, memory: KvMemory, *, n_rows: int) -> None:
        n_kv_heads, n_places, width = memory.keys.shape[2:]
        if n_places < memory.max_len + SPARE_PLACES:
            raise ValueError(f"the slots have {n_places} places and none behind the last one")
        device, dtype = memory.keys.device, memory.keys.dtype
        self._text = text
        self._memory = memory
        self._on_device = device.type == "cuda"
        self._n_rows = n_rows
        # Rows: tokens, positions, slots, lengths.
        self._host = torch.zeros(4, n_rows, dtype=torch.int64, pin_memory=self._on_device)
        self._inputs = torch.zeros(4, n_rows, dtype=torch.int64, device=device)
        self._host_best = torch.zeros(n_rows, dtype=torch.int64, pin_memory=self._on_device)
        self._best = torch.zeros(n_rows, dtype=torch.int64, device=device)
        self.logits = torch.zeros(n_rows, text.config.vocab_size, device=device, dtype=dtype)
        n_gathered = n_rows * n_kv_heads * memory.max_len * width
        self._gathered = torch.zeros(2, n_gathered, device=device, dtype=dtype)
        self._places = torch.arange(memory.max_len, device=device)
        # A graph reads these where they lie: they must outlive every cache that holds them.
        self._rotary = rotary_plan(text.config, device)

    @property
    def n_bytes(self) -> int:
        """Memory on the device that is held for good, besides the model and its keys."""
        held = (self._inputs, self._best, self.logits, self._gathered, self._places)
        return sum(tensor.nbytes for tensor in held)

    def fill(self, batch: DecodeBatch, n_rows: int) -> None:
        """Put a batch into the first rows and harmless ones into the rest of `n_rows`."""
        n = len(batch.tokens)
        rows = self._host.numpy()
        for row, values in enumerate((batch.tokens, batch.positions, batch.slots, batch.lengths)):
            rows[row, :n] = values
        rows[:3, n:n_rows] = 0
        rows[3, n:n_rows] = self._memory.max_len  # the spare place of slot 0
        self._inputs.copy_(self._host, non_blocking=True)

    def body(self, shape: Shape) -> None:
        """One token for every row: what a graph records. Running it twice is running it once."""
        tokens, positions, slots, lengths = self._inputs[:, : shape.n_rows]
        attend = self._attend(slots, lengths, shape)
        text = self._text
        with sdpa_kernel(BACKENDS):
            hidden = text(
                text.embed(tokens[:, None]), positions[None, :, None].expand(3, -1, 1), attend
            )
        logits = text.logits(hidden[:, 0])
        best = logits.max(-1)  # what is not a number counts as the largest
        self.logits[: shape.n_rows].copy_(logits)
        self._best[: shape.n_rows].copy_(best.indices.masked_fill(~best.values.isfinite(), -1))

    def _attend(self, slots: Tensor, lengths: Tensor, shape: Shape) -> _Gathered:
        n_kv_heads, _, width = self._memory.keys.shape[2:]
        n_values = shape.n_rows * n_kv_heads * shape.n_seen * width
        keys, values = self._gathered[:, :n_values].view(
            2, shape.n_rows, n_kv_heads, shape.n_seen, width
        )
        unseen = self._places[: shape.n_seen] > lengths[:, None]
        mask = torch.zeros_like(unseen, dtype=keys.dtype).masked_fill(unseen, float("-inf"))
        return _Gathered(self._memory, slots, lengths, mask[:, None, None], (keys, values))

    def read(self, n: int) -> list[int]:
        """The best token of the first rows, -1 where there is none; waits for the device."""
        self._host_best.copy_(self._best, non_blocking=True)
        if self._on_device:
            torch.cuda.current_stream(self._best.device).synchronize()
        return self._host_best[:n].tolist()


class _Gathered:
    """One new token per row: written to its slot, and every row's slot read side by side."""

    def __init__(
        self,
        memory: KvMemory,
        slots: Tensor,
        lengths: Tensor,
        mask: Tensor,
        gathered: tuple[Tensor, Tensor],
    ) -> None:
        self._memory = memory
        self._slots = slots
        self._lengths = lengths
        self._mask = mask
        self._gathered = gathered

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, Hq, 1, d], k and v [B, Hkv, 1, d] -> [B, Hq, 1, d]."""
        keys, values = self._gathered
        for memory, new, seen in (
            (self._memory.keys[layer], k, keys),
            (self._memory.values[layer], v, values),
        ):
            memory[self._slots, :, self._lengths] = new[:, :, 0]
            torch.index_select(memory[:, :, : seen.shape[2]], 0, self._slots, out=seen)
        grouped = q.reshape(q.shape[0], k.shape[1], -1, q.shape[-1])
        out = scaled_dot_product_attention(grouped, keys, values, attn_mask=self._mask)
        return out.reshape(q.shape)


class Recorder(Protocol):
    """Makes a graph of what a function does on the device."""

    def record(self, body: Callable[[], None]) -> Replay:
        """Runs `body` a few times. Raises RuntimeError where it cannot be recorded."""
        ...


class CudaRecorder:
    """Records on a side stream; all graphs share one pool of memory, for no two run at once."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, body: Callable[[], None]) -> Replay:
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                body()
            # Workers pin memory at any time: only what this thread does may spoil the recording.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                body()
        current.wait_stream(self._stream)
        return graph.replay


class DecodeGraphs:
    """Decode steps, by a graph where there is one."""

    def __init__(
        self,
        static: StaticDecode,
        *,
        shapes: Shapes,
        recorder: Recorder,
        max_graphs: int = MAX_GRAPHS,
    ) -> None:
        self.n_replayed = 0
        self.n_eager = 0
        self.n_failed = 0  # shapes that could not be recorded, and run eagerly
        self._static = static
        self._shapes = shapes
        self._recorder = recorder
        self._max_graphs = max_graphs
        self._uses: Counter[Shape] = Counter()  # bounded: there are only so many shapes
        self._graphs: dict[Shape, Replay] = {}

    @property
    def n_graphs(self) -> int:
        return len(self._graphs)

    def step(self, batch: DecodeBatch) -> tuple[Tensor, list[int]]:
        """Logits [B, vocab], valid until the next step, and the best token of each row: see
        `sampler.best_tokens`."""
        n = len(batch.tokens)
        n_seen = int(np.max(batch.lengths)) + 1
        shape = self._shapes.fit(n_rows=n, n_seen=n_seen)
        self._static.fill(batch, shape.n_rows)
        replay = self._graph(shape)
        if replay is None:
            self.n_eager += 1
            self._static.body(shape)
        else:
            self.n_replayed += 1
            replay()
        return self._static.logits[:n], self._static.read(n)

    def _graph(self, shape: Shape) -> Replay | None:
        """Recorded now if it is time; the batch is in the buffers already."""
        if shape in self._graphs:
            return self._graphs[shape]
        self._uses[shape] += 1
        if self._uses[shape] != USES or len(self._graphs) >= self._max_graphs:
            return None
        try:
            self._graphs[shape] = self._recorder.record(partial(self._static.body, shape))
        except RuntimeError:  # no memory, or a kernel that cannot be recorded: the step still runs
            self.n_failed += 1
            log.exception("no graph for %d rows of %d places", shape.n_rows, shape.n_seen)
        return self._graphs.get(shape)


def open_graphs(text: TextModel, memory: KvMemory, *, n_rows: int) -> DecodeGraphs:
    """For a model on a CUDA device; `memory` has SPARE_PLACES."""
    return DecodeGraphs(
        StaticDecode(text, memory, n_rows=n_rows),
        shapes=Shapes(n_rows=n_rows, max_len=memory.max_len),
        recorder=CudaRecorder(memory.keys.device),
    )
