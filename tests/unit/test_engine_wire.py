"""Every message arrives in the other process as it was sent; what cannot travel is replaced."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from liveedge.core.errors import (
    FrameEvicted,
    InternalError,
    LiveEdgeError,
    QueueFull,
    RegionMismatch,
    RequestInvalid,
)
from liveedge.engine.form.forms import (
    ChoiceForm,
    FunctionForm,
    JsonForm,
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
    Range,
    Released,
    SharedPixels,
    Stop,
    Submit,
    ToEngine,
    Turned,
    Warm,
)
from liveedge.engine.process.wire import (
    ERRORS,
    SEED_RANGE,
    Open,
    pack,
    unpack_from_engine,
    unpack_to_engine,
)
from liveedge.engine.request import (
    Delta,
    Failed,
    Finished,
    FrameInput,
    GenerateRequest,
    MediaUse,
    Message,
    SamplingParams,
    TextPart,
    Timings,
    TokenLogprob,
    Usage,
)

counts = st.integers(0, 2**40)
texts = st.text(max_size=12)
names = st.text(st.characters(codec="ascii"), min_size=1, max_size=8)
reals = st.floats(allow_nan=False, width=64)
times = st.none() | st.floats(0, 1e9)


def no_pixels() -> NDArray[np.uint8]:
    raise AssertionError("nothing loads a frame to send it")


@st.composite
def errors(draw: st.DrawFn) -> LiveEdgeError:
    kind, message = draw(st.sampled_from(sorted(ERRORS))), draw(texts)
    if kind == "RequestInvalid":
        return RequestInvalid(message, loc=draw(st.tuples(texts, st.integers(0, 9))))
    if kind == "RegionMismatch":
        return RegionMismatch(message, expected=draw(texts), requested=draw(texts))
    return ERRORS[kind](message, retry_after_s=draw(st.none() | st.floats(0, 100)))


frames = st.builds(
    FrameInput, key=names, width=counts, height=counts, time_s=reals, load=st.just(no_pixels)
)
groups = st.builds(
    FeatureGroup,
    key=names,
    frames=st.lists(frames, min_size=1, max_size=2).map(tuple),
    height=counts,
    width=counts,
    start=counts,
    n_tokens=counts,
)
samplings = st.builds(
    SamplingParams,
    max_tokens=counts,
    temperature=reals,
    top_p=reals,
    top_k=counts,
    min_p=reals,
    presence_penalty=reals,
    frequency_penalty=reals,
    seed=st.none() | st.integers(0, SEED_RANGE - 1),
    stop=st.lists(texts, max_size=4).map(tuple),
    logprobs=st.booleans(),
    top_logprobs=st.integers(0, 20),
)
schemas = st.dictionaries(texts, st.integers() | texts | st.lists(texts))
plain_forms = st.one_of(
    schemas.map(JsonForm),
    st.lists(texts).map(tuple).map(ChoiceForm),
    texts.map(RegexForm),
)
functions = st.builds(FunctionForm, texts, schemas, strict=st.booleans())
tool_forms = st.builds(
    ToolForm,
    st.lists(functions, max_size=3).map(tuple),
    must=st.booleans(),
    most=st.integers(1, 16),
    instead=st.none() | plain_forms,
)
forms = plain_forms | tool_forms
requests = st.builds(
    GenerateRequest,
    request_id=names,
    messages=st.just(()),
    sampling=samplings,
    form=st.none() | forms,
    priority=st.sampled_from(["interactive", "batch"]),
    deadline_s=times,
    fresh_until_s=times,
)


@st.composite
def prepared_requests(draw: st.DrawFn) -> PreparedRequest:
    n_tokens = draw(st.integers(1, 6))
    values = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=n_tokens, max_size=n_tokens)
    return PreparedRequest(
        request=draw(requests),
        ids=np.array(draw(values)),
        positions=np.array([draw(values) for _ in range(3)]),
        position_delta=draw(st.integers(-1000, 1000)),
        identity=np.array(draw(values)),
        groups=tuple(draw(st.lists(groups, max_size=3))),
        image_tokens=draw(counts),
        max_new_tokens=draw(counts),
    )


logprobs = st.builds(
    TokenLogprob,
    token=texts,
    token_bytes=st.binary(max_size=4),
    logprob=reals,
    top=st.lists(st.tuples(texts, st.binary(max_size=4), reals), max_size=2).map(tuple),
)
deltas = st.builds(
    Delta, text=texts, n_tokens=counts, logprobs=st.lists(logprobs, max_size=2).map(tuple)
)
usages = st.builds(
    Usage,
    prompt_tokens=counts,
    completion_tokens=counts,
    image_tokens=counts,
    cached_tokens=counts,
    media=st.lists(
        st.builds(MediaUse, key=names, n_tokens=counts, warm=st.booleans()), max_size=2
    ).map(tuple),
)
timings = st.builds(Timings, **{f.name: reals for f in fields(Timings)})
finishes = st.builds(
    Finished, reason=st.sampled_from(["stop", "length"]), usage=usages, timings=timings
)
warmed = st.builds(
    Warmed,
    superseded=st.booleans(),
    n_tokens=counts,
    n_prefilled=counts,
    n_encoded=counts,
    busy_s=reals,
)
stats = st.builds(
    EngineStats,
    **{f.name: reals if f.type == "float" else counts for f in fields(EngineStats)},
)
ids = st.lists(names, max_size=3).map(tuple)
places = st.builds(
    SharedPixels,
    place=st.builds(Range, start=counts, n_bytes=counts),
    sizes=st.lists(st.tuples(counts, counts), max_size=2).map(tuple),
)
PLAIN: dict[type, st.SearchStrategy[Any]] = {
    Abort: st.builds(Abort, names),
    DropWindow: st.builds(DropWindow, names),
    Ping: st.builds(Ping, counts),
    Stop: st.just(Stop()),
    Compile: st.builds(Compile, texts),
    Opened: st.builds(Opened, st.dictionaries(names, reals, max_size=3)),
    LeftQueue: st.builds(LeftQueue, ids),
    Released: st.builds(Released, ids),
    Pong: st.builds(Pong, counts),
    Fetch: st.builds(Fetch, counts, names),
    DropFetch: st.builds(DropFetch, st.lists(counts, max_size=3).map(tuple)),
    Freed: st.builds(Freed, counts),
}
SPECIAL = {Submit, Warm, Fetched, OpenFailed, Turned}  # each has a test of its own
KINDS = (*get_args(ToEngine), *get_args(FromEngine))


def there_and_back(message: Any) -> Any:
    unpack = unpack_to_engine if isinstance(message, get_args(ToEngine)) else unpack_from_engine
    return unpack(pack(message))


def test_every_kind_of_message_is_tested() -> None:
    assert set(KINDS) == set(PLAIN) | SPECIAL


@given(st.data())
@settings(max_examples=200)
def test_a_plain_message_arrives_as_it_was(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(PLAIN, key=lambda kind: kind.__name__)))
    message = data.draw(PLAIN[kind])
    assert there_and_back(message) == message


@given(prepared_requests(), reals, names)
def test_a_request_arrives_with_all_that_the_engine_needs(
    prepared: PreparedRequest, now_s: float, window_id: str
) -> None:
    submit = there_and_back(Submit(prepared, now_s))
    warm = there_and_back(Warm(WindowPrefix(window_id=window_id, prepared=prepared), now_s))
    assert (submit.now_s, warm.now_s, warm.prefix.window_id) == (now_s, now_s, window_id)
    for other in (submit.prepared, warm.prefix.prepared):
        assert other.request == prepared.request
        for name in ("ids", "positions", "identity"):
            array = getattr(other, name)
            assert np.array_equal(array, getattr(prepared, name))
            assert array.flags.writeable  # torch refuses to share what it may not write to
        assert other.groups == prepared.groups  # pixels apart: `load` is not compared
        for name in ("position_delta", "image_tokens", "max_new_tokens"):
            assert getattr(other, name) == getattr(prepared, name)


@given(
    st.lists(st.tuples(names, deltas | finishes | warmed), max_size=4).map(tuple),
    st.none() | stats,
)
def test_a_turn_arrives_as_it_was(events: Any, gauges: EngineStats | None) -> None:
    message = Turned(events, gauges)
    assert there_and_back(message) == message


@given(errors())
def test_an_error_arrives_as_its_own_class_with_all_it_says(error: LiveEdgeError) -> None:
    (_, event), *_ = there_and_back(Turned((("q", Failed(error=error)),), None)).events
    for other in (
        event.error,
        there_and_back(OpenFailed(error)).error,
        there_and_back(Fetched(1, error)).outcome,
    ):
        assert type(other) is type(error)
        assert vars(other) == vars(error)


@given(counts, places)
def test_the_place_of_pixels_arrives_as_it_was(ticket: int, place: SharedPixels) -> None:
    message = Fetched(ticket, place)
    assert there_and_back(message) == message


def test_an_error_of_another_tree_arrives_as_an_internal_one() -> None:
    class Homemade(LiveEdgeError):
        code = "homemade"

    other = there_and_back(OpenFailed(Homemade("odd", retry_after_s=2.0))).error
    assert type(other) is InternalError
    assert (other.message, other.retry_after_s) == ("odd", 2.0)


def test_an_error_that_quotes_half_a_character_can_be_sent() -> None:
    other = there_and_back(OpenFailed(QueueFull("no \ud83d here"))).error
    assert other.message == "no ? here"


def test_words_and_functions_stay_on_their_side() -> None:
    frame = FrameInput(key="f", width=4, height=2, load=no_pixels)
    group = FeatureGroup(key="g", frames=(frame,), height=2, width=4, start=0, n_tokens=1)
    asked = GenerateRequest(
        request_id="q", messages=(Message(role="user", content=(TextPart("secret words"),)),)
    )
    prepared = PreparedRequest(
        request=asked,
        ids=np.zeros(1, np.int64),
        positions=np.zeros((3, 1), np.int64),
        position_delta=0,
        identity=np.zeros(1, np.int64),
        groups=(group,),
        image_tokens=1,
        max_new_tokens=1,
    )
    data = pack(Submit(prepared, 0.0))
    assert b"secret" not in data
    other = unpack_to_engine(data)
    assert isinstance(other, Submit)
    with pytest.raises(InternalError, match="other process"):
        other.prepared.groups[0].frames[0].load()


def test_what_json_allows_and_64_bits_do_not_is_sent_all_the_same() -> None:
    form = JsonForm({"type": "integer", "maximum": 10**40})
    sampling = SamplingParams(seed=10**30, stop=("half \ud83d",))
    asked = GenerateRequest(
        request_id="q", messages=(), sampling=sampling, form=form, deadline_s=1.0
    )
    prepared = PreparedRequest(
        request=asked,
        ids=np.zeros(1, np.int64),
        positions=np.zeros((3, 1), np.int64),
        position_delta=0,
        identity=np.zeros(1, np.int64),
        groups=(),
        image_tokens=0,
        max_new_tokens=1,
    )
    other = there_and_back(Submit(prepared, 0.0)).prepared.request
    assert other.form == form
    # The sampler takes seeds modulo this, so it draws the same.
    assert other.sampling == replace(sampling, seed=10**30 % SEED_RANGE)


def test_what_shall_run_arrives_as_it_was() -> None:
    asked = EngineSettings(model_id="x/y", device="cpu", threads=3, verify_share=0.5)
    message = Open("/models/x", asked, 1 << 20, 20, "json", 7)
    assert unpack_to_engine(pack(message)) == message


def test_the_last_frame_error_is_still_what_the_source_said() -> None:
    other = there_and_back(Fetched(3, FrameEvicted("frame 7 is gone"))).outcome
    assert isinstance(other, FrameEvicted)
    assert other.message == "frame 7 is gone"
