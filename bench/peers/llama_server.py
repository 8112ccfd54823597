"""llama.cpp's server on the CPU, on weights converted from the same checkpoint.

    PYTHONPATH=src:bench python -m peers.llama_server MODEL --llama FOLDER --gguf FOLDER

The folder is llama.cpp's source with its build inside (`build/bin/llama-server`). The interpreter
that runs this program also runs the converter, so it needs torch and transformers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from peers.names import model_id
from peers.process import Launch

CONVERTER = Path(__file__).resolve().parent / "llama_convert.py"
CONTEXT = 8192  # tokens of a slot
PARALLEL = 1  # slots
PRECISIONS = ("f32", "q8_0")


def convert(*, llama: Path, model: Path, gguf: Path, precision: str) -> tuple[Path, Path]:
    """(text weights, vision weights), written into `gguf` unless they are there."""
    text, vision = gguf / f"text-{precision}.gguf", gguf / f"vision-{precision}.gguf"
    for file, flags in ((text, []), (vision, ["--mmproj"])):
        if file.exists():
            continue
        command = [sys.executable, str(CONVERTER), str(llama), str(model), "--outtype", precision]
        done = subprocess.run(
            [*command, "--outfile", str(file), *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"{model} was not converted:\n{done.stdout[-3000:]}")
    return text, vision


def image_tokens(model: Path) -> tuple[int, int]:
    """(fewest, most) tokens of a picture by the checkpoint's own limits.

    The converter drops them, and the server's defaults would show a picture far larger.
    """
    pixels = json.loads((model / "preprocessor_config.json").read_text())
    token_px = (pixels["patch_size"] * pixels["merge_size"]) ** 2
    size = pixels["size"]
    return -(-size["shortest_edge"] // token_px), size["longest_edge"] // token_px


def launch(
    *,
    llama: Path,
    model: Path,
    weights: tuple[Path, Path],
    port: int,
    threads: int,
    parallel: int,
) -> Launch:
    """`parallel` slots; keys and values as exact as the weights where these are float32."""
    fewest, most = image_tokens(model)
    text, vision = weights
    command = [str(llama / "build/bin/llama-server"), "--model", str(text), "--metrics"]
    command += ["--mmproj", str(vision), "--host", "127.0.0.1", "--port", str(port), "--jinja"]
    command += ["--alias", model_id(model)]
    command += ["--parallel", str(parallel), "--ctx-size", str(CONTEXT * parallel)]
    command += ["--threads", str(threads), "--threads-batch", str(threads)]
    command += ["--image-min-tokens", str(fewest), "--image-max-tokens", str(most)]
    if "f32" in text.name:
        command += ["--cache-type-k", "f32", "--cache-type-v", "f32"]
    return Launch(command=command)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="checkpoint folder")
    parser.add_argument("--llama", type=Path, required=True, help="llama.cpp with its build")
    parser.add_argument("--gguf", type=Path, required=True, help="converted weights: kept here")
    parser.add_argument("--precision", choices=PRECISIONS, default="f32")
    parser.add_argument("--port", type=int, default=8002)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--parallel", type=int, default=PARALLEL, help="questions at a time")
    options = parser.parse_args()
    options.gguf.mkdir(parents=True, exist_ok=True)
    weights = convert(
        llama=options.llama, model=options.model, gguf=options.gguf, precision=options.precision
    )
    start = launch(
        llama=options.llama,
        model=options.model,
        weights=weights,
        port=options.port,
        threads=options.threads,
        parallel=options.parallel,
    )
    start.become()


if __name__ == "__main__":
    main()
