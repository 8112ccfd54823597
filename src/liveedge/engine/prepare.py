"""Requests to prepared prompts: every check that needs no device. Torch-free, any thread.

This half of the engine runs where the HTTP server runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liveedge.core.errors import (
    ContextLengthExceeded,
    MediaTooLarge,
    ModelVideoUnsupported,
    ParameterUnsupported,
)
from liveedge.engine.decide.prefix import prompt_identity
from liveedge.engine.form.schema_gate import SchemaGate
from liveedge.engine.interface import FeatureGroup, ModelInfo, PreparedRequest
from liveedge.engine.request import (
    FrameInput,
    GenerateRequest,
    ImagePart,
    Message,
    Part,
    TextPart,
    VideoPart,
)
from liveedge.models.qwen3_vl.prompt import (
    MediaSpan,
    MediaSpec,
    Prompt,
    PromptBuilder,
    TextTooLong,
)

MARKERS = 2  # around visual tokens: start and end
SEPARATOR = "\x1f"  # between the parts of a content key; occurs in no frame key


class Preparer:
    """Builds and checks prompts for one model. Immutable after construction."""

    def __init__(
        self,
        builder: PromptBuilder,
        *,
        model: ModelInfo,
        max_media_tokens: int,
        schemas: SchemaGate,
    ) -> None:
        self._schemas = schemas
        self._builder = builder
        self._model = model
        self._max_media_tokens = max_media_tokens

    def prepare(self, request: GenerateRequest) -> PreparedRequest:
        """The prompt of a request, or the error that says why it cannot be run."""
        if request.form is not None:
            self._schemas.check(request.form)
        prompt, groups = self._build(request, asks=True)
        return PreparedRequest(
            request=request,
            ids=prompt.ids,
            positions=prompt.positions,
            position_delta=prompt.position_delta,
            identity=_identity(prompt.ids, groups, request.tenant),
            groups=groups,
            image_tokens=prompt.image_tokens,
            max_new_tokens=min(
                request.sampling.max_tokens, self._model.max_model_len - len(prompt.ids)
            ),
        )

    def prepare_window(self, request: GenerateRequest) -> PreparedRequest:
        """The prompt up to its last visual token: every question whose messages begin like these has
        it as its prefix, whatever comes after the media."""
        prompt, groups = self._build(request, asks=False)
        if not groups:
            raise ValueError("the messages of a window have a picture or a video, these have none")
        n_tokens = groups[-1].stop
        ids, positions = prompt.ids[:n_tokens], prompt.positions[:, :n_tokens]
        return PreparedRequest(
            request=request,
            ids=ids,
            positions=positions,
            position_delta=int(positions.max()) + 1 - n_tokens,
            identity=_identity(ids, groups, request.tenant),
            groups=groups,
            image_tokens=prompt.image_tokens,
            max_new_tokens=0,
        )

    def _build(
        self, request: GenerateRequest, *, asks: bool
    ) -> tuple[Prompt, tuple[FeatureGroup, ...]]:
        """`asks`: with what the template writes where the answer begins."""
        media = [part for m in request.messages for part in m.content if not _is_text(part)]
        self._check_video(media)
        self._check_tools(request)
        self._check_sizes(request)
        frames = [_frames(part) for part in media]
        specs = [self._spec(part) for part in media]
        try:
            prompt = self._builder.build(
                [_chat(message) for message in request.messages],
                specs,
                request.tools,
                add_generation_prompt=asks,
                max_text_tokens=self._limit,
            )
        except TextTooLong as error:
            raise self._text_too_long(frames) from error
        groups = tuple(_group(span, frames[span.media_index]) for span in prompt.spans)
        self._check_length(prompt)
        self._check_media(groups)
        return prompt, groups

    def _check_video(self, media: Sequence[Part]) -> None:
        if not self._model.supports_video and any(isinstance(p, VideoPart) for p in media):
            raise ModelVideoUnsupported(
                f"{self._model.model_id} takes pictures only: ask about a single frame (image_url)"
            )

    def _check_tools(self, request: GenerateRequest) -> None:
        """A template without tools would leave them out, and calls in the conversation too."""
        has_some = request.tools or any(message.tool_calls for message in request.messages)
        if has_some and not self._builder.renders_tools:
            raise ParameterUnsupported(
                f"tools: the chat template of {self._model.model_id} cannot show tools and calls to"
                " the model, so they would be lost; leave tools and tool_calls out, or serve a"
                " checkpoint whose template has them"
            )

    def _check_sizes(self, request: GenerateRequest) -> None:
        """Refuse what cannot fit before anything is spent on templating and counting."""
        self._model.check_amounts(
            n_messages=sum(1 + len(message.tool_calls) for message in request.messages),
            n_parts=sum(len(message.content) for message in request.messages),
        )
        n_bytes = sum(map(_n_bytes, request.messages)) + _text_bytes(request.tools)
        # As many tokens are at most as many bytes: ordinary texts are done here.
        if n_bytes <= self._limit:
            return
        most_bytes = self._builder.vocabulary.most_bytes(self._limit)
        if most_bytes is not None and n_bytes > most_bytes:
            raise ContextLengthExceeded(
                f"the text has {n_bytes} bytes; {self._model.model_id} takes {self._limit} tokens,"
                f" which is about {4 * self._limit} characters: shorten it"
            )

    @property
    def _limit(self) -> int:
        """Tokens of a prompt: the answer has one at least."""
        return self._model.max_model_len - 1

    def _text_too_long(self, frames: Sequence[tuple[FrameInput, ...]]) -> ContextLengthExceeded:
        message = (
            f"the text alone has more than {self._limit} tokens, which is all that"
            f" {self._model.model_id} takes: shorten it"
        )
        if n_frames := sum(len({frame.key for frame in part}) for part in frames):
            message += f"; of {n_frames} frames about 0 would fit"
        return ContextLengthExceeded(message)

    def _spec(self, part: Part) -> MediaSpec:
        frames = _frames(part)
        video = isinstance(part, VideoPart)
        limit = self._model.video_max_pixels if video else self._model.image_max_pixels
        asked = None if isinstance(part, TextPart) else part.max_pixels
        return MediaSpec(
            kind="video" if video else "image",
            height=frames[0].height,
            width=frames[0].width,
            times_s=tuple(frame.time_s for frame in frames) if video else (0.0,),
            max_pixels=limit if asked is None else min(limit, asked),
        )

    def _check_length(self, prompt: Prompt) -> None:
        limit = self._limit
        n_tokens, n_media = len(prompt.ids), prompt.image_tokens
        if n_tokens <= limit:
            return
        message = (
            f"the prompt has {n_tokens} tokens ({n_media} of pictures and frames), "
            f"{self._model.model_id} takes {limit}"
        )
        if prompt.spans:
            n_frames = sum(map(_n_frames, prompt.spans))
            fits = _n_that_fit(prompt.spans, n_tokens - limit)
            message += (
                f": of {n_frames} frames about {fits} would fit; send fewer, or lower max_pixels"
            )
        raise ContextLengthExceeded(message)

    def _check_media(self, groups: Sequence[FeatureGroup]) -> None:
        n_tokens = sum({group.key: group.n_tokens for group in groups}.values())
        if n_tokens > self._max_media_tokens:
            raise MediaTooLarge(
                f"the pictures and frames have {n_tokens} visual tokens, the encoder's memory "
                f"holds {self._max_media_tokens}: send fewer, lower max_pixels, or start "
                "the server with a larger --encoder-cache-mb"
            )


def _identity(
    ids: NDArray[np.int64], groups: Sequence[FeatureGroup], tenant: str
) -> NDArray[np.int64]:
    spans = [(group.start, group.n_tokens, group.key) for group in groups]
    return prompt_identity(ids, spans, tenant=tenant)


def _n_that_fit(spans: Sequence[MediaSpan], n_excess: int) -> int:
    """Frames that stay when the first groups are left out until so many tokens are gone."""
    left_out = 0
    for span, n_around in zip(spans, _tokens_around(spans), strict=True):
        if n_excess <= 0:
            break
        n_excess -= span.n_tokens + n_around
        left_out += _n_frames(span)
    return sum(map(_n_frames, spans)) - left_out if n_excess <= 0 else 0


def _tokens_around(spans: Sequence[MediaSpan]) -> list[int]:
    """Start, end and, in a video, the time that goes with each group.

    Between two groups of a video is nothing else; the last one is taken to be like the one before.
    """
    around: list[int] = []
    for span, after in zip(spans, [*spans[1:], None], strict=True):
        if after is not None and after.media_index == span.media_index:
            around.append(after.start - span.start - span.n_tokens)
        else:
            around.append(around[-1] if span.group_index else MARKERS)
    return around


def _n_frames(span: MediaSpan) -> int:
    return len(set(span.frame_indices))


def _n_bytes(message: Message) -> int:
    """Of a message's texts, and of the texts in its calls; without what the template adds."""
    texts = [part.text for part in message.content if isinstance(part, TextPart)]
    return _text_bytes(texts) + _text_bytes(message.tool_calls)


