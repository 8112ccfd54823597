"""`liveedge serve --state-dir`: a server that is killed or stopped, and the one that goes on."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from liveedge.client.http import Client, image_part, video_part
from liveedge.client.local_server import free_port
from liveedge.client.truth import Oracle
from liveedge.core.clock import SystemClock
from liveedge.sim.clockcode import CodeReading, read_code
from liveedge.sim.questions import KINDS, expected, score
from tests.serving import picture

CLOCK = SystemClock()
LIMIT_S = 150.0
SEED = 7
SIM = {"type": "sim", "url": f"sim://workcell?seed={SEED}&fps=10"}
SMALL = ("--hot-mb", "8", "--history-mb", "24", "--streams-mb", "512", "--no-standby")

pytestmark = pytest.mark.timeout(600)


class Server:
    """A `liveedge serve` process on a state folder; answers HTTP, the model may still load."""

    def __init__(self, folder: Path, *flags: str, log: Path, within: Sequence[str] = ()) -> None:
        self.port = free_port()
        self.log = log
        command = [*within, sys.executable, "-m", "liveedge", "serve", "--port", str(self.port)]
        command += ["--state-dir", str(folder), "--until-stdin-closes", *SMALL, *flags]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LIVEEDGE_")}
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}", timeout=60, trust_env=False
        )
        self.client = Client(f"http://127.0.0.1:{self.port}", clock=CLOCK)

    def wait_listening(self) -> Server:
        until(lambda: self.answers("/health"))
        return self

    def answers(self, path: str) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-4000:]
        try:
            return self.http.get(path).status_code == 200
        except httpx.TransportError:
            return False

    def stream(self, stream_id: str) -> dict[str, Any]:
        return self.client.stream(stream_id)

    def code(self, stream_id: str, frame_index: int) -> CodeReading:
        """What the simulated camera burned into a retained frame."""
        path = f"/v1/streams/{stream_id}/frame.jpg?frame_index={frame_index}"
        answer = self.http.get(path)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-frame-index"] == str(frame_index)
        with Image.open(io.BytesIO(answer.content)) as shown:
            code = read_code(np.asarray(shown.convert("RGB")))
        assert code is not None, f"frame {frame_index} is damaged"
        return code

    def kill(self) -> None:
        """The server and every process of its engine, at once and without a word."""
        for pid in (self.process.pid, *children(self.process.pid)):
            with suppress(ProcessLookupError):  # a child that has ended with its parent
                os.kill(pid, signal.SIGKILL)
        self.process.wait(30)
        self.close()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(60)
        self.close()
        return status

    def close(self) -> None:
        self.http.close()
        self.client.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has ended meanwhile
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


class Home:
    """A state folder and the servers that live there, one after the other."""

    def __init__(self, path: Path) -> None:
        self.folder = path / "state"
        self.log = path / "log"
        self.servers: list[Server] = []

    def launch(self, *flags: str, within: Sequence[str] = ()) -> Server:
        self.servers.append(Server(self.folder, *flags, log=self.log, within=within))
        return self.servers[-1]

    def start(self, *flags: str, within: Sequence[str] = ()) -> Server:
        return self.launch(*flags, within=within).wait_listening()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    for server in home.servers:
        server.close()


def until(condition: Any) -> None:
    never = threading.Event()
    limit_s = CLOCK.monotonic_s() + LIMIT_S
    while not condition():
        assert CLOCK.monotonic_s() < limit_s, "it never happened"
        CLOCK.wait(never, 0.02)


def assert_adds_up(view: dict[str, Any]) -> None:
    retained, evicted = view["retained_frame_count"], view["evicted_frame_count"]
    assert retained + evicted == view["last_frame_index"] + 1
    assert view["stream_time_ms"] == view["last_frame_at_ms"] - view["first_frame_at_ms"]


def has_frames(server: Server, stream_id: str, more_than: int) -> bool:
    last = server.stream(stream_id)["last_frame_index"]
    return last is not None and last > more_than


def test_after_kill_9_everything_goes_on_and_history_from_before_answers(home: Home) -> None:
    first = home.start()
    stream_id = first.client.create_stream(SIM)["id"]
    first.client.keep_alive(stream_id)
    until(lambda: has_frames(first, stream_id, 60))
    early = {index: first.code(stream_id, index) for index in (5, 20, 40)}
    before = first.stream(stream_id)
    first.kill()

    second = home.start()
    after = second.stream(stream_id)
    for key in ("id", "created_at_ms", "expires_at_ms", "first_frame_at_ms", "source"):
        assert after[key] == before[key], key
    assert after["state"] == "active"
    assert after["last_frame_index"] >= before["last_frame_index"]
    # Lost is what was in the hot ring alone: it holds 6 frames of 854x480, and the one in hand.
    assert after["evicted"].get("restart", 0) <= 7
    until(lambda: has_frames(second, stream_id, before["last_frame_index"] + 20))
    after = second.stream(stream_id)
    assert_adds_up(after)
    assert after["health"] == "live"
    (gap,) = after["gaps"]
    assert gap["from_ms"] >= before["stream_time_ms"]
    assert gap["to_ms"] - gap["from_ms"] > 500  # no server starts faster
    assert {index: second.code(stream_id, index) for index in early} == early

    until(lambda: second.answers("/ready"))
    oracle = Oracle(second.client, stream_id, seed=SEED)
    model = second.client.models()[0]["id"]
    for kind in ("door", "lamp"):
        index, truth = decidable(oracle, kind, range(5, before["last_frame_index"] - 10, 5))
        text = {"type": "text", "text": KINDS[kind].phrasings[0]}
        part = image_part(stream_id, frame_index=index)
        answer = second.client.ask([part, text], model=model, max_tokens=8)
        assert [frame["frame_index"] for frame in answer.frames] == [index]
        assert score(kind, answer.text, truth), (answer.text, truth)
    # And a segment that begins before the kill and ends after it. It has an end: on a slow machine
    # the live edge may be further away than a prompt reaches.
    end = before["last_frame_index"] + 20
    part = video_part(stream_id, start_frame_index=30, end_frame_index=end, max_fps=1)
    text = {"type": "text", "text": KINDS["door"].phrasings[0]}
    answer = second.client.ask([part, text], model=model, max_tokens=8)
    indices = [frame["frame_index"] for frame in answer.frames]
    assert min(indices) <= before["last_frame_index"] < max(indices)
    assert answer.text


def decidable(oracle: Oracle, kind: str, indices: range) -> tuple[int, str]:
    """A frame for which the question has one true answer: a door in motion has none."""
    truths = ((index, expected(kind, [oracle.state(index)])) for index in indices)
    return next((index, truth) for index, truth in truths if truth is not None)


def test_five_kills_in_a_row_lose_no_stream_and_no_index(home: Home) -> None:
    server = home.start()
    stream_id = server.client.create_stream(SIM)["id"]
    pushed = server.client.create_stream({"type": "push"})["id"]
    n_pushed, lowest = 0, -1
    codes: dict[int, CodeReading] = {}
    for round_ in range(5):
        until(lambda: has_frames(server, stream_id, lowest + 15))  # noqa: B023  used in this turn
        for _ in range(3):
            path = f"/v1/streams/{pushed}/frames"
            answer = server.http.post(path, content=picture((n_pushed, 0, 0)))
            assert answer.status_code == 201, answer.text
            assert answer.json()["frame_index"] == n_pushed
            n_pushed += 1
        lowest = server.stream(stream_id)["last_frame_index"]
        oldest = server.stream(stream_id)["first_available_frame_index"]
        codes[oldest + 1] = server.code(stream_id, oldest + 1)
        server.kill()
        server = home.start()
        view = server.stream(stream_id)
        assert view["last_frame_index"] >= lowest
        assert_adds_up(view)
        assert server.stream(pushed)["last_frame_index"] == n_pushed - 1, f"round {round_}"
    for index, code in codes.items():
        assert server.code(stream_id, index) == code
    until(lambda: has_frames(server, stream_id, lowest + 5))
    assert len(server.stream(stream_id)["gaps"]) == 5
    server.client.delete_stream(stream_id)
    server.client.delete_stream(pushed)
    until(lambda: not list((home.folder / "streams").iterdir()))


def test_a_stop_by_sigterm_ends_no_stream_and_loses_no_frame(home: Home) -> None:
    first = home.start()
    stream_id = first.client.create_stream(SIM)["id"]
    pushed = first.client.create_stream({"type": "push"})["id"]
    for i in range(4):
        first.http.post(f"/v1/streams/{pushed}/frames", content=picture((i, 0, 0)))
    until(lambda: has_frames(first, stream_id, 20))
    before = first.stream(stream_id)
    assert first.stop() == 0
    second = home.start()
    for one in (stream_id, pushed):
        assert second.stream(one)["state"] == "active"
        assert_adds_up(second.stream(one))
    after = second.stream(stream_id)
    assert after["expires_at_ms"] == before["expires_at_ms"]
    assert after["last_frame_index"] >= before["last_frame_index"]
    # Nothing was in a hurry: what stood in the hot ring went into the history.
    assert second.stream(pushed)["retained_frame_count"] == 4
    assert second.http.get(f"/v1/streams/{pushed}/frame.jpg?frame_index=3").status_code == 200
    # Its client goes on as if nothing had been.
    answer = second.http.post(f"/v1/streams/{pushed}/frames", content=picture((9, 0, 0)))
    assert answer.json()["frame_index"] == 4


def test_a_deleted_stream_stays_deleted_and_its_frames_are_gone(home: Home) -> None:
    first = home.start()
    stream_id = first.client.create_stream(SIM)["id"]
    until(lambda: has_frames(first, stream_id, 5))
    first.client.delete_stream(stream_id)
    first.kill()  # right after the answer
    second = home.start()
    view = second.stream(stream_id)
    assert (view["state"], view["end_reason"]) == ("ended", "deleted")
    assert view["last_frame_index"] >= 5
    second.client.delete_stream(stream_id)
    until(lambda: not list((home.folder / "streams").iterdir()))


def test_a_second_server_on_the_folder_is_refused_and_the_first_is_undisturbed(home: Home) -> None:
    first = home.start()
    stream_id = first.client.create_stream(SIM)["id"]
    second = home.launch()
    assert second.process.wait(60) == 2
    log = home.log.read_text()
    assert f"state_dir {home.folder} is in use by another liveedge server" in log
    assert f"process {first.process.pid}" in log
    assert "Traceback" not in log
    until(lambda: has_frames(first, stream_id, 5))
    first.kill()
    third = home.start()
    assert third.stream(stream_id)["state"] == "active"


def test_a_damaged_database_is_set_aside_and_the_server_serves(home: Home) -> None:
    first = home.start()
    stream_id = first.client.create_stream(SIM)["id"]
    first.kill()
    database = home.folder / "streams.sqlite3"
    for path in home.folder.glob("streams.sqlite3-*"):
        path.unlink()
    database.write_bytes(os.urandom(20_000))
    second = home.start()
    assert second.http.get(f"/v1/streams/{stream_id}").status_code == 404
    assert "is damaged" in home.log.read_text()
    assert list(home.folder.glob("streams.sqlite3.damaged-*"))
    other = second.client.create_stream(SIM)["id"]
    # Nobody can ask for the frames of the lost one any more.
    until(lambda: [path.name for path in (home.folder / "streams").iterdir()] == [other])


EARLIER = "0b5c9f0e-6c3e-4d0a-9f58-3f8a3c1d2e4b"


def test_passwords_are_in_no_file_that_others_may_read_and_in_no_log(home: Home) -> None:
    home.start().stop()
    url = f"rtsp://admin:hunter2@127.0.0.1:{free_port()}/live"  # nobody listens there
    keep_row(home.folder, EARLIER, source={"type": "rtsp", "url": url})
    server = home.start()
    # It cannot be opened: it is tried for as long as its lease runs, and says why.
    until(lambda: server.stream(EARLIER)["reconnects"] >= 2)
    view = server.stream(EARLIER)
    assert (view["state"], view["health"]) == ("active", "reconnecting")
    assert view["health_reason"] not in ("", "opening")
    assert "hunter2" not in str(view)
    server.stop()
    assert "hunter2" not in home.log.read_text()
    for path in home.folder.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & 0o077 == 0, f"{path} has mode {mode:o}"
        if path.is_file() and b"hunter2" in path.read_bytes():
            assert path.name.startswith("streams.sqlite3")
    assert stat.S_IMODE(home.folder.stat().st_mode) == 0o700


def keep_row(folder: Path, stream_id: str, *, source: dict[str, str]) -> None:
    """A stream of an earlier server."""
    now_ms = CLOCK.wall_ms()
    row = (stream_id, "open", now_ms, now_ms + 200_000, json.dumps(source))
    with closing(sqlite3.connect(folder / "streams.sqlite3")) as database, database:
        database.execute(
            "INSERT INTO streams (id, tenant, created_at_ms, expires_at_ms, source)"
            " VALUES (?, ?, ?, ?, ?)",
            row,
        )


MOUNT = 'mount -t tmpfs -o size=160m none "$0" && exec "$@"'


def can_mount() -> bool:
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    return (
        shutil.which("unshare") is not None
        and not subprocess.run(command, capture_output=True, check=False).returncode
    )


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount a small disk of its own")
def test_a_full_disk_refuses_new_streams_and_harms_no_other(home: Home) -> None:
    home.folder.mkdir()
    server = home.start(within=("unshare", "-m", "sh", "-c", MOUNT, str(home.folder)))
    disk = Path(f"/proc/{server.process.pid}/root") / home.folder.relative_to("/")
    streams = []
    while (answer := server.http.post("/v1/streams", json={"source": SIM})).status_code == 201:
        streams.append(answer.json()["id"])
    assert len(streams) in (2, 3)
    assert answer.status_code == 429
    assert f"{home.folder} (state_dir)" in answer.json()["detail"]
    assert "MB are missing" in answer.json()["detail"]
    with (disk / "fill").open("wb", buffering=0) as fill, suppress(OSError):
        while True:
            fill.write(bytes(4096))
    assert shutil.disk_usage(disk).free == 0
    before = {one: server.stream(one)["last_frame_index"] or 0 for one in streams}
    # Long enough for the oldest frames to have come from the disk.
    until(lambda: all(has_frames(server, one, before[one] + 60) for one in streams))
    for one in streams:
        oldest = server.stream(one)["first_available_frame_index"]
        assert server.code(one, oldest + 1).frame_number >= 0
        server.client.keep_alive(one)
    server.client.delete_stream(streams[0])
    (disk / "fill").unlink()
    until(lambda: server.http.post("/v1/streams", json={"source": SIM}).status_code == 201)
