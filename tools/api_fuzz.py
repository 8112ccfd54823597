"""Asks a server everything that its own `/openapi.json` allows, and much that it does not.

    python tools/api_fuzz.py --minutes 10 [--seed 1] [--report FOLDER]

Starts a server with the shipped model and a stream of the simulator, runs schemathesis against it
with all its checks, and prints calls and statuses per route. Ends with one line of JSON; status 1
where schemathesis found something. `api_fuzz_hooks.py` makes the generated requests meaningful, and
`CONFIG` tells, with reasons, where our API is meant to differ from what schemathesis expects.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from liveedge.client.local_server import running_server
from liveedge.core.clock import SystemClock
from liveedge.core.tasks import OwnedThread
from liveedge.media.picture import encode_picture

HERE = Path(__file__).parent
KEY = "key-of-the-fuzzer"
FLAGS = (
    "--api-key", KEY, "--timeout-ms", "8000", "--max-streams-per-key", "12",
    "--hot-mb", "8", "--history-mb", "4", "--log-level", "warning",
)  # fmt: skip
KEEPALIVE_S = 60.0
MARGIN_S = 300.0  # that schemathesis may take beyond its time, before it is given up

# What is expected in vain, and why:
# - 501 is the wire's answer for what a server cannot do as configured (viewer tokens without a
#   LiveKit server, ICE restarts); no other 5xx is allowed.
# - An ended stream is told about for its tombstone's 300 s, so it can be looked at (200) after its
#   deletion (`use_after_free`).
# - Unknown fields and parameters are accepted at every level: that is the wire's first rule, so
#   extra parameters alone are no negative data (`allow-extra-parameters`).
# - A body that fits its schema may still be refused: for what a reference names (400), for a picture
#   that is none (400), for its size (413), for rules between two fields and whole numbers written
#   as `5.0` (422), for a frame that is gone (410), for an If-Match of another session (412), for
#   a camera that does not answer (422).
CONFIG = """
continue-on-failure = true
request-timeout = 30
max-stream-events = 400
hooks = "api_fuzz_hooks"
suppress-health-check = ["all"]

[generation]
allow-extra-parameters = false
with-security-parameters = false
database = "none"
max-examples = {max_examples}

[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 501]
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 406, 409, 410, 412, 413, 415, 422, 428, 429, 501]
[checks.positive_data_acceptance]
expected-statuses = ["2xx", 400, 401, 403, 404, 409, 410, 412, 413, 422, 429, 501]
[checks.missing_required_header]
expected-statuses = [400, 401, 403, 404, 406, 415, 422, 428]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a run has seen."""

    status: int  # of schemathesis: 0 where nothing was found
    calls: Mapping[str, Mapping[str, int]]  # statuses per route
    output: str

    @property
    def n_calls(self) -> int:
        return sum(sum(codes.values()) for codes in self.calls.values())

    @property
    def by_status(self) -> Mapping[str, int]:
        total: Counter[str] = Counter()
        for codes in self.calls.values():
            total.update(codes)
        return dict(sorted(total.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, help="folder for schemathesis's own report")
    options = parser.parse_args()
    with running_server(model=None, port=None, clock=SystemClock(), flags=FLAGS) as server:
        found = fuzz(
            server.url, key=KEY, seconds=options.minutes * 60, seed=options.seed,
            report=options.report,
        )  # fmt: skip
        server.check()
    print(found.output)
    others = 0
    for route, codes in sorted(found.calls.items()):
        if set(codes) == {"405"}:  # a method that the route does not have
            others += codes["405"]
            continue
        print(f"{route:55} {sum(codes.values()):7}  {dict(sorted(codes.items()))}")
    print(f"{'methods that routes do not have':55} {others:7}")
    figures = {"calls": found.n_calls, "by_status": found.by_status, "status": found.status}
    print(json.dumps(figures))
    return 1 if found.status else 0


def fuzz(
    url: str,
    *,
    key: str,
    seconds: float | None,
    seed: int,
    report: Path | None = None,
    max_examples: int = 50,
    flags: Sequence[str] = (),
) -> Found:
    """Run schemathesis against a server that accepts `key`; `flags` are schemathesis's own.

    For `seconds`; None: until `max_examples` of each operation have been tried once.
    """
    with tempfile.TemporaryDirectory() as folder, _streams(url, key) as streams:
        config = Path(folder) / "schemathesis.toml"
        config.write_text(CONFIG.format(max_examples=max_examples), encoding="utf-8")
        counts = Path(folder) / "counts.json"
        command = [
            str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(config),
            "--no-color", "run", f"{url}/openapi.json", "--checks", "all",
            "--exclude-checks", "use_after_free", "--workers", "1",
            "--seed", str(seed), *flags,
        ]  # fmt: skip
        if seconds is not None:
            command += ["--max-time", str(max(1, round(seconds)))]
        if report is not None:
            command += ["--report", "ndjson,junit", "--report-dir", str(report.resolve())]
        ours = {
            "API_FUZZ_COUNTS": str(counts),
            "API_FUZZ_STREAMS": json.dumps(streams),
            "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
        }
        ended = subprocess.run(
            command, cwd=folder, env=os.environ | ours, capture_output=True, text=True,
            timeout=(seconds or 0) + MARGIN_S, check=False,
        )  # fmt: skip
        calls = json.loads(counts.read_text(encoding="utf-8")) if counts.exists() else {}
        return Found(status=ended.returncode, calls=calls, output=ended.stdout + ended.stderr)


@contextmanager
def _streams(url: str, key: str) -> Iterator[dict[str, Any]]:
    """A stream of the simulator and a pushed one, kept alive, and one for publishers."""
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as client:

        def create(body: dict[str, Any]) -> dict[str, Any]:
            answer = client.post("/streams", json=body)
            answer.raise_for_status()
            created: dict[str, Any] = answer.json()
            return created

        live = create({"source": {"type": "sim"}})
        pushed = create({"source": {"type": "push"}})
        published = create({})
        for n in range(3):
            data = encode_picture(np.full((48, 64, 3), 80 * n, np.uint8), "jpeg")
            client.post(f"/streams/{pushed['id']}/frames", content=data).raise_for_status()

        def keep(stopping: threading.Event) -> None:
            while not stopping.wait(KEEPALIVE_S):
                for stream in (live, pushed, published):
                    client.post(f"/streams/{stream['id']}/keepalive")

        keeper = OwnedThread("keepalive", keep)
        keeper.start()
        try:
            yield {
                "key": key,
                "live": live["id"],
                "pushed": pushed["id"],
                "published": published["id"],
                "token": published["publish"]["token"],
            }
        finally:
            keeper.stop(5)


if __name__ == "__main__":
    sys.exit(main())
