"""A soak of seconds against a real server: everything is done, logged, resumed and taken away again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from liveedge.bench.soak import processes
from liveedge.bench.soak.hostile import attacks
from liveedge.bench.soak.log import NAME, Line, read_log
from liveedge.bench.soak.options import SoakOptions
from liveedge.bench.soak.page import html
from liveedge.bench.soak.run import begin, go_on
from liveedge.bench.soak.verdict import as_text, judged
from liveedge.client.http import Client
from liveedge.core.clock import SystemClock
from liveedge.core.tasks import OwnedThread
from liveedge.server import BackgroundServer
from liveedge.settings import Settings
from liveedge.testing.engine import FakeEngine

pytestmark = pytest.mark.component

HOURS = 1.0
LIMIT_S = 60.0  # of real time, on a busy machine
ACTS = {"leave", "loss", "disconnect", "slow"}


@pytest.fixture
def server() -> Iterator[BackgroundServer]:
    clock = SystemClock()
    settings = Settings(port=0, hot_mb=8, history_mb=8, streams_mb=400)
    with BackgroundServer(
        settings, clock=clock, load_engine=lambda: FakeEngine(clock=clock), drain_s=0.0
    ) as running:
        yield running


def options(url: str) -> SoakOptions:
    return SoakOptions(
        hours=HOURS,
        url=url,
        sim_streams=3,
        push_streams=1,
        whip_streams=0,
        fps=2.0,
        width=160,
        height=90,
        question_every_s=0.3,
        watch_every_s=0.5,
        look_every_s=0.5,
        disconnect_every_s=0.6,
        hostile_every_s=9000.0,  # some take seconds
        slow_every_s=0.8,
        slow_for_s=0.5,
        leave_every_s=1.0,
        loss_every_s=1.5,
        loss_for_s=0.3,
        flap_every_s=90.0,
        rest_real_s=0.2,
    )


def acts(lines: Sequence[Line], what: str) -> Counter[str]:
    return Counter(line["act"] for line in lines if line["what"] == what)


def run_until(folder: Path, is_enough: Callable[[Sequence[Line]], bool]) -> Sequence[Line]:
    """Soak until the log says enough; a busy machine takes longer for it."""
    stopping, limit_s = threading.Event(), time.monotonic() + LIMIT_S
    soak = OwnedThread("soak", lambda _stopping: go_on(folder, lambda _: None, stopping=stopping))
    soak.start()
    try:
        while not is_enough(read_log(folder / NAME)):
            assert time.monotonic() < limit_s, Counter(
                str(line.get("act") or line["what"]) for line in read_log(folder / NAME)
            )
            assert soak.alive, soak.error
            time.sleep(0.05)
    finally:
        stopping.set()
        assert soak.stop(LIMIT_S)
    assert soak.error is None
    return read_log(folder / NAME)


def test_a_soak_does_everything_and_writes_what_came_of_it(
    server: BackgroundServer, tmp_path: Path
) -> None:
    folder = tmp_path / "soak"
    begin(folder, options(server.url))

    def has_everything(lines: Sequence[Line]) -> bool:
        kinds = {line["what"] for line in lines}
        return {"ask", "look", "watch"} <= kinds and set(acts(lines, "done")) >= ACTS

    lines = run_until(folder, has_everything)
    assert [line for line in lines if line["what"] == "crash"] == []
    begun, done = acts(lines, "begin"), acts(lines, "done")
    # What was going on at the end: one of each part, and the readers that stay a while.
    assert not begun - done - Counter({"loss": 1, "flap": 1})
    assert [line["reason"] for line in lines if line["what"] == "end"] == ["stopped"]
    looks = [line for line in lines if line["what"] == "look"]
    assert all(stream["adds_up"] for look in looks for stream in look["streams"])
    assert looks[-1]["gauges"]["liveedge_streams"] >= 3
    with Client(server.url, clock=SystemClock()) as client:
        left = client.get("/v1beta/streams")["data"]
    assert [stream["id"] for stream in left if stream["state"] == "active"] == []
    verdict = judged(folder)
    assert "of stream time" in as_text(verdict)
    assert "<svg" in html(verdict)


def test_uploads_that_nobody_honest_sends_are_the_same_every_time() -> None:
    made = attacks("a/model")
    assert made == attacks("a/model")
    assert len(made) >= 12
    broken = [name for name, body in made.items() if not _is_json(body)]
    assert broken == ["no JSON", "nested without end"]


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


def test_a_soak_goes_on_where_it_was_killed(server: BackgroundServer, tmp_path: Path) -> None:
    folder = tmp_path / "soak"
    begin(folder, options(server.url))
    with (folder / NAME).open("a") as log:
        log.write('{"what":"segment","number":1,"at_s":0.0}\n{"what":"ready","at_s":0.1}\n')
        log.write('{"what":"look","at_s":2.5}\n{"what":"look","at_')
    lines = run_until(folder, lambda lines: any(line["what"] == "ask" for line in lines))
    segments = [line for line in lines if line["what"] == "segment"]
    assert [(line["number"], line["at_s"]) for line in segments] == [(1, 0.0), (2, 2.5)]
    assert all(line["at_s"] >= 2.5 for line in lines if line["what"] == "ask")


def test_a_soak_whose_time_is_over_starts_nothing(tmp_path: Path) -> None:
    begin(tmp_path / "soak", options("http://127.0.0.1:9"))
    with (tmp_path / "soak" / NAME).open("a") as log:
        log.write(f'{{"what":"end","at_s":{HOURS * 3600},"number":1,"reason":"done"}}\n')
    said: list[str] = []
    go_on(tmp_path / "soak", said.append)
    assert said == ["nothing is left to do: the log is complete"]


def test_the_engine_is_the_oldest_of_its_kind_below_the_server() -> None:
    words = [sys.executable, "-c", "input()", processes.ENGINE]
    with (
        subprocess.Popen(words, stdin=subprocess.PIPE) as engine,
        subprocess.Popen([*words[:3], "other"], stdin=subprocess.PIPE) as other,
    ):
        try:
            assert processes.engine_pid(os.getpid()) == engine.pid
            found = processes.of_server(os.getpid())
            assert other.pid in {one.pid for one in found["others"]}
            assert found["standby"] == []
            server = found["server"][0]
            assert server.pid == os.getpid()
            assert 0 < server.took.anon_bytes <= server.took.rss_bytes
            assert server.took.n_threads >= 1
            assert (server.took.n_files or 0) > 3
            engine.send_signal(signal.SIGKILL)
            engine.wait()
            assert processes.engine_pid(os.getpid()) is None
        finally:
            engine.kill()
            other.kill()
    assert processes.process(engine.pid) is None
