"""Where the model will run, found out without torch and without what prompts need: a server must know it
before it listens."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

from liveedge.core.errors import SettingsInvalid

Device: TypeAlias = Literal["cpu", "cuda"]

CUDA_DRIVER = "libcuda.so.1"
CUDA_KERNELS = Path("lib") / "libtorch_cuda.so"  # in the folder of torch; absent in builds for CPU


def find_device(asked: Literal["auto", "cpu", "cuda"]) -> Device:
    """Where the model will run; never another one than was asked. Sizes depend on it, so both
    halves must know it, and only one of them has torch."""
    if asked == "cpu":
        return "cpu"
    has_cuda = _torch_has_cuda() and n_cuda_devices() > 0
    if asked == "cuda" and not has_cuda:
        raise SettingsInvalid(
            "device is cuda, and there is no CUDA device or no build of torch for it: use cpu or"
            " auto"
        )
    return "cuda" if has_cuda else "cpu"


def n_cuda_devices(driver: str = CUDA_DRIVER) -> int:
    """What the driver shows to this process; 0 without one."""
    try:
        cuda = ctypes.CDLL(driver)
    except OSError:
        return 0
    count = ctypes.c_int()
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def _torch_has_cuda() -> bool:
    found = find_spec("torch")  # imports nothing
    folders = () if found is None else found.submodule_search_locations or ()
    return any((Path(folder) / CUDA_KERNELS).exists() for folder in folders)
