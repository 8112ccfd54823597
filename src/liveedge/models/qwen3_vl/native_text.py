"""The text model in C for small pieces on a CPU: native/text.c, called with raw pointers.

Owns    the batch arrays, the workspace and the threads of one model on one key and value memory.
Thread  any; one call at a time, others wait. The interpreter is free while it computes.
Never   copies weights: it reads the modules' own, which therefore must stay where they are.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from liveedge.models.qwen3_vl.text import TextModel, rotary_table

ACTIVATIONS: Final = {"silu": 0, "gelu_pytorch_tanh": 1, "gelu": 2}
FAULTS: Final = {
    1: "the number of rows or of asked rows",
    2: "a token",
    3: "a slot",
    4: "a place in a slot",
    5: "a rotary position",
    6: "a row of the features",
    7: "the order of the asked rows",
}  # what le_text_run found out of range
ALIGNED_BYTES: Final = 64
NO_VISUAL: Final = -1

_INT = ctypes.c_int64
_PTR = ctypes.c_void_p
_LAYER_PARTS: Final = (
    "attn_norm.weight",
    "qkv.weight",
    "qkv.bias",
    "q_norm.weight",
    "k_norm.weight",
    "o_proj.weight",
    "o_proj.bias",
    "mlp_norm.weight",
    "gate_up.weight",
    "down.weight",
)
_COUNTS: Final = (
    *("n_layers", "hidden", "n_heads", "n_kv_heads", "head_dim", "mlp", "vocab", "n_deepstack"),
    *("activation", "n_slots", "max_len", "n_positions", "n_features"),
    *("max_rows", "max_asked", "n_threads", "plain_only"),
)
_READ: Final = (
    "layers",
    "embed",
    "norm",
    "head",
    "cos",
    "sin",
    "axis",
    "keys",
    "values",
    "features",
)
_BATCH: Final = ("tokens", "slots", "places", "time", "height", "width", "visual", "asked")
_WRITTEN: Final = ("last", "logits", "best", "work")


class _Layer(ctypes.Structure):
    """`le_text_layer`."""

    _fields_ = tuple((name, _PTR) for name in _LAYER_PARTS)


class _Model(ctypes.Structure):
    """`le_text_model`."""

    _fields_ = (
        *((name, _INT) for name in _COUNTS),
        ("eps", ctypes.c_double),
        *((name, _PTR) for name in (*_READ, *_BATCH, *_WRITTEN)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Where keys, values and visual features lie."""

    keys: Tensor  # [layers, slots, kv heads, max_len, d]
    values: Tensor
    features: Tensor  # [rows, (1 + deepstack layers) * D]


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How much one run may hold, and how it runs."""

    rows: int  # tokens of all pieces
    asked: int  # rows whose logits are wanted
    threads: int
    plain_only: bool = False  # without the processor's fast instructions: to test those without


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of one sequence that follow each other."""

    slot: int
    start: int  # tokens in the slot before this piece
    ids: NDArray[np.int64]  # [T]
    positions: NDArray[np.int64]  # [3, T]
    visual_index: NDArray[np.int64]  # [V] places in the piece that hold visual tokens
    visual_rows: NDArray[np.int64]  # [V] their rows in the feature memory


