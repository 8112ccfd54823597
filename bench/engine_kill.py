"""kill -9 of the engine in the middle of an answer, again and again: what the cameras and clients see.

    python bench/engine_kill.py --kills 20

A server with a simulated camera. In each round an answer is being written when its engine process is
killed; then the same question is asked until it is answered correctly again, as the frame's own
burned-in code tells. Checked: the stream's index keeps counting and its lease is the same, the broken
answer ended with one error, nothing is left in shared memory, no descriptor and no thread more.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from liveedge.bench.soak.raw import ENDLESS
from liveedge.client.http import Client, Refused, image_part
from liveedge.client.local_server import Started, running_server
from liveedge.client.truth import Oracle
from liveedge.core.clock import SystemClock
from liveedge.sim.questions import KINDS, TEST_SEEDS
from machine import announce
from report import finish, percentile, table

SEED = TEST_SEEDS.start
KIND = "door"
QUESTION = KINDS[KIND].phrasings[0]
LIMIT_S = 120.0
POLL_S = 0.02
REST_S = 6.0  # between two rounds: a standby is ready again, as it is at the second crash of a day


@dataclass(frozen=True, slots=True)
class Held:
    """What the server's process holds."""

    fds: int
    threads: int
    memory_files: int  # anonymous shared memory, by its descriptors
    shared_memory: int  # names in /dev/shm


@dataclass(frozen=True, slots=True)
class Round:
    """One kill."""

    recover_s: float  # the kill to the next correct answer
    refused: int  # answers in between that were 503
    error: str  # how the broken answer ended
    index_moved: bool
    lease_kept: bool


class Bench:
    """One server, one camera, one client."""

    def __init__(self, server: Started, client: Client) -> None:
        self._server = server
        self._client = client
        self._model = str(client.models()[0]["id"])
        source = {"type": "sim", "url": f"sim://workcell?seed={SEED}"}
        self.stream_id = str(client.create_stream(source)["id"])
        self._oracle = Oracle(client, self.stream_id, seed=SEED)

    def stream(self) -> dict[str, Any]:
        return self._client.stream(self.stream_id)

    def kill_in_an_answer(self) -> Round:
        """One round."""
        before = self.stream()
        talking, error = threading.Event(), [""]
        answer = threading.Thread(target=lambda: error.__setitem__(0, self._talk(talking)))
        answer.start()
        if not talking.wait(LIMIT_S):
            raise SystemExit("the answer that was to be broken never began")
        killed_s = time.perf_counter()
        os.kill(self._engine_pid(), signal.SIGKILL)
        refused = self._until_correct()
        recover_s = time.perf_counter() - killed_s
        answer.join(LIMIT_S)
        after = self.stream()
        self._client.keep_alive(self.stream_id)
        return Round(
            recover_s=recover_s,
            refused=refused,
            error=error[0],
            index_moved=after["last_frame_index"] > before["last_frame_index"],
            lease_kept=after["state"] == "active" and after["id"] == self.stream_id,
        )

    def _talk(self, talking: threading.Event) -> str:
        """A long answer on a connection of its own; how it ended."""
        with Client(self._server.url, clock=SystemClock()) as client:
            try:
                client.ask(
                    [{"type": "text", "text": "Tell me a story."}],
                    model=self._model,
                    response_format=ENDLESS,
                    max_tokens=4000,
                    on_text=lambda _text: talking.set(),
                )
            except Refused as refusal:
                return refusal.code
        return "none: it was finished"

    def _until_correct(self) -> int:
        """Ask until the answer is the truth about its own frame; how often it was refused."""
        n_refused = 0
        limit_s = time.perf_counter() + LIMIT_S
        while time.perf_counter() < limit_s:
            try:
                if self.is_correct():
                    return n_refused
            except Refused as refusal:
                if refusal.status not in (200, 503):
                    raise
                n_refused += 1
            time.sleep(POLL_S)
        raise SystemExit(f"no correct answer within {LIMIT_S:.0f} s after a kill")

    def is_correct(self) -> bool:
        part = image_part(self.stream_id, frame_index=-1)
        content = [part, {"type": "text", "text": QUESTION}]
        answer = self._client.ask(content, model=self._model, max_tokens=8)
        truth = self._oracle.expected(KIND, answer)
        return truth is not None and answer.text.strip().lower() == truth

    def _engine_pid(self) -> int:
        """The engine that answers: the oldest child of the server."""
        tasks = Path(f"/proc/{self._server.pid}/task")
        children = {
            int(pid)
            for task in tasks.iterdir()
            for pid in (task / "children").read_text().split()
            if "liveedge.engine.process.main" in Path(f"/proc/{pid}/cmdline").read_text()
        }
        return min(children, key=started_at)

    def held(self) -> Held:
        process = Path(f"/proc/{self._server.pid}")
        links = [link for fd in (process / "fd").iterdir() if (link := target(fd))]
        return Held(
            fds=len(links),
            threads=len(list((process / "task").iterdir())),
            memory_files=sum("memfd:" in link for link in links),
            shared_memory=len(list(Path("/dev/shm").iterdir())),
        )


