"""`POST /chat/completions`: a body becomes a question, its answer JSON or an event stream.

Everything that fails before the first token fails as plain HTTP; the response starts with the first
event of the answer. A client that leaves ends the work, in every phase.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from liveedge.api.body import Bodies, parse
from liveedge.api.disconnect import DisconnectGuard
from liveedge.api.encode import (
    Collector,
    Head,
    end_chunk,
    role_chunk,
    text_chunk,
    tool_call_chunk,
    usage_chunk,
)
from liveedge.api.errors import error_object
from liveedge.api.reply import dump
from liveedge.api.schema import ChatBody, ChatMessage, ContentPart, StructuredOutputs
from liveedge.api.schema_tools import ChosenTool
from liveedge.api.sse import DONE, EventStream, event as sse_event
from liveedge.core.clock import Clock
from liveedge.core.errors import LiveEdgeError
from liveedge.engine.form.forms import ANY_OBJECT, AnswerForm, ChoiceForm, JsonForm, RegexForm
from liveedge.engine.request import SamplingParams
from liveedge.service.caller import Caller
from liveedge.service.question import (
    AnsweredBy,
    AnswerEvent,
    Answers,
    ChoiceEnd,
    Content,
    MediaContent,
    Question,
    Role,
    TextContent,
    TextDelta,
    ToolCallDelta,
    Tools,
    Turn,
    UnknownContent,
)
from liveedge.service.tools import in_order_of_calls

# What other servers are told as it was sent; `thread_id`, deadlines and priorities are ours.
PASSED_ON = (
    "max_completion_tokens",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "logprobs",
    "top_logprobs",
    "n",
    "response_format",
    "structured_outputs",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the answer shall be given."""

    stream: bool
    include_usage: bool
    logprobs: bool
    n: int


class ChatEndpoint:
    """Answers questions over HTTP."""

    def __init__(
        self,
        *,
        answers: Answers,
        bodies: Bodies,
        clock: Clock,
        default_max_tokens: int,
        charge: Callable[[HTTPConnection, Caller], None],
    ) -> None:
        self._charge = charge  # raises RateLimited
        self._answers = answers
        self._bodies = bodies
        self._clock = clock
        self._default_max_tokens = default_max_tokens

    def response(self, *, caller: Caller) -> Response:
        """A response that does all the work when it is sent."""
        return _ChatResponse(self, caller)

    async def answer(
        self, request: Request, receive: Receive, send: Send, *, caller: Caller
    ) -> None:
        """Read the body, ask, and send the answer. Raises what fails before the answer starts."""
        # The bytes stay counted until the end: uploads live on in the question.
        async with self._bodies.read(request, owner=caller.tenant) as data:
            body = parse(data, ChatBody)
            question = to_question(
                body,
                caller=caller,
                request_id=request.state.request_id,
                region=request.headers.get("x-overshoot-region"),
                default_max_tokens=self._default_max_tokens,
                traceparent=request.headers.get("traceparent"),
            )
            self._charge(request, caller)
            head = Head(
                id=f"chatcmpl-{uuid.uuid4().hex}",
                created_s=self._clock.wall_ms() // 1000,
                model=body.model,
            )
            events = self._answers.answer(question)
            options = _options(body)
            gathered = Collector(head, n=options.n, logprobs=options.logprobs)
            async with DisconnectGuard(receive) as guard, aclosing(events):
                if options.stream:
                    stream = EventStream(send, clock=self._clock)
                    await _send_events(events, stream, _Writer(stream, gathered, options), guard)
                    return
                async for event in events:
                    gathered.add(event)
                guard.release()
                await _send_json(gathered.completion(), send)


async def _send_events(
    events: AsyncGenerator[AnswerEvent, None],
    stream: EventStream,
    writer: _Writer,
    guard: DisconnectGuard,
) -> None:
    """The answer as it comes. Raises what fails before its first event."""
    first = await anext(events)
    async with stream:
        try:
            await writer.write(first)
            async for event in events:
                await writer.write(event)
            await writer.finish()
        except LiveEdgeError as error:
            await stream.send(sse_event({"error": error_object(error)}))
        guard.release()


class _ChatResponse(Response):
    """Delays everything until the framework has left the stage."""

    def __init__(self, endpoint: ChatEndpoint, caller: Caller) -> None:
        super().__init__()
        self._endpoint = endpoint
        self._caller = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        await self._endpoint.answer(request, receive, send, caller=self._caller)


class _Writer:
    """Answer events as chunks. The role comes with the first event of each choice."""

    def __init__(self, stream: EventStream, gathered: Collector, options: Options) -> None:
        self._stream = stream
        self._gathered = gathered
        self._options = options
        self._begun: set[int] = set()

    async def write(self, event: AnswerEvent) -> None:
        self._gathered.add(event)
        if isinstance(event, AnsweredBy):  # the head of all chunks that follow
            return
        head = self._gathered.head
        if event.choice not in self._begun:
            self._begun.add(event.choice)
            await self._stream.send(sse_event(role_chunk(head, event.choice)))
        match event:
            case ChoiceEnd():
                await self._stream.send(sse_event(end_chunk(head, event)))
            case TextDelta() if event.text or event.logprobs:
                chunk = text_chunk(head, event, logprobs=self._options.logprobs)
                await self._stream.send(sse_event(chunk))
            case ToolCallDelta():
                await self._stream.send(sse_event(tool_call_chunk(head, event)))
            case TextDelta():
                pass  # a token without a visible character yet

    async def finish(self) -> None:
        if self._options.include_usage:
            chunk = usage_chunk(self._gathered.head, self._gathered.reports)
            await self._stream.send(sse_event(chunk))
        await self._stream.send(DONE)


