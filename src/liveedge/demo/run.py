"""The demonstration from start to end: serve, watch, ask, compare with the truth, report."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from liveedge.client.http import Answer, Client, Refused
from liveedge.client.local_server import ServerFailed, Started, running_server
from liveedge.client.truth import CodeUnreadable, Oracle
from liveedge.core.clock import Clock, SystemClock
from liveedge.demo.report import JsonReport, Report, Result, TextReport, passed, summarise
from liveedge.demo.script import CLIP_S, PAST_S, SCRIPT, Step, media_part
from liveedge.sim.questions import TEST_SEEDS, score

DEFAULT_SEED = TEST_SEEDS.start  # a scene the shipped model was not trained on
ASK_AGAIN_S = 0.3  # a door half way or a box in the air is decided soon
UNDECIDED_LIMIT_S = 30.0
SILENCE_LIMIT_S = 20.0  # a loaded machine may render slower than real time
POLL_S = 0.05
KEEP_ALIVE_S = 100.0  # a third of the lease
CHECK_S = 0.5  # how soon the end of the server is told


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What the command line asked for."""

    once: bool = False
    as_json: bool = False
    model: str | None = None  # None: the shipped one
    port: int | None = None  # None: a free one
    seed: int = DEFAULT_SEED


def run(options: DemoOptions) -> int:
    """The exit status: 0 if at least nine of ten answers were right and none failed."""
    report: Report
    report = JsonReport() if options.as_json else TextReport(colours=sys.stdout.isatty())
    clock = SystemClock()
    try:
        with (
            _terminable(),
            running_server(
                model=options.model, port=options.port, clock=clock, progress=report.working
            ) as server,
            Client(server.url, clock=clock) as client,
        ):
            report.worked()
            return Demo(client, clock, report, options).perform(server)
    except (ServerFailed, Refused, CodeUnreadable) as error:
        report.worked()
        report.progress(f"liveedge demo: {error}")
        return 1
    except KeyboardInterrupt:
        report.worked()
        report.progress("stopped")
        return 130


