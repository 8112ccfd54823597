"""One request to exactly one Record: every moment of it, whatever the server does.

Owns    the requests that are open, their deadlines, and the connections under way.
Thread  the event loop's. `begin` waits for nothing: the answer is heard by callbacks.
Never   retries, follows a redirect or drops a request: each begun one ends exactly once, at its
        deadline at the latest.

Moments. `sent_s` is when the request was handed on: to an idle connection, or to the making of one,
which `connected_s` ends. A stream is `ok` once it has said why it ended and `[DONE]`; its `ended_s` is
that event's, not the end of the HTTP body. A plain answer is `ok` once it is whole JSON with a reason.
"""

from __future__ import annotations

import asyncio
import email.utils
import itertools
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from liveedge.bench.answers import (
    MAX_MESSAGE,
    Problem,
    decoded,
    number,
    problem_of,
    read_chunk,
    read_whole,
    text_of,
    unfinished,
)
from liveedge.bench.connections import Connection, Dial, Pool, address
from liveedge.bench.http1 import Head
from liveedge.bench.interfaces import Prepared
from liveedge.bench.record import Outcome, Record
from liveedge.bench.scenario import Scenario
from liveedge.client.sse import DONE, Event, EventReader, StreamTooLarge
from liveedge.core.clock import Clock
from liveedge.core.tasks import TaskSet
from liveedge.core.version import VERSION

MAX_BODY_BYTES = 16 << 20  # of an answer that is no stream
MS_PER_S = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Which request it is, and when it is due on the run's clock."""

    index: int
    due_s: float
    repeat: int = 0
    step: int = 0
    warmup: bool = False


def body_of(scenario: Scenario, model: str, prepared: Prepared) -> dict[str, Any]:
    """The body of a chat completion; `target.extra_body` wins over everything here."""
    asked = scenario.questions
    messages: list[dict[str, Any]] = []
    if asked.system:
        messages.append({"role": "system", "content": asked.system})
    messages.append({"role": "user", "content": list(prepared.content)})
    body: dict[str, Any] = {"model": model, "messages": messages, "temperature": asked.temperature}
    extra = scenario.target.extra_body
    if "max_tokens" not in extra:  # the older name; servers refuse both together
        body["max_completion_tokens"] = asked.max_tokens
    if asked.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if prepared.thread_id is not None:
        body["thread_id"] = prepared.thread_id
    return body | dict(extra)


class Asker:
    """Sends requests to one server. `begun_s` is the clock's moment that is 0 in the records."""

    def __init__(
        self,
        *,
        scenario: Scenario,
        model: str,
        api_key: str | None,
        dial: Dial,
        clock: Clock,
        begun_s: float,
    ) -> None:
        self.pool = Pool(dial, clock)
        self._scenario = scenario
        self._model = model
        self._clock = clock
        self._begun_s = begun_s
        self._head = _request_head(scenario, api_key)
        self._request_id = f"bench-{scenario.work_digest()}"
        self._tasks = TaskSet("asking")
        self._open: set[_Request] = set()
        self._indices = itertools.count()
        self._deadlines = _Deadlines(clock)
        self._tasks.start(self._deadlines.run(), name="deadlines")

    @property
    def n_open(self) -> int:
        """Requests that have begun and not ended."""
        return len(self._open)

    def now_s(self) -> float:
        """The run's clock."""
        return self._clock.monotonic_s() - self._begun_s

    def next_index(self) -> int:
        """Of the request that comes next in the run."""
        return next(self._indices)

    def begin(self, planned: Planned, prepared: Prepared) -> asyncio.Future[Record]:
        """Send it now. The record comes when it has ended; the future is never cancelled by us."""
        record = _record(planned)
        record.source, record.question = prepared.source, prepared.question
        record.share = prepared.share
        record.thread_id = prepared.thread_id
        body = json.dumps(body_of(self._scenario, self._model, prepared)).encode()
        record.n_bytes = len(body)
        request_id = f"{self._request_id}-{planned.index}"
        data = self._head + f"{len(body)}\r\nX-Request-Id: {request_id}\r\n\r\n".encode() + body
        request = _Request(record, prepared.frames, self._begun_s, self._ended)
        record.request_id = request_id
        self._open.add(request)
        deadline_s = self._begun_s + planned.due_s + self._scenario.load.timeout_s
        self._deadlines.add(deadline_s, request)
        record.sent_s = self.now_s()
        record.sent_at_ms = float(self._clock.wall_ms())
        connection = self.pool.take()
        if connection is not None:
            request.send(connection, data)
        else:
            request.connecting = self._tasks.start(self._connect(request, data), name="connect")
        return request.ended

    def not_sent(self, planned: Planned, reason: str) -> Record:
        """The record of a request that the generator itself held back."""
        record = _record(planned)
        record.code, record.message = "max_in_flight", reason
        return record

    async def close(self) -> None:
        """End what is still open, as `failed`, and every connection."""
        for request in list(self._open):
            request.fail(self._clock.monotonic_s(), Problem("run_ended", "the run was ended"))
        await self._tasks.close()
        self.pool.close()

    async def _connect(self, request: _Request, data: bytes) -> None:
        try:
            connection = await self.pool.make()
        except (OSError, ValueError) as error:  # refused, no such host or no name of one, TLS
            at_s = self._clock.monotonic_s()
            request.end(at_s, "unreachable", Problem("connect_failed", _told(error)))
            return
        request.record.connected_s = self.now_s()
        request.send(connection, data)

    def _ended(self, request: _Request) -> None:
        self._open.discard(request)


