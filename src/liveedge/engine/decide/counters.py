"""What the scheduler counts, and the engine's statistics made of it. Torch-free."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from liveedge.core.errors import FrameStale, LiveEdgeError, QueueFull
from liveedge.engine.decide.features import Features
from liveedge.engine.decide.slots import SlotTable
from liveedge.engine.decide.verify import VerifyCounters
from liveedge.engine.interface import EngineStats


@dataclass(slots=True)
class Counters:
    """Since the start; the names are those of `interface.EngineStats`."""

    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    stale: int = 0
    predicted_late: int = 0
    encoder_hits: int = 0
    encoder_misses: int = 0
    prefix_hits: int = 0
    prefix_tokens_reused: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    warm_updates: int = 0
    warm_superseded: int = 0
    warm_failed: int = 0
    warm_encoded: int = 0
    warm_prefilled: int = 0
    warm_busy_s: float = 0.0

    def count_failure(self, error: LiveEdgeError, *, warm: bool) -> None:
        """One request or prefix ended with an error; every request has one outcome."""
        if warm:
            self.warm_failed += 1
        elif isinstance(error, QueueFull):
            self.predicted_late += 1
        elif isinstance(error, FrameStale):
            self.stale += 1
        else:
            self.failed += 1


def engine_stats(
    counters: Counters,
    *,
    slots: SlotTable,
    features: Features,
    verified: VerifyCounters,
    n_answers: int,
    row_bytes: int,
) -> EngineStats:
    """The state of this moment; `n_answers` run or wait."""
    cache, loads = features.cache, features.loads
    return EngineStats(
        queue_depth=n_answers - slots.n_used,
        running=slots.n_used,
        slots_total=slots.n_slots,
        slots_used=slots.n_used,
        resident_tokens=slots.resident_tokens,
        encoder_cache_bytes=cache.used_rows * row_bytes,
        encoder_cache_capacity_bytes=cache.n_rows * row_bytes,
        encoder_pinned_bytes=cache.held_rows * row_bytes,
        loads_in_flight=len(loads),
        patch_bytes=loads.n_bytes,
        windows=len(slots.windows),
        verified=verified.verified,
        verified_with_cached_features=verified.with_cached_features,
        verify_differences=verified.differences,
        verify_skipped=verified.skipped,
        **asdict(counters),
    )
