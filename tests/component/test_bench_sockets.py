"""The load generator over real sockets, against a server that logs when it wrote what.

What is compared is the moment at which the stub wrote with the moment that the record names, in one
process and on one clock, so that a machine that is slow in between is not held against the generator.
Where it stalls between the two for longer than 2 % of the latency, the median of twelve answers shows
nothing of it; a machine that does so half of the time gets two further tries.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from liveedge.bench.asking import Asker, Planned
from liveedge.bench.connections import dial_to
from liveedge.bench.generator import Generator, StepRun
from liveedge.bench.record import Record
from liveedge.bench.schedule import steps
from liveedge.core.clock import SystemClock
from tests.bench_parts import FixedSource, scenario
from tests.bench_stub import Script, Served, Stub, listening, plain, streamed
from tests.certificates import self_signed

TRIES = 3
N = 12
STREAM = streamed(headers_s=0.3, first_s=0.3, gaps_s=[0.2, 0.3], words=["r", "e", "d"], end_s=0.2)


@dataclass(frozen=True)
class Asked:
    """One run over a socket: what both sides say of the same moments, in seconds since its begin."""

    records: Sequence[Record]
    served: Sequence[Served]
    begun_s: float
    run: StepRun

    def of(self, label: str, place: int = 0) -> Callable[[int], float]:
        """When the stub wrote it for request n."""
        return lambda n: self.served[n].at_s(label)[place] - self.begun_s


async def asked_over_a_socket(script: Callable[[int], Script], **load: object) -> Asked:
    clock = SystemClock()
    stub = Stub(lambda n, _body: script(n), clock=clock)
    async with listening(stub) as url:
        keys = {"kind": "constant", "warmup_s": 0.0, "timeout_s": 20.0, **load}
        told = scenario(target={"base_url": url}, load=keys)
        begun_s = clock.monotonic_s()
        asker = Asker(
            scenario=told,
            model="m",
            api_key=None,
            dial=dial_to(url, None),
            clock=clock,
            begun_s=begun_s,
        )
        source = FixedSource()
        await source.open()
        generator = Generator(
            scenario=told, asker=asker, source=source, clock=clock, on_record=lambda _record: None
        )
        run = await generator.run(next(steps(told.load)))
        await asker.close()
    served = sorted(stub.served, key=lambda one: int(one.headers["x-request-id"].split("-")[-1]))
    return Asked(run.records, served, begun_s, run)


def off_by(asked: Asked) -> dict[str, float]:
    """The share by which each measure of the records differs from the stub's log: the median."""
    found: dict[str, list[float]] = {}
    for n, record in enumerate(asked.records):
        due_s = record.due_s
        assert record.headers_s is not None
        assert record.first_content_s is not None
        assert record.ended_s is not None
        content = [asked.of("content", place)(n) for place in range(3)]
        pairs = {
            "headers": (record.headers_s - due_s, asked.of("headers")(n) - due_s),
            "first content": (record.first_content_s - due_s, content[0] - due_s),
            "gap 1": (record.content_s[1] - record.content_s[0], content[1] - content[0]),
            "gap 2": (record.content_s[2] - record.content_s[1], content[2] - content[1]),
            "total": (record.ended_s - due_s, asked.of("done")(n) - due_s),
        }
        for name, (seen, wrote) in pairs.items():
            found.setdefault(name, []).append(abs(seen - wrote) / wrote)
    return {name: median(shares) for name, shares in found.items()}


async def test_every_moment_is_recovered_within_two_percent() -> None:
    off: dict[str, float] = {}
    for _ in range(TRIES):
        asked = await asked_over_a_socket(lambda _n: STREAM, rates_per_s=[N], duration_s=1.0)
        assert [record.outcome for record in asked.records] == ["ok"] * N
        assert {record.text for record in asked.records} == {"red"}
        if max((off := off_by(asked)).values()) < 0.02:
            return
    pytest.fail(f"off by more than 2 % in {TRIES} tries: {off}")


async def test_crumbs_of_three_bytes_change_nothing_but_when_their_events_are_whole() -> None:
    crumbs = Script(headers_after_s=STREAM.headers_after_s, pieces=STREAM.pieces, bytes_at_once=3)
    off: dict[str, float] = {}
    for _ in range(TRIES):
        asked = await asked_over_a_socket(lambda _n: crumbs, rates_per_s=[6], duration_s=1.0)
        assert {record.text for record in asked.records} == {"red"}
        assert all(len(record.content_s) == 3 for record in asked.records)
        if max((off := off_by(asked)).values()) < 0.02:
            return
    pytest.fail(f"off by more than 2 % in {TRIES} tries: {off}")


async def test_what_a_server_loses_over_a_socket_is_named_and_counted() -> None:
    scripts = [
        STREAM,
        plain({"error": {"code": "queue_full", "message": "x"}}, after_s=0.1, status=429),
        Script(pieces=STREAM.pieces[:2], end="reset"),
        Script(pieces=STREAM.pieces[:2], end="cut"),
        Script(pieces=STREAM.pieces[:2]),
        Script(headers_after_s=100.0),
    ]

    asked = await asked_over_a_socket(
        lambda n: scripts[n % 6], rates_per_s=[12], duration_s=1.0, timeout_s=2.5
    )

    found = sorted((record.outcome, record.code) for record in asked.records)
    assert found == sorted(
        [
            ("ok", ""),
            ("refused", "queue_full"),
            ("failed", "connection_lost"),
            ("failed", "connection_lost"),
            ("failed", "cut_stream"),
            ("timeout", "timeout"),
        ]
        * 2
    )


async def asked_once(url: str, tls: ssl.SSLContext | None = None) -> Record:
    clock = SystemClock()
    asker = Asker(
        scenario=scenario(target={"base_url": url}),
        model="m",
        api_key=None,
        dial=dial_to(url, tls),
        clock=clock,
        begun_s=clock.monotonic_s(),
    )
    source = FixedSource()
    await source.open()
    record = await asker.begin(Planned(index=0, due_s=0.0), source.prepare(0))
    await asker.close()
    return record


async def test_a_port_where_nobody_listens_is_unreachable() -> None:
    async with listening(Stub(lambda _n, _body: STREAM, clock=SystemClock())) as url:
        pass

    record = await asked_once(url)

    assert (record.outcome, record.code) == ("unreachable", "connect_failed")


async def test_tls_is_part_of_the_connection_and_a_stranger_is_unreachable(tmp_path: Path) -> None:
    pair = self_signed(tmp_path)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(pair.cert, pair.key)
    trusting = ssl.create_default_context(cafile=str(pair.cert))

    async with listening(Stub(lambda _n, _body: STREAM, clock=SystemClock()), server) as url:
        known = await asked_once(url, trusting)
        strange = await asked_once(url, ssl.create_default_context())

    assert (known.outcome, known.text) == ("ok", "red")
    assert known.connected_s is not None
    assert known.headers_s is not None
    assert known.connected_s < known.headers_s
    assert (strange.outcome, strange.code) == ("unreachable", "connect_failed")
    assert "certificate verify failed" in strange.message


@pytest.mark.parametrize("url", ["ftp://x/v1", "localhost:8000", "http:///v1"])
def test_an_address_that_is_none_is_refused_by_its_name(url: str) -> None:
    with pytest.raises(ValueError, match="is no http:// or https:// address"):
        dial_to(url, None)  # the address is looked at before anything is dialled
