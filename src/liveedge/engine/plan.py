"""What one step of the engine does, and what came of it: plain values, torch-free.

Decided by the scheduler, executed by the runner, recorded by the scheduler. Within a step the
order is: copies, encode, prefills, decode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liveedge.core.errors import LiveEdgeError
from liveedge.engine.interface import FeatureGroup
from liveedge.engine.request import SamplingParams
from liveedge.engine.slots import Copy


@dataclass(frozen=True, slots=True)
class SlotCopy:
    """A copy and the request that fails if it fails."""

    request_id: str
    copy: Copy


@dataclass(frozen=True, slots=True, eq=False)
class LoadJob:
    """A group that a worker loads and preprocesses. Compared by identity: a later job for the
    same group is another job."""

    group: FeatureGroup


@dataclass(frozen=True, slots=True, eq=False)
class EncodeBatch:
    """Groups of equal size, encoded in one pass of the vision tower."""

    keys: tuple[str, ...]
    patches: tuple[object, ...]  # what the loader made of each group; opaque here
    rows: tuple[NDArray[np.int64], ...]  # where each group's features go
    size: tuple[int, int]  # (height, width) in pixels


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """How the tokens of a request are chosen; handed over with its first token."""

    sampling: SamplingParams
    json_schema: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, eq=False)
class PrefillChunk:
    """A piece of one prompt. `sample` is set on its last piece, which yields the first token."""

    request_id: str
    slot: int
    start: int  # tokens of the prompt already in the slot
    ids: NDArray[np.int64]  # [T]
    positions: NDArray[np.int64]  # [3, T]
    visual_index: NDArray[np.int64]  # [V] places in the piece that hold visual tokens
    visual_rows: NDArray[np.int64]  # [V] their rows in the feature memory
    sample: SampleSpec | None

    @property
    def stop(self) -> int:
        return self.start + len(self.ids)


@dataclass(frozen=True, slots=True, eq=False)
class DecodeBatch:
    """One more token for every running sequence, ordered by slot."""

    request_ids: tuple[str, ...]
    slots: NDArray[np.int64]  # [B]
    lengths: NDArray[np.int64]  # [B] tokens in the slot before this step
    tokens: NDArray[np.int64]  # [B] the newest token of each
    positions: NDArray[np.int64]  # [B] its rotary position


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """One step."""

    loads: tuple[LoadJob, ...] = ()
    dropped: tuple[LoadJob, ...] = ()  # nobody waits for these any more
    copies: tuple[SlotCopy, ...] = ()
    encode: EncodeBatch | None = None
    prefills: tuple[PrefillChunk, ...] = ()
    decode: DecodeBatch | None = None
    admitted: tuple[str, ...] = ()  # requests that got a slot
    ended: tuple[str, ...] = ()  # requests whose sampling state the runner can forget

    @property
    def computes(self) -> bool:
        """False when the engine thread can wait for the next message."""
        return bool(self.copies or self.encode or self.prefills or self.decode)


@dataclass(frozen=True, slots=True)
class Sampled:
    """One chosen token."""

    token: int
    logprob: float = 0.0
    top: tuple[tuple[int, float], ...] = ()
    complete: bool = False  # the grammar allows nothing more


@dataclass(slots=True)
class StepResult:
    """What came of a plan; a request or key is in at most one of each pair."""

    sampled: dict[str, Sampled] = field(default_factory=dict)
    failed: dict[str, LiveEdgeError] = field(default_factory=dict)
    encoded: tuple[str, ...] = ()
    encode_failed: dict[str, LiveEdgeError] = field(default_factory=dict)
    encode_s: float = 0.0
    prefill_s: dict[str, float] = field(default_factory=dict)
