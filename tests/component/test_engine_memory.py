"""Memory that the engine plans is taken at the start, not as it fills."""

from __future__ import annotations

import resource

import torch

from liveedge.engine.compute.kv import zeros


def test_planned_memory_is_resident_at_once() -> None:
    memory = zeros((64, 1 << 18), device=torch.device("cpu"), dtype=torch.float32)
    huge_page_bytes = 2 << 20
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt  # other threads touch theirs
    memory[:, ::1024] = 1.0
    touched_later = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
    assert touched_later < memory.nbytes // huge_page_bytes