class Demo:
    """One performance on a running server."""

    def __init__(self, client: Client, clock: Clock, report: Report, options: DemoOptions) -> None:
        self._client = client
        self._clock = clock
        self._report = report
        self._options = options
        self._never = threading.Event()
        self._exact_index = 0  # the frame that "frame" and "same frame" are about

    def perform(self, server: Started) -> int:
        model = self._client.models()[0]["id"]
        begun_s = self._clock.monotonic_s()
        source = {"type": "sim", "url": f"sim://workcell?seed={self._options.seed}"}
        stream_id = self._client.create_stream(source)["id"]
        self._wait_for(stream_id, stream_time_s=0.001, what="the first frames")
        startup_ms = {
            "server": server.process_ms,
            "model": server.model_ms,
            "first frame": (self._clock.monotonic_s() - begun_s) * 1000,
        }
        oracle = Oracle(self._client, stream_id, seed=self._options.seed)
        results: list[Result] = []
        for number, step in enumerate(SCRIPT, start=1):
            result = self._settle(step, oracle, stream_id, model)
            server.check()  # a question that failed with the server is not the question's failure
            if number == 1:
                startup_ms["first answer"] = result.total_ms
                self._report.started(startup_ms, server.model_stages_ms())
            results.append(result)
            self._report.result(number, result)
        summary = summarise(results, startup_ms)
        self._report.summary(summary)
        if not self._options.once:
            self._stay(server, stream_id, model)
        return 0 if passed(summary) else 1

    def _settle(self, step: Step, oracle: Oracle, stream_id: str, model: str) -> Result:
        """Ask until the truth about the frames that were seen is decidable."""
        if step.moment == "10 s ago":
            self._wait_for(stream_id, stream_time_s=PAST_S + 0.5, what="10 s of past")
        if step.moment == "last 2 s":
            self._wait_for(stream_id, stream_time_s=CLIP_S + 0.5, what="2 s of past")
        limit_s = self._clock.monotonic_s() + UNDECIDED_LIMIT_S
        while True:
            try:
                answer = self._ask(step, stream_id, model)
                truth = oracle.expected(step.kind, answer)
            except (Refused, CodeUnreadable) as error:
                return _failed(step, str(error))
            if truth is not None:
                return _judged(step, answer, truth)
            if self._clock.monotonic_s() > limit_s:
                return _failed(step, f"not decidable for {UNDECIDED_LIMIT_S:.0f} s")
            self._clock.wait(self._never, ASK_AGAIN_S)

    def _ask(self, step: Step, stream_id: str, model: str) -> Answer:
        if step.moment == "frame":
            self._exact_index = int(self._client.stream(stream_id)["last_frame_index"])
        media = media_part(step, stream_id, exact_index=self._exact_index)
        question = {"type": "text", "text": step.question}
        return self._client.ask(
            [media, question], model=model, response_format=step.response_format
        )

    def _wait_for(self, stream_id: str, *, stream_time_s: float, what: str) -> None:
        end_s = self._clock.monotonic_s() + stream_time_s + SILENCE_LIMIT_S
        while True:
            stream = self._client.stream(stream_id)
            share = stream["stream_time_ms"] / 1000 / stream_time_s
            if share >= 1:
                break
            self._report.waiting(f"waiting for {what}", share)
            if self._clock.monotonic_s() > end_s:
                health = f"{stream.get('health')}: {stream.get('health_reason')}"
                raise ServerFailed(f"the camera does not give {what} ({health})")
            self._clock.wait(self._never, POLL_S)
        self._report.worked()

    def _stay(self, server: Started, stream_id: str, model: str) -> None:
        """Keep the stream alive until Ctrl-C. Raises ServerFailed when the server ends."""
        url = server.url
        path = os.environ.get("PYTHONPATH")  # set in a checkout, where nothing is installed
        program = f"{f'PYTHONPATH={path} ' if path else ''}{sys.executable} -m liveedge"
        ask = f'{program} ask --url {url} --stream {stream_id} "What is on the display?"'
        self._report.urls(
            [
                "",
                f"still running; stop with Ctrl-C. Model {model}, stream {stream_id}",
                f"  API       {url}/v1   (docs: {url}/docs)",
                f"  picture   {url}/v1beta/streams/{stream_id}/frame.jpg?frame_index=-1",
                f"  ask       {ask}",
            ]
        )
        renewed_s = self._clock.monotonic_s()
        while not self._clock.wait(self._never, CHECK_S):
            server.check()
            if self._clock.monotonic_s() - renewed_s >= KEEP_ALIVE_S:
                self._client.keep_alive(stream_id)
                renewed_s = self._clock.monotonic_s()


def _judged(step: Step, answer: Answer, truth: str) -> Result:
    block: dict[str, Any] = dict(answer.evidence)
    return Result(
        question=step.question,
        kind=step.kind,
        answer=answer.text,
        expected=truth,
        correct=score(step.kind, answer.text, truth),
        ttft_ms=answer.ttft_ms,
        total_ms=answer.total_ms,
        age_ms=block.get("age_ms"),
        frames=len(answer.frames),
        reused_tokens=int(block.get("tokens", {}).get("reused", 0)),
        timings_ms=block.get("timings_ms", {}),
        moment=step.moment,
    )


def _failed(step: Step, error: str) -> Result:
    return Result(
        question=step.question,
        kind=step.kind,
        answer="",
        expected="",
        correct=False,
        ttft_ms=0.0,
        total_ms=0.0,
        age_ms=None,
        frames=0,
        reused_tokens=0,
        moment=step.moment,
        error=error,
    )


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Ends the demonstration like Ctrl-C does when it is terminated or its terminal closes.

    By default either signal would end this process alone and leave its server running.
    """

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {
        number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