class _Request:
    """One open request; hears its answer (`connections.Exchange`) and ends once."""

    def __init__(
        self,
        record: Record,
        sent_frames: Sequence[Mapping[str, Any]],
        begun_s: float,
        on_end: Callable[[_Request], None],
    ) -> None:
        self.record = record
        self.ended: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
        self.connecting: asyncio.Task[None] | None = None
        self._sent_frames = sent_frames
        self._begun_s = begun_s
        self._on_end = on_end
        self._connection: Connection | None = None
        self._events: EventReader | None = None  # of a stream
        self._body = bytearray()  # of everything else
        self._content_s: list[float] = []

    def send(self, connection: Connection, data: bytes) -> None:
        self._connection = connection
        connection.send(data, self)

    def headed(self, at_s: float, head: Head) -> None:
        record, headers = self.record, head.headers
        record.headers_s = at_s - self._begun_s
        record.status = head.status
        record.request_id = headers.get("x-request-id") or record.request_id
        record.retry_after_s = _retry_after_s(headers, record.sent_at_ms)
        kind = headers.get("content-type", "")
        if head.status == 200 and kind.lower().startswith("text/event-stream"):
            self._events = EventReader()

    def received(self, at_s: float, body: bytes) -> None:
        if self._events is None:
            self._body += body
            if len(self._body) > MAX_BODY_BYTES:
                said = f"the answer is longer than {MAX_BODY_BYTES} bytes"
                self.fail(at_s, Problem("unreadable", said))
            return
        try:
            self._read(at_s, self._events.feed(body))
        except StreamTooLarge as error:
            self.fail(at_s, Problem("unreadable", str(error)))

    def completed(self, at_s: float) -> None:
        self._connection = None  # it is idle, and no longer ours to leave or abort
        document = decoded(self._body.decode(errors="replace"))
        if self._events is not None:
            self._read(at_s, self._events.finish())
            self._end_with(at_s, Problem("cut_stream", "the stream ended without [DONE]"))
        elif self.record.status == 200:
            self._end_with(at_s, read_whole(self.record, at_s - self._begun_s, document))
        else:
            problem = problem_of(document, f"http_{self.record.status}")
            self.end(at_s, "refused", problem)

    def lost(self, at_s: float, reason: str) -> None:
        outcome: Outcome = "failed" if self.record.status else "unreachable"
        self._connection = None
        self.end(at_s, outcome, Problem("connection_lost", reason))

    def expire(self, at_s: float) -> None:
        """The deadline has come: whatever has not ended is a time-out."""
        seen = "headers" if self.record.headers_s is not None else "nothing"
        seen = "content" if self._content_s else seen
        self.end(at_s, "timeout", Problem("timeout", f"{seen} of the answer had come"))

    def fail(self, at_s: float, problem: Problem) -> None:
        self.end(at_s, "failed", problem)

    def end(self, at_s: float, outcome: Outcome, problem: Problem | None = None) -> None:
        """The one place where a request ends; a second call does nothing."""
        if self.ended.done():
            return
        record = self.record
        record.outcome = outcome
        record.ended_s = at_s - self._begun_s
        record.content_s = self._content_s or record.content_s
        record.frames = self._sent_frames or record.frames
        record.text = text_of(record.text)
        if problem is not None:
            record.code, record.message = problem.code, problem.message[:MAX_MESSAGE]
        self._let_go(outcome)
        self._on_end(self)
        self.ended.set_result(record)

    def _let_go(self, outcome: Outcome) -> None:
        connection, self._connection = self._connection, None
        if self.connecting is not None:
            self.connecting.cancel()
        if connection is None:
            return
        if outcome == "ok":
            connection.leave()
        else:
            connection.abort()

    def _read(self, at_s: float, events: list[Event]) -> None:
        for event in events:
            if self.ended.done():
                return
            self._event(at_s, event)

    def _event(self, at_s: float, event: Event) -> None:
        record, moment_s = self.record, at_s - self._begun_s
        if record.first_event_s is None:
            record.first_event_s = moment_s
        if event.data == DONE:
            self._end_with(at_s, unfinished(record))
            return
        document = decoded(event.data)
        if event.event == "error":
            self.fail(at_s, problem_of(document, "error_event"))
        elif problem := read_chunk(record, moment_s, document, self._content_s):
            self.fail(at_s, problem)

    def _end_with(self, at_s: float, problem: Problem | None) -> None:
        self.end(at_s, "failed" if problem else "ok", problem)


