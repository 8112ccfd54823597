"""Messages and media sizes to token ids, positions and the places of visual tokens. Torch-free.

The template writes one media token per part; here each becomes its groups: an image its visual
tokens, a video for every temporal group its time and its visual tokens. Only tokens that the
template wrote count (see `template`). No pixel is needed, only sizes and times, so the length of a
prompt is known before any decoding.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from liveedge.core.errors import CheckpointInvalid
from liveedge.models.qwen3_vl.config import load_config, load_pixel_config
from liveedge.models.qwen3_vl.geometry import fit, fit_frame
from liveedge.models.qwen3_vl.positions import mrope_positions
from liveedge.models.qwen3_vl.template import ChatTemplate, unmark
from liveedge.models.qwen3_vl.vocabulary import Vocabulary

IMAGE_PAD: Final = "<|image_pad|>"
VIDEO_PAD: Final = "<|video_pad|>"
VISION_START: Final = "<|vision_start|>"
VISION_END: Final = "<|vision_end|>"
N_REMEMBERED: Final = 1024  # texts between special tokens: the template's own and times recur
MAX_REMEMBERED_CHARS: Final = 256  # of one text, so that the memory is bounded


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSpec:
    """One image or video part, by its size alone."""

    kind: Literal["image", "video"]
    height: int  # pixels, upright
    width: int
    times_s: tuple[float, ...] = (0.0,)  # of each frame; an image has one
    max_pixels: int | None = None  # per frame; None: the model's own


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSpan:
    """The visual tokens of one temporal group in the prompt."""

    media_index: int  # which media part, in the order of the messages
    group_index: int  # which group of that part
    start: int  # first visual token
    n_tokens: int
    grid_hw: tuple[int, int]  # patches
    size_hw: tuple[int, int]  # pixels after resizing
    frame_indices: tuple[int, int]  # frames of the part in this group; equal where one is doubled


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What the model reads."""

    ids: NDArray[np.int64]  # [n]
    spans: tuple[MediaSpan, ...]  # by start
    positions: NDArray[np.int64]  # [3, n]
    position_delta: int  # token number n of the answer sits at n + position_delta

    @property
    def image_tokens(self) -> int:
        """Visual tokens, of images and of videos."""
        return sum(span.n_tokens for span in self.spans)


@dataclass(frozen=True, slots=True)
class _Visual:
    """A run of visual tokens before its place in the prompt is known."""

    token_id: int
    media_index: int
    group_index: int
    size_hw: tuple[int, int]
    frame_indices: tuple[int, int]


_Piece: TypeAlias = str | int | _Visual  # text, a special token, visual tokens


class TextTooLong(Exception):
    """The text alone has more tokens than it may have; how many, nobody counted."""


