"""The seam between the engine and everything above it: the `Engine` protocol and its values.

Torch-free. `engine.client.EngineClient` is the real one, `testing.engine.FakeEngine` keeps the
same promises; one suite tests both.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from liveedge.core.errors import ContextLengthExceeded
from liveedge.engine.form.forms import AnswerForm
from liveedge.engine.request import Event, FrameInput, GenerateRequest

MIN_MESSAGE_TOKENS = 3  # the template's own: begin, role, end

EngineStatus: TypeAlias = Literal["loading", "ready", "failed", "closed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What the user asked for. `None` means: decided from the device and the model."""

    model_id: str | None = None  # None: the name of the checkpoint folder
    device: Literal["auto", "cpu", "cuda"] = "auto"
    n_slots: int = 8  # answers at once; each holds `max_model_len` tokens of KV memory
    n_windows: int = (
        4  # warm windows at once; each holds a slot too, and one slot is theirs to change
    )
    max_model_len: int | None = None  # None: the model's own limit, at most 4096
    encoder_cache_bytes: int = 256 << 20
    patch_bytes: int = 128 << 20  # preprocessed pixels waiting for the encoder
    prefill_chunk: int = 512  # tokens of prompt processed between two decode steps
    encode_tokens: int = 512  # visual tokens encoded between two decode steps (one group at least)
    queue_capacity: int = 64  # requests waiting for a slot; one more is refused
    threads: int | None = None  # torch threads; None: torch's own choice
    load_threads: int = 2  # workers that load and preprocess frames
    shared_frame_bytes: int = 128 << 20  # pixels on their way to the engine process
    verify_share: float = 0.0  # of answers that reused something: computed again cold and compared
    clock_speed: float = 1.0  # of the engine's clock; the server's is the same


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What a caller must know of the model to ask well."""

    model_id: str
    max_model_len: int
    supports_video: bool
    image_max_pixels: int  # default resize budget of a picture
    video_max_pixels: int  # default resize budget of one frame of a segment
    token_px: int  # a visual token covers token_px x token_px pixels after the resize

    def check_amounts(self, *, n_messages: int, n_parts: int) -> None:
        """Raise ContextLengthExceeded for what cannot fit whatever it says, at no cost."""
        least = MIN_MESSAGE_TOKENS * n_messages
        if least > self.max_model_len:
            raise ContextLengthExceeded(
                f"{n_messages} messages have {least} tokens at least, {self.model_id} takes "
                f"{self.max_model_len}: send fewer"
            )
        if n_parts > self.max_model_len:
            raise ContextLengthExceeded(
                f"the messages have {n_parts} parts, {self.model_id} takes {self.max_model_len} "
                "tokens and a part has one: send fewer"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureGroup:
    """One temporal group in a prompt: encoded, cached and compared as a whole."""

    key: str  # content identity: frame keys and size; equal keys are equal features
    frames: tuple[FrameInput, ...]  # 1 (a picture, doubled by the preprocessor) or 2
    height: int  # pixels after the resize
    width: int
    start: int  # first visual token in the prompt
    n_tokens: int

    @property
    def stop(self) -> int:
        return self.start + self.n_tokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedRequest:
    """A request that passed every check that needs no device: it fits and can be run."""

    request: GenerateRequest
    ids: NDArray[np.int64]  # [n_tokens] prompt token ids
    positions: NDArray[np.int64]  # [3, n_tokens] rotary positions
    position_delta: int  # position of generated token i is n_tokens + i + position_delta
    identity: NDArray[np.int64]  # [n_tokens] equal prefix of identities = equal KV prefix
    groups: tuple[FeatureGroup, ...]  # by start
    image_tokens: int
    max_new_tokens: int  # sampling.max_tokens, cut to what the context leaves

    @property
    def n_tokens(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowPrefix:
    """What a warm window must hold next: a prompt that ends with its last visual token."""

    window_id: str
    prepared: PreparedRequest  # made by `prepare_window`; its request_id is unique


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmed:
    """What it cost to bring a window up to date. Superseded: a newer prefix of the same window came
    before this one was done, or the window was dropped."""

    superseded: bool
    n_tokens: int  # of the prefix
    n_prefilled: int  # tokens computed; the rest was resident
    n_encoded: int  # temporal groups encoded; the others were in the cache
    busy_s: float  # time of the device's thread


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Gauges (marked: zero when nothing runs) and counters since the start."""

    n_restarts: int = 0  # of the engine process
    queue_depth: int = 0  # zero when idle
    running: int = 0  # zero when idle: requests that hold a slot
    slots_total: int = 0
    slots_used: int = 0  # zero when idle
    resident_tokens: int = 0  # prompt and answer tokens kept for reuse
    encoder_cache_bytes: int = 0
    encoder_cache_capacity_bytes: int = 0
    encoder_pinned_bytes: int = 0  # zero when idle
    encoder_hits: int = 0  # groups that needed no encoding
    encoder_misses: int = 0
    loads_in_flight: int = 0  # zero when idle
    patch_bytes: int = 0  # zero when idle: preprocessed pixels waiting for the encoder
    prefix_hits: int = 0  # requests that reused a resident prefix
    prefix_tokens_reused: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    refused: int = 0  # queue full
    steps: int = 0
    windows: int = 0  # warm windows that hold a slot
    warm_updates: int = 0  # prefixes of windows completed
    warm_superseded: int = 0
    warm_failed: int = 0
    warm_encoded: int = 0  # groups
    warm_prefilled: int = 0  # tokens
    warm_busy_s: float = 0.0
    stale: int = 0  # dropped before the first token: the evidence became older than asked
    predicted_late: int = 0  # refused: the answer could not have come in time
    verified: int = 0  # answers computed again cold
    verified_with_cached_features: int = 0  # the same, but pixels were gone: not encoded again
    verify_differences: int = 0
    verify_skipped: int = 0  # chosen, but a frame and its features were gone or too many waited
    shared_frame_bytes: int = 0  # zero when idle: pixels on their way to the engine process