class _Deadlines:
    """One timer for all requests: their deadlines come in the order in which they were added."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[tuple[float, _Request]] = deque()
        self._some = asyncio.Event()

    def add(self, at_s: float, request: _Request) -> None:
        self._waiting.append((at_s, request))
        self._some.set()

    async def run(self) -> None:
        while True:
            while self._waiting and self._waiting[0][1].ended.done():
                self._waiting.popleft()
            if not self._waiting:
                self._some.clear()
                await self._some.wait()
                continue
            at_s, request = self._waiting[0]
            now_s = self._clock.monotonic_s()
            if at_s > now_s:
                await self._clock.sleep(at_s - now_s)
            else:
                self._waiting.popleft()
                request.expire(now_s)


def _record(planned: Planned) -> Record:
    return Record(
        index=planned.index,
        repeat=planned.repeat,
        step=planned.step,
        warmup=planned.warmup,
        due_s=planned.due_s,
    )


def _request_head(scenario: Scenario, api_key: str | None) -> bytes:
    """Everything of a request's head up to the value of Content-Length."""
    url = urlsplit(scenario.target.base_url)
    address(url)
    lines = [
        f"POST {url.path.rstrip('/')}/chat/completions HTTP/1.1",
        f"Host: {url.netloc.rpartition('@')[2]}",
        f"User-Agent: liveedge-bench/{VERSION}",
        "Accept: text/event-stream, application/json",
        "Content-Type: application/json",
    ]
    if api_key:
        lines.append(f"Authorization: Bearer {api_key}")
    if scenario.target.region:
        lines.append(f"X-Overshoot-Region: {scenario.target.region}")
    return ("\r\n".join(lines) + "\r\nContent-Length: ").encode("latin-1")


def _retry_after_s(headers: Mapping[str, str], wall_ms: float | None) -> float | None:
    """Seconds, from either of the header's forms."""
    text = headers.get("retry-after", "")
    if not text:
        return None
    try:
        seconds = number(float(text))
        return seconds if seconds is None or seconds >= 0 else None
    except ValueError:
        pass
    try:
        at_s = email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError, OSError):  # no date, or none of this calendar
        return None
    return max(0.0, at_s - (wall_ms or 0.0) / MS_PER_S)


def _told(error: Exception) -> str:
    return str(error) or type(error).__name__
