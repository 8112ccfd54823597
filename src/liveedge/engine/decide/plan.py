"""What one step of the engine does, and what came of it: plain values, torch-free.

Decided by the scheduler, executed by the runner, recorded by the scheduler. Within a step the
order is: decode, copies, encode, prefills. What a copy reads was there before the step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from liveedge.core.errors import LiveEdgeError
from liveedge.engine.decide.slots import Copy
from liveedge.engine.form.forms import AnswerForm
from liveedge.engine.interface import FeatureGroup
from liveedge.engine.request import SamplingParams

SALT = "\x1e"  # behind a group's key, where its features are computed once more: occurs in no key


def source_key(key: str) -> str:
    """The key without its salt."""
    return key.partition(SALT)[0]


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

    @property
    def source_key(self) -> str:
        """The key under which the request that has the frames knows this group."""
        return source_key(self.group.key)

    @property
    def is_salted(self) -> bool:
        """Encoded once more, to compare: other pixels than the first time are of no use."""
        return SALT in self.group.key


@dataclass(frozen=True, slots=True, eq=False)
class EncodeBatch:
    """Groups encoded in one pass of the vision tower: equal sizes stacked, unequal ones packed.
    Groups of one size stand together."""

    keys: tuple[str, ...]
    patches: tuple[object, ...]  # what the loader made of each group; opaque here
    rows: tuple[NDArray[np.int64], ...]  # where each group's features go
    sizes: tuple[tuple[int, int], ...]  # (height, width) of each group in pixels


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """How the tokens of a request are chosen; handed over with its first token."""

    sampling: SamplingParams
    form: AnswerForm | None
    keep_logits: bool = False  # of the first tokens, until the request is forgotten: see `Compare`


@dataclass(frozen=True, slots=True)
class Compare:
    """Compare this piece's logits with those kept of another request."""

    request_id: str  # whose first tokens were kept
    rows: tuple[tuple[int, int], ...]  # (place in the piece, number of the answer's token)


@dataclass(frozen=True, slots=True)
class Compared:
    """What a comparison found."""

    n_rows: int
    max_difference: float  # of any logit
    scale: float  # largest absolute logit
    differing: tuple[tuple[int, int, int], ...]  # (token number, kept argmax, argmax now)


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
    compare: Compare | None = None

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
    compared: dict[str, Compared] = field(default_factory=dict)
    decode_s: float = 0.0  # time of each part
    encode_s: float = 0.0
    prefill_s: float = 0.0
