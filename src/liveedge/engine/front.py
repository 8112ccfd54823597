"""From a checkpoint folder and settings to what can be known without torch: prompts, sizes, facts.

This is the half of a start that runs where HTTP is served; `start` is the other one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from liveedge.core.clock import Clock
from liveedge.engine.device import find_device
from liveedge.engine.interface import EngineSettings, ModelInfo
from liveedge.engine.memory.plan import VALUE_BYTES
from liveedge.engine.memory.sizing import Sizing, model_shape, plan_sizes
from liveedge.models.qwen3_vl.prompt import PromptBuilder
from liveedge.models.registry import family_of


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
