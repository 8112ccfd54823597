"""What the engine is asked and what it answers: plain values, torch-free.

A request ends with exactly one `Finished` or `Failed`, whatever happens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from liveedge.core.errors import LiveEdgeError
from liveedge.engine.form.forms import AnswerForm


def always() -> bool:
    """Of pixels that do not change."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameInput:
    """One picture for the model. Equal `key` promises equal pixels; the key includes the tenant."""

    key: str
    width: int  # pixels, upright
    height: int
    load: Callable[[], NDArray[np.uint8]] = field(
        compare=False
    )  # RGB [height, width, 3]; may raise
    # Whether `load` still gives the pixels of its first time, or a compressed copy of them.
    is_exact: Callable[[], bool] = field(default=always, compare=False)
    time_s: float = 0.0  # video only: seconds from the start of the segment, goes into the prompt


@dataclass(frozen=True, slots=True)
class TextPart:
    """Words."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePart:
    """One still picture."""

    frame: FrameInput
    max_pixels: int | None = None  # resize budget; None: the model's own


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoPart:
    """Frames of equal size; frames (2j, 2j+1) form one temporal group. Even count, doubled by the
    caller where a frame has no partner (same key twice)."""

    frames: tuple[FrameInput, ...]
    max_pixels: int | None = None  # per frame


Part: TypeAlias = TextPart | ImagePart | VideoPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of the conversation: parts in the order the model reads them."""

    role: Literal["system", "user", "assistant", "tool"]
    content: tuple[Part, ...]
    tool_calls: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen. A temperature below 1e-4 is greedy."""

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    top_logprobs: int = 0  # 0..20


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One answer to produce."""

    request_id: str
    messages: tuple[Message, ...]
    tenant: str = ""  # prefixes are reused within one tenant only
    tools: tuple[Mapping[str, Any], ...] = ()
    sampling: SamplingParams = SamplingParams()
    form: AnswerForm | None = None  # hold the answer to it
    priority: Literal["interactive", "batch"] = "interactive"
    deadline_s: float | None = None  # monotonic; not finished by then: Failed(DeadlineExceeded)
    fresh_until_s: float | None = None  # monotonic; no first token by then: Failed(FrameStale)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """A chosen token and its likeliest rivals."""

    token: str
    token_bytes: bytes
    logprob: float
    top: tuple[tuple[str, bytes, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """New text: whole UTF-8 characters, never a part of a stop string. The first Delta may be empty
    text (the first token exists but is not printable yet)."""

    text: str
    n_tokens: int  # tokens behind this text
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaUse:
    """One frame the model saw, in prompt order; doubled frames appear once."""

    key: str
    n_tokens: int  # visual tokens of its group, counted at the group's first frame, else 0
    warm: bool  # features came from the encoder cache or the KV prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the request cost, in tokens."""

    prompt_tokens: int
    completion_tokens: int
    image_tokens: int  # visual tokens in the prompt, images and video
    cached_tokens: int  # prompt tokens taken from a resident prefix
    media: tuple[MediaUse, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Milliseconds, from admission; stages that did not happen are 0."""

    queue_ms: float = 0.0
    preprocess_ms: float = 0.0
    encode_ms: float = 0.0
    prefill_ms: float = 0.0
    first_token_ms: float = 0.0  # admission to first token
    decode_ms: float = 0.0  # first token to last
    total_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The last event of a request that was answered."""

    reason: Literal["stop", "length"]
    usage: Usage
    timings: Timings


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The last event of a request that was not."""

    error: LiveEdgeError


Event: TypeAlias = Delta | Finished | Failed