def _text_bytes(value: object) -> int:
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, Mapping):
        return sum(map(_text_bytes, value.values()))
    return sum(map(_text_bytes, value)) if isinstance(value, Sequence) else 0


def _is_text(part: Part) -> bool:
    return isinstance(part, TextPart)


def _frames(part: Part) -> tuple[FrameInput, ...]:
    if isinstance(part, ImagePart):
        return (part.frame,)
    if isinstance(part, TextPart):
        return ()
    sizes = {(frame.width, frame.height) for frame in part.frames}
    if len(sizes) != 1:
        raise ValueError(f"a video part has frames of one size, got {sorted(sizes)}: split it")
    return part.frames


def _chat(message: Message) -> Mapping[str, Any]:
    """A message in the chat format of Hugging Face."""
    chat: dict[str, Any] = {"role": message.role, "content": _content(message.content)}
    if message.tool_calls:
        chat["tool_calls"] = list(message.tool_calls)
    return chat


def _content(parts: Sequence[Part]) -> str | list[dict[str, str]]:
    if all(isinstance(part, TextPart) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, TextPart))
    return [_chat_part(part) for part in parts]


def _chat_part(part: Part) -> dict[str, str]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    return {"type": "image" if isinstance(part, ImagePart) else "video"}


def _group(span: MediaSpan, frames: Sequence[FrameInput]) -> FeatureGroup:
    first, second = (frames[index] for index in span.frame_indices)
    height, width = span.size_hw
    return FeatureGroup(
        key=SEPARATOR.join((first.key, second.key, f"{width}x{height}")),
        frames=(first,) if first.key == second.key else (first, second),
        height=height,
        width=width,
        start=span.start,
        n_tokens=span.n_tokens,
    )
