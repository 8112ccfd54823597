"""Lines of the log: objects that collectors can read, ids where they are known, and not too many."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from liveedge.core.log import Bounded, JsonFormatter, TextFormatter, bound, note
from liveedge.core.tasks import TaskSet


@dataclass
class Written:
    """A log of its own."""

    log: logging.Logger
    out: io.StringIO
    bounds: Bounded

    @property
    def lines(self) -> list[str]:
        return self.out.getvalue().splitlines()

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


def written(formatter: logging.Formatter) -> Written:
    out, bounds = io.StringIO(), Bounded(burst=3, lines_per_s=1.0)
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    handler.addFilter(bounds)
    log = logging.Logger("liveedge.test", logging.DEBUG)  # noqa: LOG001  shared with nobody
    log.addHandler(handler)
    return Written(log, out, bounds)


@pytest.fixture
def as_json() -> Written:
    return written(JsonFormatter())


@pytest.fixture
def as_text() -> Written:
    return written(TextFormatter())


def test_a_line_is_one_object_whatever_is_in_it(as_json: Written):
    as_json.log.info('two\nlines and "quotes" %s', "ü\x00")
    (line,) = as_json.objects
    assert line["message"] == 'two\nlines and "quotes" ü\x00'
    assert (line["level"], line["logger"]) == ("info", "liveedge.test")
    assert "request_id" not in line


def test_the_time_is_utc_with_milliseconds(as_json: Written):
    record = logging.LogRecord("x", logging.INFO, "", 0, "m", None, None)
    record.created = 1_750_000_000.1239
    assert json.loads(JsonFormatter().format(record))["ts"] == "2025-06-15T15:06:40.123Z"


def test_ids_are_those_of_the_work_around_the_line(as_json: Written):
    with bound(request_id="r1"):
        note(key_id="k1", stream_ids=["s1"])
        as_json.log.info("inside")
        with bound(stream_ids=["s2", "s3"]):
            as_json.log.info("further inside")
    as_json.log.info("outside")
    note(key_id="nobody's")  # nothing is bound
    inside, further, outside = as_json.objects
    assert (inside["request_id"], inside["stream_id"], inside["key_id"]) == ("r1", "s1", "k1")
    assert "request_id" not in further
    assert further["stream_ids"] == ["s2", "s3"]
    assert not {"request_id", "stream_id", "key_id"} & outside.keys()


async def test_a_task_that_may_outlive_its_request_writes_for_itself(as_json: Written):
    async def work() -> None:
        as_json.log.info("later")

    with bound(request_id="r1"):
        await TaskSet("windows").start(work(), name="keeper")
    assert "request_id" not in as_json.objects[0]


def test_facts_are_keys_of_their_own_and_exceptions_are_cut(as_json: Written):
    as_json.log.info("line", extra={"facts": {"status": 200}})
    try:
        raise ValueError("x" * 10_000)
    except ValueError:
        as_json.log.exception("it failed")
    plain, failed = as_json.objects
    assert plain["status"] == 200
    assert len(failed["exception"]) == 4000
    assert failed["level"] == "error"


def test_text_lines_name_what_they_do_not_name_themselves(as_text: Written):
    with bound(request_id="r1", stream_ids=["s1"]):
        as_text.log.warning("something odd")
        as_text.log.warning("GET /streams/s1 200 r1")
    as_text.log.warning("alone")
    odd, named, alone = as_text.lines
    assert odd.endswith("WARNING liveedge.test: something odd [request r1, stream s1]")
    assert named.endswith("GET /streams/s1 200 r1")
    assert alone.endswith(": alone")


def records(message: str, times_s: list[float]) -> Iterator[logging.LogRecord]:
    for i, time_s in enumerate(times_s):
        record = logging.LogRecord("liveedge.http", logging.INFO, "", 0, message, (i,), None)
        record.created = time_s
        yield record


def test_a_flood_of_one_kind_is_cut_and_the_next_line_says_by_how_much():
    bounds = Bounded(burst=3, lines_per_s=1.0)
    flood = list(records("GET %d", [0.0] * 10 + [5.0]))
    through = [record for record in flood if bounds.filter(record)]
    assert len(through) == 4
    assert through[-1].getMessage() == "GET 10 (and 7 more such lines)"
    assert bounds.left_out == 7
    assert all(bounds.filter(one) for one in records("another kind %d", [0.0]))


def test_kinds_that_never_end_take_no_memory():
    bounds = Bounded()
    for i in range(3000):
        for one in records(f"kind {i} %d", [0.0]):
            assert bounds.filter(one)
    assert sys.getsizeof(bounds._kinds) < 200_000
