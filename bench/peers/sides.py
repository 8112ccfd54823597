"""The servers that are compared: ours, and every peer that is named on the command line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from peers import llama_server, vllm_server
from peers.names import SHIPPED, model_id
from peers.process import Launch

HERE = Path(__file__).resolve().parent

Mode: TypeAlias = Literal["video", "images", "stream"]
LIVEEDGE, STOCK, VLLM, LLAMA = "liveedge", "transformers", "vllm", "llama.cpp"
# Ours gets its frames as they are captured, the peers with every question; a list of pictures in
# the question is what all of them understand. llama.cpp cuts a video into other groups of frames.
MODES: dict[str, tuple[Mode, ...]] = {
    LIVEEDGE: ("stream", "images"),
    STOCK: ("video", "images"),
    VLLM: ("video", "images"),
    LLAMA: ("images",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One server: its name, how it is started on a port, and in which ways it takes frames."""

    name: str
    modes: tuple[Mode, ...]
    launch: Callable[[int], Launch]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What every program here asks for."""
    parser.add_argument("--model", type=Path, default=SHIPPED, help="checkpoint folder")
    parser.add_argument("--vllm", type=Path, metavar="PYTHON", help="interpreter that has vLLM")
    parser.add_argument(
        "--llama", type=Path, metavar="FOLDER", help="llama.cpp's source with its build"
    )
    parser.add_argument(
        "--precision",
        choices=llama_server.PRECISIONS,
        default="f32",
        help="of llama.cpp's weights; every other side computes in float32",
    )
    parser.add_argument(
        "--sides",
        default=",".join(MODES),
        metavar="NAMES",
        help=f"of {', '.join(MODES)}; a peer also needs its own flag (default: all)",
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--parallel",
        type=int,
        metavar="N",
        help="questions that a peer answers at a time"
        f" (default: {llama_server.PARALLEL} of llama.cpp, {vllm_server.PARALLEL} of vLLM)",
    )


def title(model: Path) -> str:
    """What figures call a checkpoint: its folder alone may say no more than a version."""
    return "/".join(model.resolve().parts[-2:])


def chosen(options: argparse.Namespace, *, work: Path, fps: float) -> list[Side]:
    """The sides to run, in the order of `MODES`; weights of llama.cpp are converted into `work`."""
    names = options.sides.split(",")
    if unknown := set(names) - MODES.keys():
        raise SystemExit(f"--sides: {', '.join(sorted(unknown))} is none of {', '.join(MODES)}")
    found = {LIVEEDGE: _liveedge(options), STOCK: _stock(options, fps)}
    if options.vllm is not None:
        found[VLLM] = _vllm(options, fps)
    if options.llama is not None and LLAMA in names:
        found[LLAMA] = _llama(options, work)
    return [
        Side(name=name, modes=modes, launch=found[name])
        for name, modes in MODES.items()
        if name in names and name in found
    ]


def _liveedge(options: argparse.Namespace) -> Callable[[int], Launch]:
    def launch(port: int) -> Launch:
        command = [sys.executable, "-m", "liveedge", "serve", str(options.model)]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        command += ["--model-id", model_id(options.model)]
        return Launch(command=[*command, "--threads", str(options.threads)], ready_path="/ready")

    return launch


def _stock(options: argparse.Namespace, fps: float) -> Callable[[int], Launch]:
    def launch(port: int) -> Launch:
        command = [sys.executable, "-m", "peers.stock_server", str(options.model)]
        return Launch(
            command=[*command, "--port", str(port), "--fps", str(fps)],
            environment={
                "OMP_NUM_THREADS": str(options.threads),
                "PYTHONPATH": f"{SHIPPED.parents[2]}:{HERE.parent}",
            },
        )

    return launch


def _vllm(options: argparse.Namespace, fps: float) -> Callable[[int], Launch]:
    def launch(port: int) -> Launch:
        return vllm_server.launch(
            python=options.vllm,
            model=options.model,
            port=port,
            threads=options.threads,
            parallel=options.parallel or vllm_server.PARALLEL,
            fps=fps,
        )

    return launch


def _llama(options: argparse.Namespace, work: Path) -> Callable[[int], Launch]:
    weights = llama_server.convert(
        llama=options.llama, model=options.model, gguf=work, precision=options.precision
    )

    def launch(port: int) -> Launch:
        return llama_server.launch(
            llama=options.llama,
            model=options.model,
            weights=weights,
            port=port,
            threads=options.threads,
            parallel=options.parallel or llama_server.PARALLEL,
        )

    return launch
