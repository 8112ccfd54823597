"""Clients that load a server, in a process of their own: a job as JSON comes in, a row per request goes out.

    python bench/load_clients.py < job.json > rows.jsonl

Closed loop: each client asks, waits for the whole answer, rests, and asks again. Open loop: each
client has arrivals of its own at times drawn before (Poisson), and sends then, whatever became of
the questions before: on its connection where that is free, else on one more. Raw bytes over
`asyncio.Protocol`, nothing is decoded but status, end and first content: a load that takes more of the
processors than it must would be told as the server's time. How late each request was sent is in
its row; the last line tells what this process itself took.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from lean_http import FIRST_WORDS, NOTHING_SAID

NUMBER = b"NUMBER--"  # in a body: replaced by a number that no other request has, as long as this
STAMP = b"STAMP---STAMP---STAM"  # the same in base64: 15 bytes of a picture
CODE = b'"code":"'
REFUSED_PAUSE_S = 0.02  # of a closed loop, so that it does not spin
LAST_ANSWERS_S = 60.0  # may take so long after the last arrival
KEPT_BYTES = 2048  # of the beginning of an answer, to find an error in, and of its end
TIMINGS = b'"timings_ms":'


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to ask. `body` may hold NUMBER and STAMP."""

    name: str
    weight: float
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the clients of one process do."""

    url: str
    kinds: Sequence[Kind]
    clients: int
    seconds: float
    per_s: float | None = None  # of all clients together; None: closed loop
    rest_s: float = 0.0  # closed loop: mean pause of a client between two questions
    polite: bool = False  # open loop: a client that is told to wait asks nothing meanwhile
    seed: int = 0

    def as_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(slots=True)
class Row:
    """One request, in milliseconds."""

    kind: str
    at_s: float  # when it was sent, since the beginning
    late_ms: float = 0.0  # sent after it was due
    first_ms: float = 0.0  # sending to the first content
    total_ms: float = 0.0  # sending to the end of the answer
    status: int = 0  # 0: no answer at all
    code: str = ""
    retry_after: str | None = None
    timings_ms: Mapping[str, float] = field(default_factory=dict)  # as the server tells them
    tail: bytes = b""  # of the answer, where they are


class Connection(asyncio.Protocol):
    """One kept connection; one request at a time."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._row: Row | None = None
        self._done: Callable[[Row], None] | None = None
        self._sent_s = 0.0
        self._head = b""
        self._tail = b""  # the last bytes, where the end is
        self._said = bytearray()  # the first bytes of the body
        self._missing: int | None = None  # of a body whose length was told

    @property
    def is_free(self) -> bool:
        return self._row is None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("connection_lost")
        self._on_lost()

    def send(self, request: Sequence[bytes], row: Row, done: Callable[[Row], None]) -> None:
        assert self._transport is not None
        self._row, self._done = row, done
        self._head = self._tail = b""
        self._said.clear()
        self._missing = None
        self._sent_s = time.perf_counter()
        self._transport.writelines(request)

    def data_received(self, data: bytes) -> None:
        row = self._row
        if row is None:
            return
        if not row.status:
            head, found, data = (self._head + data).partition(b"\r\n\r\n")
            if not found:
                self._head = head
                return
            self._read_head(head.lower(), row)
        if not row.first_ms and FIRST_WORDS in data.replace(NOTHING_SAID, b""):
            row.first_ms = (time.perf_counter() - self._sent_s) * 1000
        if len(self._said) < KEPT_BYTES:
            self._said += data
        self._tail = (self._tail + data)[-KEPT_BYTES:]
        if self._missing is not None:
            self._missing -= len(data)
        if self._is_complete():
            self._end("")

    def _read_head(self, head: bytes, row: Row) -> None:
        row.status = int(head.split(b" ", 2)[1])
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b": ")
            if name == b"content-length":
                self._missing = int(value)
            elif name == b"retry-after":
                row.retry_after = value.decode()

    def _is_complete(self) -> bool:
        if self._missing is not None:
            return self._missing <= 0
        return self._tail.endswith(b"\r\n0\r\n\r\n") or self._tail == b"0\r\n\r\n"

    def _end(self, failure: str) -> None:
        row, done, self._row, self._done = self._row, self._done, None, None
        if row is None or done is None:
            return
        row.total_ms = (time.perf_counter() - self._sent_s) * 1000
        row.first_ms = row.first_ms or row.total_ms
        said = bytes(self._said)
        if failure:
            row.status, row.code = 0, failure
        elif row.status != 200 or b'"error"' in said:
            _, _, rest = said.partition(CODE)
            row.code = rest.partition(b'"')[0].decode() or "unknown"
        else:
            row.tail = self._tail
        done(row)


