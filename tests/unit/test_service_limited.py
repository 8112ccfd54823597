"""What one key and one stream may have in progress."""

from contextlib import AsyncExitStack, aclosing

import pytest

from liveedge.core.errors import QueueFull, RequestInvalid
from liveedge.engine.request import SamplingParams
from liveedge.service.caller import Allowance, Caller
from liveedge.service.limited import AnswerLimits, LimitedAnswers, streams_of
from liveedge.service.question import MediaContent, Question, TextContent, TextDelta, Turn


class Echo:
    """Begins an answer, and ends it when it is left."""

    def __init__(self):
        self.asked = []

    async def answer(self, question):
        self.asked.append(question)
        yield TextDelta(choice=0, text="well")
        yield TextDelta(choice=0, text="then")


def question(*urls, key="a", n=1, max_tokens=100, **allowance):
    media = [MediaContent(kind="image", url=url, where="x") for url in urls]
    return Question(
        request_id="r",
        tenant="t",
        model="m",
        turns=(Turn(role="user", content=(TextContent("?"), *media)),),
        sampling=SamplingParams(max_tokens=max_tokens),
        n=n,
        caller=Caller(tenant="t", key_id=key, allowance=Allowance(**allowance)),
    )


async def begin(stack, answers, asked):
    events = await stack.enter_async_context(aclosing(answers.answer(asked)))
    await anext(events)


def url(stream):
    return f"ovs://streams/{stream}?frame_index=-1"


async def test_a_key_that_asks_hard_leaves_the_places_of_others():
    answers = LimitedAnswers(Echo(), AnswerLimits(per_key=2))
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await begin(stack, answers, question())
        with pytest.raises(QueueFull, match=r"2 of 2 .*max_requests_per_key"):
            await begin(stack, answers, question())
        await begin(stack, answers, question(key="b"))
        assert answers.n_places == 3
    assert answers.n_places == 0
    assert answers.refused == {"max_requests_per_key": 1}
    async with AsyncExitStack() as stack:
        await begin(stack, answers, question())


async def test_a_share_is_kept_free_once_there_are_several_keys():
    several: list[bool] = []
    limits = AnswerLimits(share=1)
    answers = LimitedAnswers(Echo(), limits, is_shared=lambda: bool(several))
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await begin(stack, answers, question())
        several.append(True)
        with pytest.raises(QueueFull, match="2 of 1"):
            await begin(stack, answers, question())


async def test_a_key_may_have_its_own_number_and_choices_are_answers():
    answers = LimitedAnswers(Echo(), AnswerLimits(per_key=1))
    async with AsyncExitStack() as stack:
        await begin(stack, answers, question(n=3, max_requests=4))
        with pytest.raises(QueueFull, match=r"3 of 4 .*max_requests of this key"):
            await begin(stack, answers, question(n=2, max_requests=4))
        await begin(stack, answers, question(n=1, max_requests=4))
    async with AsyncExitStack() as stack:  # what no limit would ever let in takes all of it
        await begin(stack, answers, question(n=8))
        assert answers.n_places == 1


async def test_uploads_of_one_key_leave_room_for_those_of_another():
    limits = AnswerLimits(share_bytes=100)
    answers = LimitedAnswers(Echo(), limits, is_shared=lambda: True)
    async with AsyncExitStack() as stack:
        await begin(stack, answers, question(150 * "x"))  # alone it is never too much
        with pytest.raises(QueueFull, match="150 bytes of pictures and clips"):
            await begin(stack, answers, question("x"))
        await begin(stack, answers, question(90 * "x", key="b"))
    assert answers.refused == {"uploads_of_key": 1}


async def test_every_stream_that_a_question_names_is_counted():
    answers = LimitedAnswers(Echo(), AnswerLimits(per_stream=1))
    async with AsyncExitStack() as stack:
        await begin(stack, answers, question(url("one"), url("two"), url("one")))
        for stream in ("one", "two"):
            with pytest.raises(QueueFull, match=rf"stream {stream} .*max_requests_per_stream"):
                await begin(stack, answers, question(url("three"), url(stream)))
        await begin(stack, answers, question(url("three")))
        await begin(stack, answers, question())
    assert answers.refused == {"max_requests_per_stream": 2}


def test_only_references_name_streams():
    asked = question("data:image/png;base64,x", url("a"), "ovs://elsewhere/b", url("c"))
    assert streams_of(asked) == ("a", "c")


async def test_answers_are_shortened_and_too_many_parts_refused():
    echo = Echo()
    answers = LimitedAnswers(echo, AnswerLimits(max_output_tokens=50, max_parts=2))
    async with AsyncExitStack() as stack:
        await begin(stack, answers, question(url("a")))
        with pytest.raises(RequestInvalid, match=r"3 parts, the limit is 2 \(max_parts\)"):
            await begin(stack, answers, question(url("a"), url("b")))
    assert [one.sampling.max_tokens for one in echo.asked] == [50]
