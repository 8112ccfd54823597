"""vLLM on the CPU, served on this machine.

    PYTHONPATH=src:bench python -m peers.vllm_server MODEL --python ENVIRONMENT/bin/python

The flags are those of a fair comparison on few cores: float32 as every other side, no compilation
(a cold one takes minutes more), its prefix and media caches at their defaults.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from peers.names import model_id
from peers.process import Launch

FIXES = Path(__file__).resolve().parent / "vllm_fixes"
N_FRAMES_LIMIT = 16
PARALLEL = 4  # sequences of a batch


def launch(
    *, python: Path, model: Path, port: int, threads: int, parallel: int, fps: float
) -> Launch:
    """`python` is the interpreter of the environment that has vLLM."""
    limits = {"image": N_FRAMES_LIMIT, "video": 1}
    frames = {"video": {"num_frames": -1, "fps": fps}}  # take all, and this far apart
    flags = {
        "host": "127.0.0.1",
        "port": port,
        "served-model-name": model_id(model),
        "dtype": "float32",
        "max-model-len": 8192,
        "max-num-seqs": parallel,
        "limit-mm-per-prompt": json.dumps(limits),
        "media-io-kwargs": json.dumps(frames),
        # What it guesses from a template with a macro is a text without media in their places.
        "chat-template-content-format": "openai",
    }
    command = [str(python), "-m", "vllm.entrypoints.cli.main", "serve", str(model)]
    command += [f"--{name}={value}" for name, value in flags.items()]
    return Launch(
        command=[*command, "--enforce-eager"],
        environment={
            "PYTHONPATH": str(FIXES),
            "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(threads),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="checkpoint folder")
    parser.add_argument("--python", type=Path, required=True, help="interpreter that has vLLM")
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--parallel", type=int, default=PARALLEL, help="questions at a time")
    parser.add_argument("--fps", type=float, default=2.0, help="of frames sent as a video")
    options = parser.parse_args()
    start = launch(
        python=options.python,
        model=options.model,
        port=options.port,
        threads=options.threads,
        parallel=options.parallel,
        fps=options.fps,
    )
    start.become()


if __name__ == "__main__":
    main()
