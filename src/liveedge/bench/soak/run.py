"""One soak, or what is left of one: a server, all parts at once, and a log that says everything.

Each part runs in a thread of its own, and writes what it does. One that crashes is written down and
starts again; a server that ends is the end of the run.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from liveedge.bench.soak.asking import ask_on
from liveedge.bench.soak.churn import flap_on, keep_alive_on, leave_on, lose_on
from liveedge.bench.soak.fleet import Fleet
from liveedge.bench.soak.hostile import attack_on, fill_pools
from liveedge.bench.soak.killing import kill_on
from liveedge.bench.soak.leaving import leave_answers_on
from liveedge.bench.soak.log import NAME, Line, Log, read_log
from liveedge.bench.soak.looking import look_at_rest, look_on
from liveedge.bench.soak.options import OptionsInvalid, SoakOptions, options_of
from liveedge.bench.soak.place import Place, StreamTime
from liveedge.bench.soak.slow import read_slowly_on
from liveedge.bench.soak.watching import Watched, watch_on
from liveedge.client.http import Client, Refused
from liveedge.client.local_server import ServerFailed, Started, running_server
from liveedge.core.clock import SystemClock, clock_at
from liveedge.core.tasks import OwnedThread
from liveedge.core.version import VERSION

STATE = "state"  # folder of the server's streams
FIRST_FRAMES_REAL_S = 60.0
CHECK_S = 1.0  # real time between two looks at the parts
SAY_EVERY_S = 60.0
RESTART_S = 5.0
STOP_WITHIN_S = 90.0  # longer than the longest wait for an answer
# Pools of a size that this load fills; lines of the log that are worth a look.
SERVER_FLAGS = (
    *("--hot-mb=16", "--history-mb=32", "--encoder-cache-mb=64", "--max-windows=2"),
    "--log-level=warning",
)

Say = Callable[[str], None]


def begin(folder: Path, options: SoakOptions) -> None:
    """Make the folder and the first line of its log. Raises OptionsInvalid where there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    if path.exists():
        raise OptionsInvalid(
            f"{path} is there already: go on with --resume {folder}, or name another"
        )
    log = Log(path, now_s=lambda: 0.0)
    log.write("soak", options=options.as_json(), environment=environment())
    log.close()


def environment() -> Mapping[str, Any]:
    """Where this runs."""
    return {
        "version": VERSION,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "cores": os.cpu_count(),
        "command": shlex.join(["liveedge", *sys.argv[1:]]),
    }


def passed_s(lines: Sequence[Line]) -> float:
    """Stream time that has been soaked so far."""
    return max((float(line["at_s"]) for line in lines), default=0.0)


def go_on(folder: Path, say: Say, *, stopping: threading.Event | None = None) -> None:
    """Run what is left. Returns when the time is over, at SIGTERM, or where `stopping` is set.

    Raises ServerFailed, Refused.
    """
    lines = read_log(folder / NAME)  # tens of megabytes after hours
    options = options_of(lines, folder)
    offset_s = passed_s(lines)
    n_segment = sum(line["what"] == "segment" for line in lines) + 1
    del lines
    if offset_s >= options.seconds:
        say("nothing is left to do: the log is complete")
        return
    say(f"beginning at {offset_s / 3600:.2f} of {options.hours:g} hours; setting up takes minutes")
    real_clock, stream_clock = SystemClock(), clock_at(options.speed)
    with _server(folder, options, n_segment) as server:
        time = StreamTime(stream_clock, offset_s)
        log = Log(folder / NAME, now_s=lambda: time.now_s)
        log.write("segment", number=n_segment, wall_ms=real_clock.wall_ms(), **server.told)
        with Client(server.url, clock=real_clock) as client:
            model = str(client.models()[0]["id"])
        place = Place(
            url=server.url,
            model=model,
            pid=server.pid,
            options=options,
            log=log,
            stream_clock=stream_clock,
            real_clock=real_clock,
            time=time,
            stopping=stopping or threading.Event(),
            fleet=Fleet(server.url, options, first_seed=int(offset_s) + 100 * options.seed),
        )
        reason = "failed"
        try:
            with _until_told(place.stopping):
                reason = _soak(place, server.check, say)
        finally:
            log.write("end", number=n_segment, reason=reason, wall_ms=real_clock.wall_ms())
            log.close()


class _Server:
    """Ours, or one that runs already."""

    def __init__(self, url: str, pid: int | None, started: Started | None) -> None:
        self.url = url
        self.pid = pid
        self.check: Callable[[], None] = started.check if started else lambda: None
        self.told: Mapping[str, Any] = {
            "pid": pid,
            **(
                {"process_ms": round(started.process_ms), "model_ms": round(started.model_ms)}
                if started
                else {}
            ),
        }


@contextlib.contextmanager
def _server(folder: Path, options: SoakOptions, n_segment: int) -> Iterator[_Server]:
    if options.url is not None:
        yield _Server(options.url, options.pid, None)
        return
    state = folder / STATE
    state.mkdir(exist_ok=True)
    flags = [*SERVER_FLAGS, f"--retention-s={options.retention_s}", f"--state-dir={state}"]
    if options.speed != 1.0:
        flags.append(f"--clock-speed={options.speed:g}")
    with running_server(
        model=options.model,
        port=None,
        clock=SystemClock(),
        flags=[*flags, *options.serve_flags],
        log_path=folder / f"server-{n_segment}.log",
    ) as started:
        yield _Server(started.url, started.pid, started)


