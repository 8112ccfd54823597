"""Keeps one source running: opens, watches, reconnects for ever.

Owns    two threads per stream: `source:<name>` decides, `source:<name>:<n>` runs attempt n.
Watch   a stall is the age of the newest frame, whatever the socket says.
Never   blocks another stream, repeats a URL, or lets a frame of an ended attempt through: an
        attempt that does not end in time is cut off from the stream and left to die alone. While
        too many of those live, there is no other attempt.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace

from liveedge.core.clock import Clock
from liveedge.core.errors import SourceUnavailable
from liveedge.core.log import bound
from liveedge.core.tasks import OwnedThread
from liveedge.frames.frame import CodedFrame, Frame, Pixels
from liveedge.media.source import FrameTarget, Health, Source, SourceLost, SourceStatus

log = logging.getLogger("liveedge.media")

_STUCK = "earlier attempts hang and cannot be ended: the next one waits for them"
_LONGEST_LOOK_S = 3600.0  # the supervisor is woken by events; this only bounds its wait


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorSettings:
    """Patience with a source."""

    open_within_s: float = 15.0
    first_frame_within_s: float = 30.0  # a camera may send key frames 10 s apart
    backoff_first_s: float = 0.5
    backoff_max_s: float = 10.0
    jitter: float = (
        0.3  # a wait is up to this fraction longer, so that cameras do not retry in step
    )
    stop_grace_s: float = 3.0  # an attempt that takes longer to end is abandoned
    max_abandoned: int = 3  # of one source at a time
    # After the source was open, nothing is given up: but a wrong password tried often locks an
    # account, so what looks hopeless is tried seldom.
    hopeless_wait_s: float = 30.0


class Backoff:
    """Waits that double up to a limit, each a little longer by chance."""

    def __init__(self, settings: SupervisorSettings, rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng
        self._step_s = settings.backoff_first_s

    def next_s(self) -> float:
        wait_s = self._step_s * (1 + self._settings.jitter * self._rng.random())
        self._step_s = min(self._step_s * 2, self._settings.backoff_max_s)
        return wait_s

    def reset(self) -> None:
        self._step_s = self._settings.backoff_first_s


class Supervisor:
    """One source, kept alive until `stop`.

    `start`, `status` and `stop` may be called from any thread; `stop` blocks.
    """

    def __init__(
        self,
        source: Source,
        target: FrameTarget,
        *,
        clock: Clock,
        name: str,
        settings: SupervisorSettings | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._source = source
        self._clock = clock
        self._name = name
        self._settings = settings or SupervisorSettings()
        self._backoff = Backoff(self._settings, rng or random.Random())
        self._board = _Board(target, clock=clock)
        self._thread = OwnedThread(f"source:{name}", self._supervise)
        self._n_attempts = 0
        self._last_reason = ""
        self._open_by_s = 0.0
        self._is_resumed = False
        self._abandoned: list[OwnedThread] = []
        self._is_hopeless = False

    def start(self) -> None:
        self._open_by_s = self._clock.monotonic_s() + self._settings.open_within_s
        self._thread.start()

    def resume(self) -> None:
        """`start` for a source that opened before the server was restarted: never given up."""
        self._is_resumed = True
        self.start()

    async def opened(self) -> None:
        """Return once the source has opened; raise `SourceUnavailable` if it did not in time."""
        waiting = asyncio.wrap_future(self._board.opened)
        waiting.add_done_callback(_retrieve)  # also where the caller has given up by then
        # Waited for in this way as a caller that gives up must not cancel the future for the others.
        await asyncio.wait((waiting,))
        waiting.result()

    def wait_opened(self, timeout_s: float) -> None:
        """The same for a thread, which waits `timeout_s` of real time at most."""
        self._board.opened.result(timeout_s)

    def status(self) -> SourceStatus:
        return self._board.status

    def stop(self, timeout_s: float = 5.0) -> bool:
        """End the source; True if its threads ended in time. No frame arrives after this."""
        self._board.cut()
        self._thread.stopping.set()
        self._board.wake.set()
        ended = self._thread.stop(timeout_s)
        self._board.fail(SourceUnavailable("the stream was ended while its source was opening"))
        return ended

    def _supervise(self, stopping: threading.Event) -> None:
        try:
            with bound(stream_ids=[self._name]):
                while self._run_once(stopping) and self._pause(stopping):
                    pass
        finally:
            self._board.show("ended", "" if stopping.is_set() else self._last_reason)
            self._board.fail(SourceUnavailable(self._failure()))

    def _pause(self, stopping: threading.Event) -> bool:
        """Wait before the next attempt; False if there shall be none."""
        wait_s = self._backoff.next_s()
        if self._is_hopeless:
            wait_s = max(wait_s, self._settings.hopeless_wait_s)
        if not self._may_give_up():
            return not self._clock.wait(stopping, wait_s)
        left_s = self._open_left_s()
        return not self._clock.wait(stopping, min(wait_s, left_s)) and wait_s < left_s

    def _run_once(self, stopping: threading.Event) -> bool:
        """One attempt; True if another one shall follow."""
        if not self._has_room():
            return self._judge(SourceLost(_STUCK), f"source:{self._name}")
        self._n_attempts += 1
        attempt = _Attempt(self._board)
        thread = OwnedThread(
            f"source:{self._name}:{self._n_attempts}",
            lambda stop: attempt.run(self._source, stop),
        )
        try:
            thread.start()
        except RuntimeError:  # the machine has no more; for a camera that runs for days it will
            return self._judge(SourceLost("there is no thread left for an attempt"), thread.name)
        stall = self._watch(attempt, stopping)
        attempt.cut()
        if not thread.stop(self._settings.stop_grace_s):
            log.warning("%s did not end in time and was abandoned", thread.name)
            self._abandoned.append(thread)
            self._has_room()
        if attempt.delivered:
            self._backoff.reset()
        if stopping.is_set():
            return False
        loss = stall or attempt.loss or _crash(thread.error)
        self._is_hopeless = loss is not None and loss.hopeless and not attempt.delivered
        return self._judge(loss, thread.name)

    def _has_room(self) -> bool:
        """Whether another attempt may begin, beside those that never ended."""
        self._abandoned = [thread for thread in self._abandoned if thread.alive]
        self._board.abandoned(len(self._abandoned))
        return len(self._abandoned) < self._settings.max_abandoned

    def _watch(self, attempt: _Attempt, stopping: threading.Event) -> SourceLost | None:
        """Wait until the attempt ends (None) or has to be ended (why)."""
        while not (attempt.done or stopping.is_set()):
            now_s = self._clock.monotonic_s()
            if self._may_give_up() and now_s >= self._open_by_s:
                # What an earlier attempt found out says more than that the last one was cut off.
                return SourceLost(self._last_reason or "timed out", hopeless=True)
            stalled = self._is_stalled(attempt, now_s)
            if stalled and self._source.restart_on_stall:
                return stalled
            if stalled:
                self._board.stalled(stalled.reason)
            self._clock.wait(self._board.wake, self._next_look_s(attempt, now_s))
            self._board.wake.clear()
        return None

    def _is_stalled(self, attempt: _Attempt, now_s: float) -> SourceLost | None:
        limit_s = self._patience_s(attempt)
        if limit_s is None or now_s - attempt.newest_s < limit_s:
            return None
        if not attempt.opened:
            return SourceLost("timed out")
        if self._source.restart_on_stall and not attempt.delivered:
            return SourceLost(
                f"no key frame for {limit_s:g} s: let the camera send them more often"
            )
        return SourceLost(f"no frame for {limit_s:g} s")

    def _patience_s(self, attempt: _Attempt) -> float | None:
        """How long the attempt may be silent in its present phase; None: for ever."""
        if not attempt.opened:
            return self._settings.open_within_s
        if attempt.delivered or self._source.stall_after_s is None:
            return self._source.stall_after_s
        return self._settings.first_frame_within_s if self._source.restart_on_stall else None

    def _next_look_s(self, attempt: _Attempt, now_s: float) -> float:
        """Seconds until something may have to be decided without being woken."""
        looks = [_LONGEST_LOOK_S]
        if self._may_give_up():
            looks.append(self._open_left_s())
        limit_s = self._patience_s(attempt)
        if limit_s is not None:
            left_s = attempt.newest_s + limit_s - now_s
            looks.append(left_s if left_s > 0 else limit_s)
        return min(looks)

    def _judge(self, loss: SourceLost | None, name: str) -> bool:
        if loss is None:  # the source returned: its end
            self._last_reason = "the source has ended"
            return False
        self._last_reason = loss.reason
        if self._may_give_up():
            return not loss.hopeless
        if loss.final:
            return False
        self._board.reconnecting(loss.reason)
        log.info("%s lost: %s", name, loss.reason)
        return True

    def _may_give_up(self) -> bool:
        return not (self._is_resumed or self._board.opened.done())

    def _open_left_s(self) -> float:
        return max(0.0, self._open_by_s - self._clock.monotonic_s())

    def _failure(self) -> str:
        kind, n = self._source.kind, self._n_attempts
        tries = "1 attempt" if n == 1 else f"{n} attempts"
        return f"the {kind} source could not be opened: {self._last_reason} ({tries})"


class _Board:
    """What is known about the source, shared by its attempts. Any thread."""

    def __init__(self, target: FrameTarget, *, clock: Clock) -> None:
        self.target = target
        self.clock = clock
        self.opened: Future[None] = Future()
        self.wake = threading.Event()
        self.lock = threading.RLock()
        self.is_cut = False
        self.now = SourceStatus(health="reconnecting", reason="opening")  # without what is counted
        self._n_received = self._n_broken = 0  # at every frame: cheaper than a new status

    def cut(self) -> None:
        with self.lock:
            self.is_cut = True

    def show(self, health: Health, reason: str, *, codec: str | None = None) -> None:
        with self.lock:
            codec = codec or self.now.codec
            self.now = replace(self.now, health=health, reason=reason, codec=codec)

    def stalled(self, reason: str) -> None:
        with self.lock:
            # Nobody is there who could stall; its reason says more.
            if self.now.health not in ("stalled", "waiting_for_publisher"):
                self.target.mark_gap()
                self.show("stalled", reason)

    def reconnecting(self, reason: str) -> None:
        with self.lock:
            self.target.mark_gap()
            n = self.now.reconnects + 1
            self.now = replace(self.now, health="reconnecting", reason=reason, reconnects=n)

    def abandoned(self, count: int) -> None:
        with self.lock:
            self.now = replace(self.now, abandoned=count)

    def count(self, *, received: int = 0, broken: int = 0) -> None:
        with self.lock:
            self._n_received += received
            self._n_broken += broken

    @property
    def status(self) -> SourceStatus:
        with self.lock:
            return replace(self.now, received_frames=self._n_received, broken_frames=self._n_broken)

    def succeed(self) -> None:
        with self.lock:
            if not self.opened.done():
                self.opened.set_result(None)
        self.wake.set()  # the time allowed for opening no longer counts

    def fail(self, error: SourceUnavailable) -> None:
        with self.lock:
            if not self.opened.done():
                self.opened.set_exception(error)


class _Attempt:
    """The sink of one run of the source; after `cut` nothing goes through it."""

    def __init__(self, board: _Board) -> None:
        self._board = board
        self._cut = False
        self.done = False
        self.opened = False
        self.delivered = False
        self.loss: SourceLost | None = None
        self.newest_s = board.clock.monotonic_s()  # newest sign of life: start, opening, frame

    def run(self, source: Source, stopping: threading.Event) -> None:
        try:
            source.run(self, stopping)
        except SourceLost as loss:
            self.loss = loss
        finally:
            self.done = True
            self._board.wake.set()

    def cut(self) -> None:
        with self._board.lock:
            self._cut = True

    def frame(
        self,
        pixels: Pixels,
        *,
        source_time_s: float | None = None,
        corrupt: bool = False,
        coded: CodedFrame | None = None,
    ) -> Frame | None:
        board = self._board
        with board.lock:
            if self._cut or board.is_cut:
                return None
            frame = board.target.publish(
                pixels, source_time_s=source_time_s, corrupt=corrupt, coded=coded
            )
            if frame is None:
                return None
            self.newest_s = board.clock.monotonic_s()
            board.count(received=1)
            if not self.delivered or board.now.health != "live":
                board.show("live", "")
                self._opened()
                self.delivered = True
                board.wake.set()  # from now on a stall is judged by the age of frames
            return frame

    def state(self, health: Health, reason: str = "", *, codec: str | None = None) -> None:
        with self._board.lock:
            if self._cut or self._board.is_cut:
                return
            if self._board.now.health == "waiting_for_publisher":  # one has come: a new silence
                self.newest_s = self._board.clock.monotonic_s()
                self._board.wake.set()
            self._board.show(health, reason, codec=codec)
            self._opened()

    def _opened(self) -> None:
        if not self.opened:
            self.opened = True
            self.newest_s = self._board.clock.monotonic_s()
            self._board.succeed()

    def broken(self, count: int = 1) -> None:
        with self._board.lock:
            if not (self._cut or self._board.is_cut):
                self._board.target.count_dropped("undecodable", n=count)
                self._board.count(broken=count)

    def dropped(self, reason: str, count: int = 1) -> None:
        with self._board.lock:
            if not (self._cut or self._board.is_cut):
                self._board.target.count_dropped(reason, n=count)

    def gap(self) -> None:
        with self._board.lock:
            if not (self._cut or self._board.is_cut):
                self._board.target.mark_gap()


def _retrieve(opened: asyncio.Future[None]) -> None:
    """Look at the error: one that nobody looks at is logged as never retrieved."""
    if not opened.cancelled():
        opened.exception()


def _crash(error: BaseException | None) -> SourceLost | None:
    return None if error is None else SourceLost("internal error in the source, see the log")