@dataclass(slots=True)
class Client:
    """One client and its connections."""

    number: int
    free: deque[Connection] = field(default_factory=deque)
    n_connections: int = 0
    held_until_s: float = 0.0  # it was told to wait
    again: bool = False  # what was refused is asked again then


class Load:
    """All clients of a job."""

    def __init__(self, job: Job) -> None:
        parts = urlsplit(job.url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._job = job
        self._chance = random.Random(job.seed)
        self._templates = [_template(self._host, self._port, kind) for kind in job.kinds]
        self._weights = [kind.weight for kind in job.kinds]
        self._loop = asyncio.get_running_loop()
        self._began_s = 0.0
        self._n_asked = 0
        self._connecting: set[asyncio.Task[None]] = set()
        self.rows: list[Row] = []
        self.n_open = 0  # requests without an answer
        self.n_held_back = 0  # arrivals at a client that was told to wait
        self.most_connections = 0

    async def run(self) -> None:
        clients = [Client(number) for number in range(self._job.clients)]
        for client in clients:
            await self._connect(client)
        self._began_s = time.perf_counter()
        if self._job.per_s is None:
            await asyncio.gather(*map(self._ask_on, clients))
        else:
            await self._arrivals(clients, self._job.per_s)
        for client in clients:
            while client.free:
                connection = client.free.popleft()
                if connection.is_open:
                    assert connection._transport is not None
                    connection._transport.close()

    # closed loop

    async def _ask_on(self, client: Client) -> None:
        stop_s = self._began_s + self._job.seconds
        while (now_s := time.perf_counter()) < stop_s:
            answered = self._loop.create_future()
            self._ask(client, due_s=now_s, done=answered.set_result)
            row: Row = await answered
            pause_s = self._chance.expovariate(1 / self._job.rest_s) if self._job.rest_s else 0.0
            if row.status != 200:
                pause_s = max(pause_s, REFUSED_PAUSE_S)
            if pause_s:
                await asyncio.sleep(pause_s)

    # open loop

    async def _arrivals(self, clients: Sequence[Client], per_s: float) -> None:
        for due_s, client in self._schedule(clients, per_s):
            left_s = due_s - time.perf_counter()
            if left_s > 0:
                await asyncio.sleep(left_s)
            if client.held_until_s > time.perf_counter():
                self.n_held_back += 1
            else:
                self._ask(client, due_s=due_s, done=partial(self._told, client))
        limit_s = time.perf_counter() + LAST_ANSWERS_S
        while self.n_open and time.perf_counter() < limit_s:  # noqa: ASYNC110  seldom, and once
            await asyncio.sleep(0.02)

    def _schedule(self, clients: Sequence[Client], per_s: float) -> Iterator[tuple[float, Client]]:
        """Independent Poisson arrivals of each client are Poisson arrivals of clients by chance."""
        due_s = self._began_s
        while (
            due_s := due_s + self._chance.expovariate(per_s)
        ) < self._began_s + self._job.seconds:
            yield due_s, self._chance.choice(clients)

    def _told(self, client: Client, row: Row) -> None:
        if not self._job.polite or row.retry_after is None:
            return
        due_s = time.perf_counter() + float(row.retry_after)
        if due_s >= self._began_s + self._job.seconds:
            client.held_until_s = due_s
            return
        if client.held_until_s < due_s:
            client.held_until_s = due_s
            self._loop.call_at(
                self._loop.time() + float(row.retry_after), self._again, client, due_s
            )

    def _again(self, client: Client, due_s: float) -> None:
        """What was refused, at the time that was named."""
        if client.held_until_s <= due_s:
            self._ask(client, due_s=due_s, done=partial(self._told, client))

    # both

    def _ask(self, client: Client, *, due_s: float, done: Callable[[Row], None]) -> None:
        index = self._chance.choices(range(len(self._templates)), self._weights)[0]
        row = Row(kind=self._job.kinds[index].name, at_s=0.0)
        request = self._filled(self._templates[index])
        self.n_open += 1

        def ended(row: Row) -> None:
            self.n_open -= 1
            self.rows.append(row)
            done(row)

        while client.free:
            connection = client.free.popleft()
            if connection.is_open:
                self._send(client, connection, request, row, due_s, ended)
                return
        task = self._loop.create_task(self._ask_anew(client, request, row, due_s, ended))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _ask_anew(
        self,
        client: Client,
        request: Sequence[bytes],
        row: Row,
        due_s: float,
        ended: Callable[[Row], None],
    ) -> None:
        try:
            await self._connect(client)
        except OSError as error:
            row.at_s, row.code = time.perf_counter() - self._began_s, type(error).__name__
            ended(row)
            return
        self._send(client, client.free.pop(), request, row, due_s, ended)

    def _send(
        self,
        client: Client,
        connection: Connection,
        request: Sequence[bytes],
        row: Row,
        due_s: float,
        ended: Callable[[Row], None],
    ) -> None:
        now_s = time.perf_counter()
        row.at_s, row.late_ms = now_s - self._began_s, (now_s - due_s) * 1000

        def answered(row: Row) -> None:
            if connection.is_open:
                client.free.append(connection)
            ended(row)

        connection.send(request, row, answered)

    async def _connect(self, client: Client) -> None:
        client.n_connections += 1

        def lost() -> None:
            client.n_connections -= 1

        _, connection = await self._loop.create_connection(
            lambda: Connection(lost), self._host, self._port
        )
        client.free.append(connection)
        self.most_connections = max(self.most_connections, client.n_connections)

    def _filled(self, template: Sequence[bytes]) -> Sequence[bytes]:
        self._n_asked += 1
        number = b"%08d" % ((self._job.seed * 1_000_003 + self._n_asked) % 100_000_000)
        stamp = base64.b64encode(b"\xff\xd8\xff\xfe\x00\x0b" + number + b".")
        return [{NUMBER: number, STAMP: stamp}.get(piece, piece) for piece in template]


def _template(host: str, port: int, kind: Kind) -> Sequence[bytes]:
    """The pieces of a request; NUMBER and STAMP stand alone."""
    body = kind.body.encode()
    head = (
        f"POST /v1beta/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    pieces = [head.encode() + body]
    for marker in (NUMBER, STAMP):
        pieces = [part for piece in pieces for part in _around(piece, marker)]
    return pieces


def _around(piece: bytes, marker: bytes) -> Iterator[bytes]:
    for number, part in enumerate(piece.split(marker)):
        if number:
            yield marker
        yield part


def main() -> None:
    described: dict[str, Any] = json.load(sys.stdin)
    kinds = [Kind(**kind) for kind in described.pop("kinds")]
    job = Job(**described, kinds=kinds)

    async def run() -> Load:
        load = Load(job)
        await load.run()
        return load

    begun_s = time.perf_counter()
    load = asyncio.run(run())
    spent = resource.getrusage(resource.RUSAGE_SELF)
    for row in load.rows:
        print(json.dumps(_written(row)))
    own = {
        "cpu_share": (spent.ru_utime + spent.ru_stime) / (time.perf_counter() - begun_s),
        "unanswered": load.n_open,
        "held_back": load.n_held_back,
        "most_connections": load.most_connections,
    }
    print(json.dumps(own))


def _written(row: Row) -> dict[str, Any]:
    """Read the timings now that nothing is measured any more."""
    _, found, rest = row.tail.partition(TIMINGS)
    timings = json.loads(rest.partition(b"}")[0] + b"}") if found else {}
    return {**asdict(row), "tail": "", "timings_ms": timings}


if __name__ == "__main__":
    main()