@contextlib.contextmanager
def _until_told(stopping: threading.Event) -> Iterator[None]:
    """SIGTERM ends the run in order; of a thread, whoever has started it decides."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _soak(place: Place, check: Callable[[], None], say: Say) -> str:
    """All parts, until the time is over; why it ended."""
    with place.client() as client:
        _clear(place, client)
        if place.options.url is None:
            fill_pools(place)  # takes longer than a lease, and nobody renews one yet
        try:
            for slot in range(len(place.fleet)):
                place.fleet.open(slot, client)
            _wait_for_frames(place, client)
            say(f"{len(place.fleet)} cameras are there, and everything begins")
            place.time.start()
            place.log.write("ready", streams=[c.stream_id for c in place.fleet.cameras()])
            reason = _run_parts(place, check, say)
            for slot in range(len(place.fleet)):
                place.fleet.end_publisher(slot)
            place.real_clock.wait(threading.Event(), place.options.rest_real_s)
            look_at_rest(place)
            return reason
        finally:
            place.stopping.set()
            _leave(place, client)


def _leave(place: Place, client: Client) -> None:
    """What is in the state folder of our own server stays: it is what the next segment restores."""
    for slot in range(len(place.fleet)):
        place.fleet.end_publisher(slot)
        if place.options.url is not None:
            with contextlib.suppress(Refused):
                place.fleet.close(slot, client)


def _clear(place: Place, client: Client) -> None:
    """Streams of the segment before, which the state folder has brought back."""
    if place.options.url is not None:
        return
    left = client.get("/v1beta/streams")["data"]
    for stream in left:
        client.delete_stream(stream["id"])
    place.log.write("restored", streams=len(left))


def _wait_for_frames(place: Place, client: Client) -> None:
    """Every camera has been seen once. Raises Refused."""
    limit_s = place.real_clock.monotonic_s() + FIRST_FRAMES_REAL_S
    for camera in place.fleet.cameras():
        while client.stream(camera.stream_id)["last_frame_index"] is None:
            if place.real_clock.monotonic_s() > limit_s:
                raise Refused(0, "no_frames", f"the {camera.kind} camera gives no frames")
            place.real_clock.wait(place.stopping, 0.1)


def parts(place: Place) -> Mapping[str, Callable[[], None]]:
    """Everything that goes on at once."""
    watched = Watched()
    every_ms = round(place.options.watch_every_s * 1000)
    change = {"on": "change", "min_interval_ms": every_ms}
    return {
        "look": partial(look_on, place),
        "ask": partial(ask_on, place),
        "watch": partial(watch_on, place, watched, "every", 0, {"every_ms": every_ms}),
        "watch-change": partial(watch_on, place, watched, "change", 1, change),
        "keep-alive": partial(keep_alive_on, place),
        "leave": partial(leave_on, place),
        "loss": partial(lose_on, place),
        "flap": partial(flap_on, place),
        "slow": partial(read_slowly_on, place, watched),
        "disconnect": partial(leave_answers_on, place),
        "hostile": partial(attack_on, place),
        "kill": partial(kill_on, place),
    }


def _run_parts(place: Place, check: Callable[[], None], say: Say) -> str:
    work = parts(place)
    running = {name: _started(name, part) for name, part in work.items()}
    said_s = place.real_clock.monotonic_s()
    try:
        while place.now_s < place.options.seconds:
            check()
            for name, thread in running.items():
                if not thread.alive and thread.error is not None:
                    _crashed(place, name, thread.error)
                    running[name] = _started(name, work[name])
            if place.real_clock.monotonic_s() - said_s >= SAY_EVERY_S:
                said_s = place.real_clock.monotonic_s()
                say(progress(place))
            if place.real_clock.wait(place.stopping, CHECK_S):
                return "stopped"
        return "done"
    finally:
        place.stopping.set()
        stuck = [name for name, thread in running.items() if not thread.stop(STOP_WITHIN_S)]
        if stuck:
            place.log.write("stuck", parts=stuck)


def _started(name: str, part: Callable[[], None]) -> OwnedThread:
    thread = OwnedThread(f"soak-{name}", lambda _stopping: part())
    thread.start()
    return thread


def _crashed(place: Place, name: str, error: BaseException) -> None:
    told = "".join(traceback.format_exception(error))[-2000:]
    place.log.write("crash", part=name, error=told)
    place.real_clock.wait(place.stopping, RESTART_S)


def progress(place: Place) -> str:
    """A line for people; accelerated time is called so."""
    hours, of = place.now_s / 3600, place.options.hours
    kind = (
        ""
        if place.options.speed == 1.0
        else f" of stream time, {place.options.speed:g}x accelerated"
    )
    return f"{hours:.2f} of {of:g} hours{kind}"


__all__ = ["ServerFailed", "begin", "go_on"]
