"""The cameras of a scenario."""

from __future__ import annotations

import random
from typing import Any, Protocol

from liveedge.bench.interfaces import MediaSource
from liveedge.bench.scenario import Scenario
from liveedge.bench.sources.live import StreamCameras
from liveedge.bench.sources.streams import Streams
from liveedge.bench.sources.truth import scenes
from liveedge.bench.sources.uploads import UploadCameras
from liveedge.core.clock import Clock


class Cameras(MediaSource, Protocol):
    """A `MediaSource` that also tells how it went."""

    def report(self) -> dict[str, Any]:
        """Frames left out and pictures read, for `environment.json`."""
        ...


def media_source(
    scenario: Scenario, *, clock: Clock, chance: random.Random, api_key: str | None = None
) -> Cameras:
    """Made, not opened. Raises ScenarioInvalid where the scenario asks what cannot be."""
    known = scenes(scenario.sources)
    if scenario.target.delivery == "data":
        return UploadCameras(scenario, scenes=known, clock=clock)
    streams = Streams(scenario.target, api_key=api_key)
    return StreamCameras(scenario, streams=streams, scenes=known, clock=clock, chance=chance)
