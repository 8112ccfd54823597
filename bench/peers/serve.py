"""One side of the comparison as a server, until Ctrl-C or SIGTERM.

    PYTHONPATH=src:bench python -m peers.serve --side llama.cpp --llama FOLDER --port 8002

Started with the flags of the comparison. Once it answers, one line of JSON says what a scenario
needs: the base URL, the model's id (the same on every side), in which ways it takes frames, and
the process to sample. If the server ends by itself, so does this, with its last words.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from peers.names import model_id
from peers.process import end_on_sigterm, free_port, running
from peers.sides import MODES, add_arguments, chosen

LOOK_S = 1.0  # between two looks at whether it still runs


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--side", choices=MODES, required=True)
    parser.add_argument("--port", type=int, help="default: a free one")
    parser.add_argument("--fps", type=float, default=2.0, help="of frames sent as a video")
    options = parser.parse_args(arguments)
    options.sides = options.side
    return options


def main() -> None:
    options = parse()
    end_on_sigterm()
    port = options.port or free_port()
    with tempfile.TemporaryDirectory() as work:
        sides = chosen(options, work=Path(work), fps=options.fps)
        if not sides:
            raise SystemExit(f"{options.side} needs its own flag: see --help")
        with running(sides[0].launch(port), port=port) as server:
            told = {
                "side": options.side,
                "base_url": f"{server.url}/v1",
                "model": model_id(options.model),
                "modes": sides[0].modes,
                "pid": server.pid,
                "ready_s": round(server.ready_s, 2),
            }
            print(json.dumps(told), flush=True)
            while True:
                time.sleep(LOOK_S)
                server.check()


if __name__ == "__main__":
    main()