class PromptBuilder:
    """Builds prompts for one checkpoint. Immutable after construction; any thread."""

    def __init__(self, folder: Path) -> None:
        self.config = load_config(folder)
        self.pixels = load_pixel_config(folder, self.config.vision)
        self.vocabulary = Vocabulary(folder)
        self._template = ChatTemplate(folder, list(self.vocabulary.special))
        self._remembered = lru_cache(N_REMEMBERED)(self._encode)
        self._vision_start = self.vocabulary.id_of(VISION_START)
        self._vision_end = self.vocabulary.id_of(VISION_END)
        self._pads: dict[int, Literal["image", "video"]] = {
            self._checked_id(IMAGE_PAD, self.config.image_token_id): "image",
            self._checked_id(VIDEO_PAD, self.config.video_token_id): "video",
        }

    @property
    def max_model_len(self) -> int:
        """Tokens the model was made for, prompt and answer together."""
        return self.config.text.max_position

    @property
    def renders_tools(self) -> bool:
        """Whether the chat template writes tools, calls and results into the prompt."""
        return self._template.renders_tools

    def size_of(self, media: MediaSpec) -> tuple[int, int]:
        """(height, width) of every frame of a part after resizing."""
        budget = self.pixels.image if media.kind == "image" else self.pixels.video
        budget = budget.capped(media.max_pixels)
        resize = fit if media.kind == "image" else fit_frame
        return resize(
            media.height,
            media.width,
            min_pixels=budget.min_pixels,
            max_pixels=budget.max_pixels,
            factor=self.config.vision.factor,
        )

    def build(
        self,
        messages: Sequence[Mapping[str, Any]],
        media: Sequence[MediaSpec] = (),
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        add_generation_prompt: bool = True,
        max_text_tokens: int = sys.maxsize,
    ) -> Prompt:
        """The prompt of a conversation in the chat format of Hugging Face.

        A message has `role` and `content`, a string or parts `{"type": "text", "text": ...}`,
        `{"type": "image"}`, `{"type": "video"}`, and may have `tool_calls`. `media` describes the
        image and video parts in order.

        Raises TextTooLong where `max_text_tokens` of text are counted and much of it is left.
        """
        text = self._template.render(messages, tools, add_generation_prompt=add_generation_prompt)
        ids: list[int] = []
        spans: list[MediaSpan] = []
        n_left = max_text_tokens
        for piece in _joined(self._pieces(text, media)):
            if isinstance(piece, str):
                text_ids = self._text(piece, n_left)
                n_left -= len(text_ids)
                ids += text_ids
            elif isinstance(piece, int):
                ids.append(piece)
            else:
                span = self._span(piece, len(ids))
                spans.append(span)
                ids += [piece.token_id] * span.n_tokens
        positions, delta = mrope_positions(len(ids), map(self._merged, spans))
        return Prompt(
            ids=np.array(ids, dtype=np.int64),
            spans=tuple(spans),
            positions=positions,
            position_delta=delta,
        )

    def _text(self, piece: str, n_left: int) -> list[int]:
        """A little too much is counted to the end, so that it can be told exactly."""
        if len(piece) <= MAX_REMEMBERED_CHARS:
            return self._remembered(piece)
        ids = None
        if n_left >= 0:
            ids = self.vocabulary.encode_unless_longer(unmark(piece), n_left)
        if ids is None:
            raise TextTooLong
        return ids

    def _encode(self, piece: str) -> list[int]:
        return self.vocabulary.encode_plain(unmark(piece))

    def _pieces(self, text: str, media: Sequence[MediaSpec]) -> Iterator[_Piece]:
        vocabulary = self.vocabulary
        done, n_media = 0, 0
        for match in vocabulary.special_pattern.finditer(text):
            yield text[done : match.start()]
            done = match.end()
            token_id = vocabulary.special[match.group()]
            kind = self._pads.get(token_id)
            if kind is None:
                yield token_id
                continue
            if n_media >= len(media) or media[n_media].kind != kind:
                raise _wrong_media(media)
            expand = self._image if kind == "image" else self._video
            yield from expand(token_id, n_media, media[n_media])
            n_media += 1
        yield text[done:]
        if n_media != len(media):
            raise _wrong_media(media)

    def _image(self, token_id: int, index: int, media: MediaSpec) -> Iterator[_Piece]:
        yield _Visual(token_id, index, 0, self.size_of(media), (0, 0))

    def _video(self, token_id: int, index: int, media: MediaSpec) -> Iterator[_Piece]:
        size, times = self.size_of(media), media.times_s
        for first in range(0, len(times), 2):
            second = min(first + 1, len(times) - 1)  # an odd last frame is doubled
            yield f"<{(times[first] + times[second]) / 2:.1f} seconds>"
            yield self._vision_start
            yield _Visual(token_id, index, first // 2, size, (first, second))
            yield self._vision_end

    def _span(self, visual: _Visual, start: int) -> MediaSpan:
        patch, merge = self.config.vision.patch_size, self.config.vision.merge_size
        rows, columns = visual.size_hw[0] // patch, visual.size_hw[1] // patch
        return MediaSpan(
            media_index=visual.media_index,
            group_index=visual.group_index,
            start=start,
            n_tokens=rows * columns // merge**2,
            grid_hw=(rows, columns),
            size_hw=visual.size_hw,
            frame_indices=visual.frame_indices,
        )

    def _merged(self, span: MediaSpan) -> tuple[int, int, int]:
        merge = self.config.vision.merge_size
        return span.start, span.grid_hw[0] // merge, span.grid_hw[1] // merge

    def _checked_id(self, token: str, configured: int) -> int:
        token_id = self.vocabulary.id_of(token)
        if token_id != configured:
            raise CheckpointInvalid(
                f"tokenizer.json gives {token} the id {token_id}, config.json says {configured}"
            )
        return token_id


def _joined(pieces: Iterator[_Piece]) -> Iterator[_Piece]:
    """Neighbouring texts as one: tokens may reach over the seam between template and user."""
    text = ""
    for piece in pieces:
        if isinstance(piece, str):
            text += piece
            continue
        if text:
            yield text
        text = ""
        yield piece
    if text:
        yield text


def _wrong_media(media: Sequence[MediaSpec]) -> CheckpointInvalid:
    kinds = ", ".join(part.kind for part in media) or "none"
    return CheckpointInvalid(
        f"the chat template does not write one media token per media part (parts: {kinds})"
    )
