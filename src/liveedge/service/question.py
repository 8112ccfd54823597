"""What is asked and what is answered, as values: `api` fills questions and encodes answers.

Nothing here knows HTTP, the model or a stream.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from liveedge.engine.form.forms import AnswerForm
from liveedge.engine.request import SamplingParams, TokenLogprob
from liveedge.service.caller import Caller

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
Priority: TypeAlias = Literal["interactive", "batch"]


@dataclass(frozen=True, slots=True)
class TextContent:
    """Words."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaContent:
    """A picture or a segment by URL: an `ovs://` reference or a `data:` upload."""

    kind: Literal["image", "video"]
    url: str = field(repr=False)  # may be megabytes of somebody's picture
    where: str  # names the part in errors: `messages[0].content[1]`


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownContent:
    """A part of a type nobody knows. Kept until it can be refused in the order of checks."""

    type: str
    where: str


Content: TypeAlias = TextContent | MediaContent | UnknownContent


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message of the conversation."""

    role: Role
    content: tuple[Content, ...]
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    tool_call_id: str | None = None  # of role tool: which call this is the result of


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What the model may call, as OpenAI's `tools`, `tool_choice` and `parallel_tool_calls`."""

    offered: tuple[Mapping[str, Any], ...] = ()  # each {"type": "function", "function": {...}}
    choice: Literal["auto", "none", "required"] = "auto"
    only: str | None = None  # the one function that has to be called; `choice` is then "required"
    parallel: bool = True  # several calls in one answer


NO_TOOLS = Tools()


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One chat request after validation."""

    request_id: str
    tenant: str
    model: str
    turns: tuple[Turn, ...]
    sampling: SamplingParams
    n: int = 1
    form: AnswerForm | None = None  # hold the answer to it
    tools: Tools = NO_TOOLS
    unsupported: tuple[str, ...] = ()  # fields that were set, matter, and cannot be honoured yet
    thread_id: str | None = None
    timeout_ms: int | None = None
    max_age_ms: int | None = None  # for every reference that names none
    priority: Priority = "interactive"
    region: str | None = None
    sent: Mapping[str, Any] = field(default_factory=dict)  # options as sent, for other servers
    admitted_s: float | None = None  # monotonic; None: when it is answered
    caller: Caller | None = None  # whose limits hold; None: those of every key, by tenant
    traceparent: str | None = None  # the client's span, as its header says it: for traces alone

    @property
    def n_chars(self) -> int:
        """Of its texts, of its calls and of its tools as they are written, roughly."""
        texts = (
            len(part.text)
            for turn in self.turns
            for part in turn.content
            if isinstance(part, TextContent)
        )
        calls = sum(len(str(call)) for turn in self.turns for call in turn.tool_calls)
        return sum(texts) + calls + sum(len(str(tool)) for tool in self.tools.offered)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameUse:
    """One frame as the model saw it. An upload has no stream, index or capture time."""

    stream_id: str | None
    frame_index: int | None
    timestamp_ms: int | None  # of the stream's clock, or of the uploaded clip's
    captured_at_ms: int | None
    width: int
    height: int
    n_tokens: int
    warm: bool
    corrupt: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """Why another model answered than the one that was asked."""

    requested: str
    because: str  # the code of its error


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an answer cost and what it rests on."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    image_tokens: int
    frames: tuple[FrameUse, ...]
    evidence_at_ms: int | None  # capture time of the newest stream frame used
    age_ms: int | None  # its age at the first token
    timings_ms: Mapping[str, float]
    corrupt_frames: int  # undecodable frames of uploaded clips, left out
    thread_id: str | None = None
    provider: str | None = None  # None: our own model
    fallback: Fallback | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredBy:
    """Another model answers than the one that was asked; comes first."""

    model: str
    choice: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """New text of one choice."""

    choice: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta:
    """A piece of a tool call. The first one of a call carries its id and its name."""

    choice: int
    index: int  # of the call within its choice, from 0
    id: str | None = None
    name: str | None = None
    arguments: str = ""  # a piece of JSON text


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceEnd:
    """A choice is complete; the report is of this choice."""

    choice: int
    reason: Literal["stop", "length", "tool_calls", "content_filter"]
    report: Report


AnswerEvent: TypeAlias = AnsweredBy | TextDelta | ToolCallDelta | ChoiceEnd


class Answers(Protocol):
    """Whatever answers questions: our own model, somebody else's, or a choice between them."""

    def answer(self, question: Question) -> AsyncGenerator[AnswerEvent, None]:
        """Each choice as it comes, and each choice's end; raises a LiveEdgeError where there is
        none. Hold it with `aclosing`: leaving early ends the work."""
        ...
