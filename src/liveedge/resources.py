"""What will run, as far as memory goes: the plan of both processes, from settings and a checkpoint.

Made before anything is loaded or listens, without torch. What is free of a GPU only the engine's
process can know; it judges that part again with the same code (`engine.memory.fitting.check_device_memory`).
"""

from __future__ import annotations

from pathlib import Path

from liveedge.core.errors import SettingsInvalid
from liveedge.core.machine import memory_ceiling_bytes
from liveedge.engine.device import find_device
from liveedge.engine.interface import EngineSettings
from liveedge.engine.memory.fitting import fitting_plan
from liveedge.engine.memory.plan import (
    MIB,
    Budget,
    MemoryAsked,
    MemoryPlan,
    ServerPools,
    human,
    plan_memory,
    read_facts,
)
from liveedge.service.watch import MAX_EVENT_BYTES
from liveedge.service.watches import MAX_WATCH_BODY_BYTES
from liveedge.settings import Settings, memory_bytes

WATCH_BYTES = MAX_WATCH_BODY_BYTES + MAX_EVENT_BYTES
PUBLISHER_BODY_BYTES = 8 * MIB  # of offers that are being read; one is at most 256 kB
USABLE = 0.9  # of the machine; the rest is for its kernel and for what else runs on it


def engine_settings(settings: Settings, model_id: str) -> EngineSettings:
    """The engine's own section."""
    return EngineSettings(
        model_id=model_id,
        device=settings.device,
        n_slots=settings.max_sessions,
        n_windows=settings.max_windows,
        max_model_len=settings.max_model_len,
        encoder_cache_bytes=settings.encoder_cache_mb * MIB,
        prefill_chunk=settings.prefill_chunk,
        queue_capacity=settings.queue,
        threads=settings.threads,
        shared_frame_bytes=settings.shared_frames_mb * MIB,
        verify_share=settings.verify_warm,
        clock_speed=settings.clock_speed,
    )


def fitting(settings: Settings, engine: EngineSettings, folder: Path) -> MemoryPlan:
    """The plan. Raises SettingsInvalid, with what would fit, and CheckpointInvalid."""
    return fitting_plan(_asked_here(settings, engine), read_facts(folder))


def planned(settings: Settings, engine: EngineSettings, folder: Path) -> MemoryPlan:
    """The plan, whether it fits or not."""
    return plan_memory(_asked_here(settings, engine), read_facts(folder))


def memory_asked(settings: Settings, engine: EngineSettings, *, ceiling_bytes: int) -> MemoryAsked:
    """What the settings ask for, where so much can be had at most."""
    is_separate = settings.engine == "process"
    return MemoryAsked(
        engine=engine,
        server=ServerPools(
            max_streams=settings.max_streams,
            hot_bytes=settings.hot_mb * MIB,
            history_bytes=settings.history_mb * MIB,
            streams_bytes=_bytes(settings.streams_mb),
            max_body_bytes=settings.max_body_mb * MIB,
            bodies_bytes=_bytes(settings.max_uploads_mb),
            decoded_bytes=_bytes(settings.max_decoded_mb),
            watches_bytes=2 * settings.max_watches * WATCH_BYTES,  # as many that have ended
            publishers_bytes=PUBLISHER_BODY_BYTES,
        ),
        budget=budget(settings.memory, ceiling_bytes=ceiling_bytes),
        device=find_device(settings.device),
        is_separate=is_separate,
        has_standby=is_separate and settings.standby,
    )


def _asked_here(settings: Settings, engine: EngineSettings) -> MemoryAsked:
    return memory_asked(settings, engine, ceiling_bytes=memory_ceiling_bytes())


def budget(memory: str | None, *, ceiling_bytes: int) -> Budget:
    """What the setting means where so much can be had at most. Raises SettingsInvalid."""
    if memory is None:
        how = f"{USABLE:.0%} of the {human(ceiling_bytes)} of this machine"
        return Budget(n_bytes=int(USABLE * ceiling_bytes), how=how, most_bytes=ceiling_bytes)
    n_bytes = memory_bytes(memory, machine_bytes=ceiling_bytes)
    if n_bytes > ceiling_bytes:
        raise SettingsInvalid(
            f"memory is {memory}, and this machine, or its container, has {human(ceiling_bytes)}:"
            " give less, or leave it out"
        )
    return Budget(n_bytes=n_bytes, how="--memory", most_bytes=ceiling_bytes)


def _bytes(megabytes: int | None) -> int | None:
    return None if megabytes is None else megabytes * MIB