def started_at(pid: int) -> int:
    """Ticks of the system's clock; process numbers may wrap around."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def target(fd: Path) -> str:
    try:
        return str(fd.readlink())
    except FileNotFoundError:  # closed since the folder was listed
        return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rest", type=float, default=REST_S, help="seconds between two rounds")
    parser.add_argument("--no-standby", action="store_true", help="no process waits for its turn")
    parser.add_argument("--quick", action="store_true", help="one kill, to see that it works")
    options = parser.parse_args()
    announce()
    flags = ["--no-standby"] if options.no_standby else []
    clock = SystemClock()
    with (
        running_server(model=None, port=None, clock=clock, flags=flags) as server,
        Client(server.url, clock=clock) as client,
    ):
        bench = Bench(server, client)
        while bench.stream()["last_frame_at_ms"] is None:
            time.sleep(POLL_S)
        bench.kill_in_an_answer()  # the first one starts threads and connections for good
        time.sleep(options.rest)
        before = bench.held()
        rounds: list[Round] = []
        for _ in range(1 if options.quick else options.kills):
            rounds.append(bench.kill_in_an_answer())
            time.sleep(options.rest)
        return tell(rounds, before, bench.held())


def tell(rounds: list[Round], before: Held, after: Held) -> int:
    rows = [
        (n + 1, r.recover_s, r.refused, r.error, str(r.index_moved), str(r.lease_kept))
        for n, r in enumerate(rounds)
    ]
    table(("kill", "recovered s", "503s", "broken answer", "index moved", "lease kept"), rows)
    grown = {
        "fds": after.fds - before.fds,
        "threads": after.threads - before.threads,
        "memory files": after.memory_files - before.memory_files,
        "names in /dev/shm": after.shared_memory - before.shared_memory,
    }
    table(("of the server", "more than before"), list(grown.items()))
    leaked = max(0, grown["memory files"]) + max(0, grown["names in /dev/shm"])
    recover_s = [r.recover_s for r in rounds]
    figures = {
        "kills": len(rounds),
        "recover_p50_s": percentile(recover_s, 50),
        "recover_p95_s": percentile(recover_s, 95),
        "leases_lost": sum(not r.lease_kept for r in rounds),
        "index_ok": all(r.index_moved for r in rounds),
        "errors_ok": all(r.error == "model_unavailable" for r in rounds),
        "leaked": leaked,
        "fds_grown": grown["fds"],
        "threads_grown": grown["threads"],
    }
    finish(figures)
    lost = figures["leases_lost"] or leaked or grown["fds"] > 0
    return 0 if figures["index_ok"] and figures["errors_ok"] and not lost else 1


if __name__ == "__main__":
    sys.exit(main())
