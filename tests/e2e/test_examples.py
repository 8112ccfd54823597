"""The programs under `examples/` do what they say against a real server with the shipped model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from PIL import Image

from liveedge.client.http import Client
from liveedge.client.local_server import running_server
from liveedge.core.clock import SystemClock
from liveedge.server import BackgroundServer
from liveedge.settings import Settings
from liveedge.sim.questions import TEST_SEEDS
from liveedge.sim.render import Renderer
from liveedge.sim.scene import Workcell
from liveedge.sim.y4m import Y4mWriter
from liveedge.testing.engine import FakeEngine

PROGRAMS = (
    "ask",
    "openai_client",
    "publish_livekit",
    "publish_whip",
    "push_frames",
    "warm_window",
    "watch",
)
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server(model=None, port=None, clock=SystemClock()) as server:
        yield server.url


def attempt(program: str, *arguments: str, **environment: str) -> tuple[int, str]:
    """Exit status and complaint."""
    command = [sys.executable, str(EXAMPLES / f"{program}.py"), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    return done.returncode, done.stderr


def run(program: str, *arguments: str) -> str:
    return told(program, *arguments)[0]


def told(program: str, *arguments: str) -> tuple[str, str]:
    """What it prints, and what it says beside."""
    command = [sys.executable, str(EXAMPLES / f"{program}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def test_every_example_is_run_here():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS)
def test_without_arguments_an_example_tells_how_it_is_used(program: str):
    status, said = attempt(program)
    assert status == 1
    assert f"python examples/{program}.py http://127.0.0.1:8000" in said
    assert "LIVEEDGE_API_KEY" in said


def test_the_key_is_sent_and_what_the_server_says_is_shown(tmp_path: Path):
    Image.new("RGB", (64, 48)).save(tmp_path / "a.png")
    clock = SystemClock()
    settings = Settings(port=0, api_key="sk-right")
    with BackgroundServer(
        settings, clock=clock, load_engine=lambda: FakeEngine(clock=clock)
    ) as server:
        for program, arguments in {
            "ask": ["none", "What?"],
            "openai_client": [],
            "publish_livekit": [__file__, "What?"],
            "publish_whip": [__file__, "What?"],
            "push_frames": [str(tmp_path), "What?"],
            "warm_window": ["none", "What?"],
            "watch": ["none", "What?"],
        }.items():
            _, said = attempt(program, server.url, *arguments, LIVEEDGE_API_KEY="sk-wrong")
            assert said.startswith("401"), said
            assert "Traceback" not in said
        _, said = attempt("ask", server.url, "none", "What?", LIVEEDGE_API_KEY="sk-right")
        assert "stream_not_found" in said
        status, said = attempt(
            "push_frames", server.url, str(tmp_path), "?", LIVEEDGE_API_KEY="sk-right"
        )
        assert status == 0, said


def test_ask_prints_the_answer(url: str):
    with Client(url, clock=SystemClock()) as client:
        stream_id = client.create_stream({"type": "sim"})["id"]
        while client.stream(stream_id)["retained_frame_count"] == 0:
            SystemClock().wait(threading.Event(), 0.05)  # the camera is open; its first frame comes
        assert run("ask", url, stream_id, "Is the lamp on or off?") in ("on", "off")


def test_questions_about_a_warm_window_reuse_its_tokens(url: str):
    with Client(url, clock=SystemClock()) as client:
        stream_id = client.create_stream({"type": "sim"})["id"]
        while client.stream(stream_id)["stream_time_ms"] < 5000:
            SystemClock().wait(threading.Event(), 0.1)
        answers, beside = told("warm_window", url, stream_id, *["Is the lamp on or off?"] * 8)
        assert [line in ("on", "off") for line in answers.split("\n")] == [True] * 8
        reused = [int(number) for number in re.findall(r"(\d+) tokens were reused", beside)]
        computed = [int(number) for number in re.findall(r"(\d+) computed", beside)]
        assert len(reused) == len(computed) == beside.count("ms old;") == 8
        # A question in the moment after a tick may be ahead of its window; not all of them are, however
        # busy the machine is.
        assert any(old > 10 * new > 0 for old, new in zip(reused, computed, strict=True))
        assert client.stream(stream_id)["windows"] == []


def test_a_watch_tells_what_changed(url: str):
    with Client(url, clock=SystemClock()) as client:
        stream_id = client.create_stream({"type": "sim"})["id"]
        answers, beside = told("watch", url, stream_id, "Is the lamp on or off?", "3")
        assert [line in ("on", "off") for line in answers.split("\n")] == [True] * 3
        assert beside.count("frame ") == 3
        assert "ended: max_results" in beside


def test_the_openai_client_sees_a_clip(url: str):
    assert run("openai_client", url) in ("left", "right", "stopped")


def test_pushed_frames_are_answered_about(url: str, tmp_path: Path):
    workcell = Workcell(TEST_SEEDS.start)
    renderer = Renderer(workcell, width=854, height=480)
    for number in range(2):
        picture = Image.fromarray(renderer.render(number, 5.0 + number, 0))
        picture.save(tmp_path / f"{number}.png")
    lamp = "on" if workcell.state(6.0).lamp else "off"
    assert run("push_frames", url, str(tmp_path), "Is the lamp on or off?") == lamp


@pytest.mark.parametrize("program", ["publish_whip", "publish_livekit"])
def test_a_published_file_is_answered_about(url: str, tmp_path: Path, program: str):
    workcell = Workcell(TEST_SEEDS.start)
    renderer = Renderer(workcell, width=854, height=480)
    video = tmp_path / "camera.y4m"
    with Y4mWriter(video, width=854, height=480, fps=Fraction(10)) as writer:
        for number in range(10):
            writer.write(renderer.render(number, 6.0, 0))
    lamp = "on" if workcell.state(6.0).lamp else "off"
    assert run(program, url, str(video), "Is the lamp on or off?") == lamp