def to_question(
    body: ChatBody,
    *,
    caller: Caller,
    request_id: str,
    region: str | None,
    default_max_tokens: int,
    traceparent: str | None = None,
) -> Question:
    """The body as a question."""
    return Question(
        request_id=request_id,
        tenant=caller.tenant,
        caller=caller,
        model=body.model,
        turns=in_order_of_calls([_turn(i, one) for i, one in enumerate(body.messages)]),
        sampling=_sampling(body, default_max_tokens),
        n=body.n or 1,
        form=_form(body),
        tools=_tools(body),
        unsupported=_unsupported(body),
        thread_id=body.thread_id,
        timeout_ms=body.timeout_ms,
        max_age_ms=body.max_age_ms,
        priority=body.priority or "interactive",
        region=region,
        traceparent=traceparent,
        sent=body.model_dump(mode="json", include=set(PASSED_ON), exclude_none=True, by_alias=True),
    )


def _options(body: ChatBody) -> Options:
    wants_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    return Options(
        stream=bool(body.stream),
        include_usage=wants_usage,
        logprobs=bool(body.logprobs),
        n=body.n or 1,
    )


def _turn(i: int, message: ChatMessage) -> Turn:
    role: Role = "system" if message.role == "developer" else message.role
    content = message.content or ""
    parts: tuple[Content, ...]
    if isinstance(content, str):
        parts = (TextContent(content),)
    else:
        parts = tuple(_content(f"messages[{i}].content[{j}]", p) for j, p in enumerate(content))
    calls = (call.model_dump(exclude_none=True) for call in message.tool_calls or ())
    return Turn(
        role=role, content=parts, tool_calls=tuple(calls), tool_call_id=message.tool_call_id
    )


def _content(where: str, part: ContentPart) -> Content:
    if part.type == "text" and part.text is not None:
        return TextContent(part.text)
    if part.type == "image_url" and part.image_url is not None:
        return MediaContent(kind="image", url=part.image_url.url, where=where)
    if part.type == "video_url" and part.video_url is not None:
        return MediaContent(kind="video", url=part.video_url.url, where=where)
    return UnknownContent(type=part.type, where=where)


def _sampling(body: ChatBody, default_max_tokens: int) -> SamplingParams:
    """What was left out is greedy: what a camera shows is not a matter of chance."""
    return SamplingParams(
        max_tokens=body.max_completion_tokens or body.max_tokens or default_max_tokens,
        temperature=body.temperature or 0.0,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(body.top_k or 0, 0),
        min_p=body.min_p or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        seed=None if body.seed is None else body.seed % 2**63,
        stop=tuple(body.stop or ()),
        logprobs=bool(body.logprobs),
        top_logprobs=body.top_logprobs or 0,
    )


def _form(body: ChatBody) -> AnswerForm | None:
    """At most one of the two fields says something."""
    if body.structured_outputs is not None:
        return _structured(body.structured_outputs)
    wanted = body.response_format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object" or wanted.json_schema is None:
        return ANY_OBJECT
    return JsonForm(wanted.json_schema.schema_ or {})


def _structured(wanted: StructuredOutputs) -> AnswerForm | None:
    if wanted.choice is not None:
        return ChoiceForm(tuple(wanted.choice))
    if wanted.regex is not None:
        return RegexForm(wanted.regex)
    if wanted.json_ is not None:
        return JsonForm(wanted.json_)
    return ANY_OBJECT if wanted.json_object else None


def _tools(body: ChatBody) -> Tools:
    choice = body.tool_choice or "auto"
    offered = (tool for tool in body.tools or () if tool.function is not None)
    named = choice.function if isinstance(choice, ChosenTool) else None
    return Tools(
        offered=tuple(tool.model_dump(exclude_none=True) for tool in offered),
        choice="required" if isinstance(choice, ChosenTool) else choice,
        only=None if named is None else named.name,
        parallel=body.parallel_tool_calls is not False,
    )


def _unsupported(body: ChatBody) -> tuple[str, ...]:
    """Fields whose effect would be lost: not every kind of tool and not every form is known."""
    fields = [
        f"tools[{i}] of type {tool.type!r} (only functions can be called)"
        for i, tool in enumerate(body.tools or ())
        if tool.type != "function"
    ]
    if isinstance(body.tool_choice, ChosenTool) and body.tool_choice.type != "function":
        fields.append(f"tool_choice of type {body.tool_choice.type!r}")
    if body.functions:
        fields.append("functions (send tools)")
    if body.function_call not in (None, "none", "auto"):
        fields.append("function_call (send tool_choice)")
    if body.structured_outputs is not None:
        fields += [
            f"structured_outputs.{name}"
            for name in ("grammar", "structural_tag")
            if getattr(body.structured_outputs, name) is not None
        ]
    return tuple(fields)


async def _send_json(data: Any, send: Send) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": dump(data)})