class Engine(Protocol):
    """A model that answers. Methods may be called from any thread, `generate` in an event loop."""

    @property
    def model(self) -> ModelInfo: ...

    def status(self) -> EngineStatus: ...

    @property
    def n_starts(self) -> int:
        """How often the model became ready: one more after each restart, and all windows are gone."""
        ...

    def retry_after_s(self) -> float:
        """While it loads: when a client may ask again, roughly; a second at least."""
        ...

    async def ready(self) -> None:
        """Return once the model answers; raise what made loading fail."""
        ...

    def startup_ms(self) -> Mapping[str, float]:
        """Where the time of the start went, by stage, in order."""
        ...

    def check_form(self, form: AnswerForm) -> None:
        """Check whether answers can be held to a form. A new form may take seconds: call this
        before `prepare`, on a thread of its own; one that was used before takes no time.

        Raises ResponseFormatUnsupported, or QueueFull where too many new ones come at once.
        """
        ...

    def prepare(self, request: GenerateRequest) -> PreparedRequest:
        """Count, check and expand. Pure CPU work of about a millisecond; loads no frame.

        Raises ContextLengthExceeded, MediaTooLarge, ModelVideoUnsupported, MediaInvalid, and what
        `check_form` raises.
        """
        ...

    def prepare_window(self, request: GenerateRequest) -> PreparedRequest:
        """Like `prepare`, cut behind the last visual token: what is common to every question whose
        messages begin like these. At least one message must have media."""
        ...

    async def warm(self, prefix: WindowPrefix) -> Warmed:
        """Bring a window up to date in the background and return once questions can fork it.

        A window keeps one slot; the one before serves until the new one is complete. The newest call
        for a window wins: the ones before return `superseded`, but never two that were begun in a
        row, so a window whose frames come too fast still gets on. Cancelling gives up. Raises
        WindowLimitReached, ModelUnavailable, and what loading a frame raises.
        """
        ...

    def drop_window(self, window_id: str) -> None:
        """Give the window's slot back. Unknown ids are ignored."""
        ...

    def generate(self, prepared: PreparedRequest) -> AsyncGenerator[Event, None]:
        """Deltas, then exactly one `Finished` or `Failed`. Leaving early aborts within one step.

        Raises QueueFull or ModelUnavailable before the first event. Hold it with
        `contextlib.aclosing`: breaking out of an `async for` alone does not run its clean-up.
        """
        ...

    def stats(self) -> EngineStats: ...

    def close(self) -> None:
        """End every request with Failed(ModelUnavailable) and stop the threads."""
        ...
