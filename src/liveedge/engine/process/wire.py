"""The messages of `messages` as bytes, for the socket between the two halves of an engine.

Both ends run the same version, so nothing here needs to be compatible. Plain values go as they are;
what cannot travel is replaced here and nowhere else: arrays become bytes, errors their class name
and message, forms JSON. The words of a prompt are not sent, its tokens say it all; nor are
functions: a frame of the other side cannot be loaded on this one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias, assert_never

import msgspec
import numpy as np
from numpy.typing import NDArray

from liveedge.core import errors
from liveedge.core.errors import InternalError, LiveEdgeError, RegionMismatch, RequestInvalid
from liveedge.core.log import LogFormat
from liveedge.engine.form.forms import (
    AnswerForm,
    ChoiceForm,
    FunctionForm,
    JsonForm,
    PlainForm,
    RegexForm,
    ToolForm,
)
from liveedge.engine.interface import (
    EngineSettings,
    EngineStats,
    FeatureGroup,
    PreparedRequest,
    Warmed,
    WindowPrefix,
)
from liveedge.engine.process.messages import (
    Abort,
    Compile,
    DropFetch,
    DropWindow,
    Fetch,
    Fetched,
    Freed,
    FromEngine,
    LeftQueue,
    Opened,
    OpenFailed,
    Ping,
    Pong,
    Released,
    SharedPixels,
    Stop,
    Submit,
    ToEngine,
    Turned,
    Warm,
)
from liveedge.engine.request import (
    Delta,
    Event,
    Failed,
    Finished,
    FrameInput,
    GenerateRequest,
    SamplingParams,
    Timings,
    TokenLogprob,
    Usage,
)

SEED_RANGE = 1 << 63  # the sampler takes seeds modulo this
AXES = 3  # of rotary positions


class Message(msgspec.Struct, array_like=True, gc=False):
    """Base of what is written: values by position, without names."""


# parts


class WireError(Message):
    """An error by the name of its class."""

    name: str
    message: str
    retry_after_s: float | None
    details: dict[str, Any]  # what a class has beyond these


class WireFrame(Message):
    """A frame without its pixels."""

    key: str
    width: int
    height: int
    time_s: float


class WireGroup(Message):
    """A temporal group of a prompt."""

    key: str
    frames: tuple[WireFrame, ...]
    height: int
    width: int
    start: int
    n_tokens: int


FormKind: TypeAlias = Literal["json", "choice", "regex", "tools"]


class WirePrepared(Message):
    """A prepared request without its words."""

    request_id: str
    sampling: SamplingParams  # seed in range, no stop strings
    stop: tuple[bytes, ...]
    form: tuple[FormKind, str] | None
    priority: Literal["interactive", "batch"]
    deadline_s: float | None
    fresh_until_s: float | None
    ids: bytes
    positions: bytes
    position_delta: int
    identity: bytes
    groups: tuple[WireGroup, ...]
    image_tokens: int
    max_new_tokens: int


class WireDelta(Message, tag="delta"):
    """See `Delta`."""

    text: str
    n_tokens: int
    logprobs: tuple[TokenLogprob, ...]


class WireFinished(Message, tag="finished"):
    """See `Finished`."""

    reason: Literal["stop", "length"]
    usage: Usage
    timings: Timings


class WireFailed(Message, tag="failed"):
    """See `Failed`."""

    error: WireError


class WireWarmed(Message, tag="warmed"):
    """See `Warmed`."""

    value: Warmed


WireEvent: TypeAlias = WireDelta | WireFinished | WireFailed | WireWarmed

# to the engine


class Open(Message, tag="open"):
    """The first message: what to run. It has no counterpart in `messages`: a thread is called."""

    folder: str
    settings: EngineSettings  # with the device that was found
    frame_bytes: int  # of the shared memory
    log_level: int
    log_format: LogFormat
    first_ticket: int  # of this process's fetches; no two processes have the same ones


class WireSubmit(Message, tag="submit"):
    """See `Submit`."""

    prepared: WirePrepared
    now_s: float


class WireAbort(Message, tag="abort"):
    """See `Abort`."""

    request_id: str


class WireWarm(Message, tag="warm"):
    """See `Warm`."""

    window_id: str
    prepared: WirePrepared
    now_s: float


class WireDropWindow(Message, tag="drop_window"):
    """See `DropWindow`."""

    window_id: str


class WirePing(Message, tag="ping"):
    """See `Ping`."""

    number: int


class WireStop(Message, tag="stop"):
    """See `Stop`."""


class WireCompile(Message, tag="compile"):
    """See `Compile`."""

    grammar: str


class WireFetched(Message, tag="fetched"):
    """See `Fetched`."""

    ticket: int
    outcome: SharedPixels | WireError


WireToEngine: TypeAlias = (
    Open
    | WireSubmit
    | WireAbort
    | WireWarm
    | WireDropWindow
    | WirePing
    | WireStop
    | WireCompile
    | WireFetched
)

# from the engine


class WireOpened(Message, tag="opened"):
    """See `Opened`."""

    startup_ms: dict[str, float]


class WireOpenFailed(Message, tag="open_failed"):
    """See `OpenFailed`."""

    error: WireError


class WireLeftQueue(Message, tag="left_queue"):
    """See `LeftQueue`."""

    request_ids: tuple[str, ...]


class WireReleased(Message, tag="released"):
    """See `Released`."""

    request_ids: tuple[str, ...]


class WireTurned(Message, tag="turned"):
    """See `Turned`."""

    events: tuple[tuple[str, WireEvent], ...]
    stats: EngineStats | None


class WirePong(Message, tag="pong"):
    """See `Pong`."""

    number: int


class WireFetch(Message, tag="fetch"):
    """See `Fetch`."""

    ticket: int
    key: str
    only_exact: bool


class WireDropFetch(Message, tag="drop_fetch"):
    """See `DropFetch`."""

    tickets: tuple[int, ...]


class WireFreed(Message, tag="freed"):
    """See `Freed`."""

    ticket: int


WireFromEngine: TypeAlias = (
    WireOpened
    | WireOpenFailed
    | WireLeftQueue
    | WireReleased
    | WireTurned
    | WirePong
    | WireFetch
    | WireDropFetch
    | WireFreed
)

_ENCODER = msgspec.msgpack.Encoder()
_TO_ENGINE = msgspec.msgpack.Decoder(WireToEngine)
_FROM_ENGINE = msgspec.msgpack.Decoder(WireFromEngine)


def pack(message: ToEngine | FromEngine | Open) -> bytes:
    """A message as bytes. Any thread."""
    wire = message if isinstance(message, Open) else _to_wire(message)
    return _ENCODER.encode(wire)


def unpack_to_engine(data: bytes) -> ToEngine | Open:
    """What the client said."""
    wire: WireToEngine = _TO_ENGINE.decode(data)
    match wire:
        case Open():
            return wire
        case WireSubmit(prepared, now_s):
            return Submit(_prepared(prepared), now_s)
        case WireWarm(window_id, prepared, now_s):
            prefix = WindowPrefix(window_id=window_id, prepared=_prepared(prepared))
            return Warm(prefix, now_s)
        case WireFetched(ticket, outcome):
            return Fetched(ticket, _error(outcome) if isinstance(outcome, WireError) else outcome)
        case _:
            return _plain_to_engine(wire)


def _plain_to_engine(
    wire: WireAbort | WireDropWindow | WirePing | WireStop | WireCompile,
) -> ToEngine:
    match wire:
        case WireAbort(request_id):
            return Abort(request_id)
        case WireDropWindow(window_id):
            return DropWindow(window_id)
        case WirePing(number):
            return Ping(number)
        case WireStop():
            return Stop()
        case WireCompile(grammar):
            return Compile(grammar)
        case _:
            assert_never(wire)


def unpack_from_engine(data: bytes) -> FromEngine:
    """What the engine said."""
    wire: WireFromEngine = _FROM_ENGINE.decode(data)
    match wire:
        case WireTurned(events, stats):
            return Turned(tuple((name, _event(event)) for name, event in events), stats)
        case WireOpened(startup_ms):
            return Opened(startup_ms)
        case WireOpenFailed(error):
            return OpenFailed(_error(error))
        case WireLeftQueue(request_ids):
            return LeftQueue(request_ids)
        case WireReleased(request_ids):
            return Released(request_ids)
        case _:
            return _plain_from_engine(wire)


def _plain_from_engine(wire: WirePong | WireFetch | WireDropFetch | WireFreed) -> FromEngine:
    match wire:
        case WirePong(number):
            return Pong(number)
        case WireFetch(ticket, key, only_exact):
            return Fetch(ticket, key, only_exact)
        case WireDropFetch(tickets):
            return DropFetch(tickets)
        case WireFreed(ticket):
            return Freed(ticket)
        case _:
            assert_never(wire)


def _to_wire(message: ToEngine | FromEngine) -> Message:
    match message:
        case Turned(events, stats):
            return WireTurned(tuple((name, _wire_event(event)) for name, event in events), stats)
        case Submit(prepared, now_s):
            return WireSubmit(_wire_prepared(prepared), now_s)
        case Warm(prefix, now_s):
            return WireWarm(prefix.window_id, _wire_prepared(prefix.prepared), now_s)
        case Fetched(ticket, outcome):
            return WireFetched(ticket, _wire_outcome(outcome))
        case Opened(startup_ms):
            return WireOpened(dict(startup_ms))
        case OpenFailed(error):
            return WireOpenFailed(_wire_error(error))
        case _:
            return _PLAIN[type(message)](*_values(message))


# Messages whose values go as they are.
_PLAIN: Mapping[type, type[Message]] = {
    Abort: WireAbort,
    DropWindow: WireDropWindow,
    Ping: WirePing,
    Stop: WireStop,
    Compile: WireCompile,
    LeftQueue: WireLeftQueue,
    Released: WireReleased,
    Pong: WirePong,
    Fetch: WireFetch,
    DropFetch: WireDropFetch,
    Freed: WireFreed,
}


def _values(message: ToEngine | FromEngine) -> list[Any]:
    return [getattr(message, name) for name in message.__match_args__]


def _wire_outcome(outcome: object) -> SharedPixels | WireError:
    if isinstance(outcome, LiveEdgeError):
        return _wire_error(outcome)
    assert isinstance(outcome, SharedPixels), "pixels travel in shared memory alone"
    return outcome


# errors

ERRORS: Mapping[str, type[LiveEdgeError]] = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, LiveEdgeError)
}


def _wire_error(error: LiveEdgeError) -> WireError:
    details: dict[str, Any] = {}
    if isinstance(error, RequestInvalid):
        details = {"loc": error.loc}
    elif isinstance(error, RegionMismatch):
        details = {"expected": error.expected, "requested": error.requested}
    return WireError(type(error).__name__, _text(error.message), error.retry_after_s, details)


def _error(wire: WireError) -> LiveEdgeError:
    kind = ERRORS.get(wire.name, InternalError)
    error: LiveEdgeError
    if kind is RequestInvalid:
        error = RequestInvalid(wire.message, loc=tuple(wire.details["loc"]))
    elif kind is RegionMismatch:
        error = RegionMismatch(wire.message, **wire.details)
    else:
        error = kind(wire.message)
    error.retry_after_s = wire.retry_after_s
    return error


def _text(text: str) -> str:
    """Messages may quote anything; half a surrogate pair cannot be written."""
    return text.encode("utf-8", "replace").decode()


# events


def _wire_event(event: Event | Warmed) -> WireEvent:
    match event:
        case Delta(text=text, n_tokens=n_tokens, logprobs=logprobs):
            return WireDelta(text, n_tokens, logprobs)
        case Finished(reason=reason, usage=usage, timings=timings):
            return WireFinished(reason, usage, timings)
        case Failed(error=error):
            return WireFailed(_wire_error(error))
        case Warmed():
            return WireWarmed(event)
        case _:
            assert_never(event)


def _event(wire: WireEvent) -> Event | Warmed:
    match wire:
        case WireDelta(text, n_tokens, logprobs):
            return Delta(text=text, n_tokens=n_tokens, logprobs=logprobs)
        case WireFinished(reason, usage, timings):
            return Finished(reason=reason, usage=usage, timings=timings)
        case WireFailed(error):
            return Failed(error=_error(error))
        case WireWarmed(value):
            return value
        case _:
            assert_never(wire)


# requests


def _wire_prepared(prepared: PreparedRequest) -> WirePrepared:
    request = prepared.request
    sampling = request.sampling
    seed = None if sampling.seed is None else sampling.seed % SEED_RANGE
    return WirePrepared(
        request_id=request.request_id,
        sampling=replace(sampling, seed=seed, stop=()),
        stop=tuple(text.encode("utf-8", "surrogatepass") for text in sampling.stop),
        form=None if request.form is None else _wire_form(request.form),
        priority=request.priority,
        deadline_s=request.deadline_s,
        fresh_until_s=request.fresh_until_s,
        ids=_bytes(prepared.ids),
        positions=_bytes(prepared.positions),
        position_delta=prepared.position_delta,
        identity=_bytes(prepared.identity),
        groups=tuple(map(_wire_group, prepared.groups)),
        image_tokens=prepared.image_tokens,
        max_new_tokens=prepared.max_new_tokens,
    )


def _prepared(wire: WirePrepared) -> PreparedRequest:
    stop = tuple(data.decode("utf-8", "surrogatepass") for data in wire.stop)
    return PreparedRequest(
        request=GenerateRequest(
            request_id=wire.request_id,
            messages=(),
            sampling=replace(wire.sampling, stop=stop),
            form=None if wire.form is None else _form(*wire.form),
            priority=wire.priority,
            deadline_s=wire.deadline_s,
            fresh_until_s=wire.fresh_until_s,
        ),
        ids=_array(wire.ids),
        positions=_array(wire.positions).reshape(AXES, -1),
        position_delta=wire.position_delta,
        identity=_array(wire.identity),
        groups=tuple(map(_group, wire.groups)),
        image_tokens=wire.image_tokens,
        max_new_tokens=wire.max_new_tokens,
    )


def _wire_form(form: AnswerForm) -> tuple[FormKind, str]:
    """Its kind, and the rest as JSON: that has room for what no text of the wire may hold."""
    match form:
        case JsonForm(schema):
            return "json", json.dumps(dict(schema))
        case ChoiceForm(choices):
            return "choice", json.dumps(choices)
        case RegexForm(pattern):
            return "regex", json.dumps(pattern)
        case ToolForm():
            return "tools", json.dumps(_tool_fields(form))
        case _:
            assert_never(form)


def _tool_fields(form: ToolForm) -> list[object]:
    functions = [(one.name, dict(one.arguments), one.strict) for one in form.functions]
    instead = None if form.instead is None else _wire_form(form.instead)
    return [functions, form.must, form.most, instead]


def _form(kind: FormKind, text: str) -> AnswerForm:
    value = json.loads(text)
    if kind != "tools":
        return _plain_form(kind, value)
    functions, must, most, instead = value
    return ToolForm(
        tuple(FunctionForm(*function) for function in functions),
        must=must,
        most=most,
        instead=None if instead is None else _plain_form(instead[0], json.loads(instead[1])),
    )


def _plain_form(kind: Literal["json", "choice", "regex"], value: Any) -> PlainForm:
    match kind:
        case "json":
            return JsonForm(value)
        case "choice":
            return ChoiceForm(tuple(value))
        case "regex":
            return RegexForm(value)
        case _:
            assert_never(kind)


def _wire_group(group: FeatureGroup) -> WireGroup:
    return WireGroup(
        key=group.key,
        frames=tuple(WireFrame(f.key, f.width, f.height, f.time_s) for f in group.frames),
        height=group.height,
        width=group.width,
        start=group.start,
        n_tokens=group.n_tokens,
    )


def _group(wire: WireGroup) -> FeatureGroup:
    return FeatureGroup(
        key=wire.key,
        frames=tuple(map(_frame, wire.frames)),
        height=wire.height,
        width=wire.width,
        start=wire.start,
        n_tokens=wire.n_tokens,
    )


def _frame(wire: WireFrame) -> FrameInput:
    return FrameInput(
        key=wire.key, width=wire.width, height=wire.height, time_s=wire.time_s, load=_is_elsewhere
    )


def _is_elsewhere() -> NDArray[np.uint8]:
    raise InternalError("the pixels of this frame are in the other process: fetch them")


def _bytes(values: NDArray[np.int64]) -> bytes:
    return np.ascontiguousarray(values, dtype=np.int64).tobytes()


def _array(data: bytes) -> NDArray[np.int64]:
    # A copy, because torch shares memory only with arrays that it may write to.
    return np.frombuffer(data, dtype=np.int64).copy()
