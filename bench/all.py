"""The short version of every program here, one after the other: `make bench`.

Ends, like each of them, with one line of JSON: the figures of all, by program.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from report import finish

HERE = Path(__file__).resolve().parent
SHORT = {
    "warm_ttft": ["--frames", "8", "--runs", "3", "--slides", "10"],
    "fork": ["--rounds", "5"],
    "mixed_load": ["--seconds", "5"],
    "preprocess": ["--runs", "7", "--requests", "15"],
    "decode": ["--quick"],
    "cold_start": ["--runs", "2"],
    "engine_kill": ["--quick"],
    "memory_slope": ["--pictures", "300"],
    "history": ["--quick"],
    "ingest": ["--seconds", "5", "--runs", "1", "--max-streams", "6"],
    "consumers": ["--minutes", "1"],
    "faults": ["--quick"],
    "overload": ["--quick"],
}


def main() -> int:
    figures, failed = {}, False
    for name, arguments in SHORT.items():
        print(f"== {name} {' '.join(arguments)}\n", flush=True)
        command = [sys.executable, str(HERE / f"{name}.py"), *arguments, *sys.argv[1:]]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        print(done.stdout, flush=True)
        if done.returncode != 0:
            print(f"{name} ended with status {done.returncode}", file=sys.stderr)
            failed = True
            continue
        figures[name] = json.loads(done.stdout.splitlines()[-1])
    finish(figures)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