class NativeText:
    """Runs packed pieces through every layer in one call.

    What a run leaves in `logits`, `hidden` and `best` stays until the next one.
    """

    @classmethod
    def of(
        cls, model: TextModel, memory: Memory, *, room: Room, lib: ctypes.CDLL | None
    ) -> NativeText | None:
        """None where this model, device or machine needs torch. `lib`: see `native.library.load`."""
        tensors = (memory.keys, memory.values, memory.features, *model.parameters())
        fits = all(
            t.device.type == "cpu" and t.dtype == torch.float32 and t.is_contiguous()
            for t in tensors
        )
        if lib is None or not fits:
            return None
        _declare(lib)
        if not lib.le_text_is_fast() and not room.plain_only:
            return None  # torch is faster than the plain kernels
        return cls(lib, model, memory, room)

    def __init__(self, lib: ctypes.CDLL, model: TextModel, memory: Memory, room: Room) -> None:
        config = model.config
        self.room = room
        self.logits = torch.empty(room.asked, config.vocab_size)
        self.hidden = torch.empty(room.asked, config.hidden_size)
        self._best = np.zeros(room.asked, dtype=np.int64)
        # Rows: token, slot, place, the three positions, visual row, asked row.
        self._batch = np.zeros((8, room.rows), dtype=np.int64)
        self._rotary = rotary_table(config, memory.keys.shape[3])
        self._layers = (_Layer * config.n_layers)(*(_layer(part) for part in model.layers))
        described = _Model(**_counts(model, memory, room), **self._addresses(model, memory))
        self._work = _aligned_floats(lib.le_text_work_floats(ctypes.byref(described)))
        described.work = self._work.ctypes.data
        self._read = (model, memory)  # keeps alive what the library reads
        self._run = lib.le_text_run
        self._handle = lib.le_text_open(ctypes.byref(described))
        if not self._handle:
            raise MemoryError(f"no memory or no thread for {room.threads} native threads")
        self._closing = weakref.finalize(self, lib.le_text_close, self._handle)
        self._closing.atexit = False  # the system ends threads; a call may be under way

    def _addresses(self, model: TextModel, memory: Memory) -> dict[str, int]:
        head = model.embed_tokens if model.lm_head is None else model.lm_head
        tensors = {
            "embed": model.embed_tokens.weight,
            "norm": model.norm.weight,
            "head": head.weight,
            "cos": self._rotary.cos,
            "sin": self._rotary.sin,
            "axis": self._rotary.axis,
            "keys": memory.keys,
            "values": memory.values,
            "features": memory.features,
            "last": self.hidden,
            "logits": self.logits,
        }
        step = self._batch.strides[0]
        return {
            **{name: tensor.data_ptr() for name, tensor in tensors.items()},
            **{name: self._batch.ctypes.data + i * step for i, name in enumerate(_BATCH)},
            "layers": ctypes.addressof(self._layers),
            "best": self._best.ctypes.data,
        }

    @property
    def n_bytes(self) -> int:
        """Memory that this holds beside the model and its keys."""
        arrays = (self._work, self._batch, self._best)
        tensors = (self.hidden, self.logits)
        return sum(a.nbytes for a in arrays) + sum(t.nbytes for t in tensors)

    def prefill(self, pieces: Iterable[Piece], asked: Sequence[int]) -> list[int]:
        """Compute pieces into their slots. `asked`: rising rows, counted over all pieces.

        Returns for each asked row the first token with the largest logit, -1 where that is not
        finite or a logit is NaN; the rows of `logits` and `hidden` are in the same order.
        """
        batch = self._batch
        end = 0
        for piece in pieces:
            begin, end = end, end + len(piece.ids)
            if end > self.room.rows:
                raise ValueError(f"{end} rows or more, takes {self.room.rows}: split the pieces")
            batch[0, begin:end] = piece.ids
            batch[1, begin:end] = piece.slot
            batch[2, begin:end] = np.arange(piece.start, piece.start + end - begin)
            batch[3:6, begin:end] = piece.positions
            batch[6, begin:end] = NO_VISUAL
            if len(piece.visual_index):
                batch[6, begin + piece.visual_index] = piece.visual_rows
        batch[7, : len(asked)] = asked
        return self._compute(end, len(asked))

    def decode(
        self,
        *,
        tokens: NDArray[np.int64],
        slots: NDArray[np.int64],
        lengths: NDArray[np.int64],
        positions: NDArray[np.int64],
    ) -> list[int]:
        """One more token for each sequence, all [B]: like `prefill`, every row asked."""
        n_rows = len(tokens)
        if n_rows > self.room.rows:
            raise ValueError(f"{n_rows} sequences, takes {self.room.rows}: split the batch")
        batch = self._batch
        batch[0, :n_rows] = tokens
        batch[1, :n_rows] = slots
        batch[2, :n_rows] = lengths
        batch[3:6, :n_rows] = positions
        batch[6, :n_rows] = NO_VISUAL
        batch[7, :n_rows] = np.arange(n_rows)
        return self._compute(n_rows, n_rows)

    def _compute(self, n_rows: int, n_asked: int) -> list[int]:
        if not self._closing.alive:
            raise RuntimeError("the native text model was closed")
        fault = self._run(self._handle, n_rows, n_asked)
        if fault:
            raise ValueError(f"{FAULTS[fault]} is out of range in a batch of {n_rows} rows")
        return self._best[:n_asked].tolist()

    def close(self) -> None:
        """End the threads; no call may be under way. Collection does it too."""
        self._closing()


def _layer(layer: nn.Module) -> _Layer:
    held = dict(layer.named_parameters())
    return _Layer(*(held[n].data_ptr() if n in held else None for n in _LAYER_PARTS))


def _counts(model: TextModel, memory: Memory, room: Room) -> dict[str, float]:
    config = model.config
    n_features, feature_width = memory.features.shape
    return {
        "n_layers": config.n_layers,
        "hidden": config.hidden_size,
        "n_heads": config.n_heads,
        "n_kv_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "mlp": config.intermediate_size,
        "vocab": config.vocab_size,
        "n_deepstack": feature_width // config.hidden_size - 1,
        "activation": ACTIVATIONS[config.activation],
        "n_slots": memory.keys.shape[1],
        "max_len": memory.keys.shape[3],
        "n_positions": memory.keys.shape[3],  # a position never exceeds the place
        "n_features": n_features,
        "max_rows": room.rows,
        "max_asked": room.asked,
        "n_threads": room.threads,
        "plain_only": room.plain_only,
        "eps": config.rms_eps,
    }


def _aligned_floats(n: int) -> NDArray[np.float32]:
    raw = np.zeros(n * 4 + ALIGNED_BYTES, dtype=np.uint8)
    first = -raw.ctypes.data % ALIGNED_BYTES
    return raw[first : first + n * 4].view(np.float32)


def _declare(lib: ctypes.CDLL) -> None:
    """Types of the library's functions; ctypes would cut addresses to 32 bits without."""
    lib.le_text_is_fast.argtypes = ()
    lib.le_text_work_floats.argtypes = (ctypes.POINTER(_Model),)
    lib.le_text_work_floats.restype = _INT
    lib.le_text_open.argtypes = (ctypes.POINTER(_Model),)
    lib.le_text_open.restype = _PTR
    lib.le_text_run.argtypes = (_PTR, _INT, _INT)
    lib.le_text_close.argtypes = (_PTR,)
    lib.le_text_close.restype = None
