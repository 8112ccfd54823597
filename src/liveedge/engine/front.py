"""From a checkpoint folder and settings to what can be known without torch: prompts, sizes, facts.

This is the half of a start that runs where HTTP is served; `start` is the other one.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

from liveedge.core.clock import Clock
from liveedge.core.errors import SettingsInvalid
from liveedge.engine.interface import EngineSettings, ModelInfo
from liveedge.engine.memory.plan import VALUE_BYTES
from liveedge.engine.memory.sizing import Sizing, model_shape, plan_sizes
from liveedge.models.qwen3_vl.prompt import PromptBuilder
from liveedge.models.registry import family_of

Device: TypeAlias = Literal["cpu", "cuda"]

CUDA_DRIVER = "libcuda.so.1"
CUDA_KERNELS = Path("lib") / "libtorch_cuda.so"  # in the folder of torch; absent in builds for CPU


class Front:
    """What the API process keeps of a model. Immutable after construction."""

    def __init__(self, folder: Path, settings: EngineSettings, clock: Clock) -> None:
        started_s = clock.monotonic_s()
        family = family_of(folder)
        self.builder: PromptBuilder = family.open_prompts(folder)
        self.settings = replace(settings, device=find_device(settings.device))
        self.sizing = sizes(self.settings, self.builder)
        self.model = self._model_info(folder, supports_video=family.supports_video)
        self.startup_ms = {"tokenizer": (clock.monotonic_s() - started_s) * 1000}

    def _model_info(self, folder: Path, *, supports_video: bool) -> ModelInfo:
        pixels, limit = self.builder.pixels, self.sizing.max_frame_px
        return ModelInfo(
            model_id=self.settings.model_id or folder.name,
            max_model_len=self.sizing.max_model_len,
            supports_video=supports_video,
            image_max_pixels=min(pixels.image.max_pixels, limit),
            video_max_pixels=min(pixels.video.max_pixels, limit),
            token_px=self.builder.config.vision.factor,
        )


def sizes(settings: EngineSettings, builder: PromptBuilder) -> Sizing:
    """The sizes that will run, for a device that was found."""
    assert settings.device != "auto"
    value_bytes = VALUE_BYTES[settings.device]
    return plan_sizes(settings, model_shape(builder.config), value_bytes=value_bytes)


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
