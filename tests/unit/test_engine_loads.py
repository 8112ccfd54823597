"""Groups on their way: bounds, and which job is the one that is waited for."""

from __future__ import annotations

import numpy as np

from liveedge.engine.decide.limits import BYTES_PER_PIXEL, Limits
from liveedge.engine.decide.loads import Loads
from liveedge.engine.interface import FeatureGroup
from liveedge.engine.request import FrameInput

LIMITS = Limits(prefill_chunk=64, encode_pixels=10, patch_bytes=10 * BYTES_PER_PIXEL, max_loading=2)


def no_pixels() -> np.ndarray:
    raise AssertionError("nothing is loaded here")


def group(key: str, pixels: int = 4) -> FeatureGroup:
    picture = FrameInput(key=key, width=pixels, height=1, load=no_pixels)
    return FeatureGroup(
        key=key, frames=(picture,), height=1, width=pixels, start=0, n_tokens=pixels
    )


def keys(jobs) -> list[str]:
    return [job.group.key for job in jobs]


def test_a_group_is_ordered_once_for_all_who_wait():
    loads = Loads(LIMITS)
    assert keys(loads.order([group("a"), group("a")], now_s=0.0)) == ["a"]
    assert keys(loads.order([group("a"), group("b")], now_s=0.0)) == ["b"]


def test_only_so_many_groups_are_with_the_workers():
    loads = Loads(LIMITS)
    jobs = loads.order([group("a", 1), group("b", 1), group("c", 1)], now_s=0.0)
    assert keys(jobs) == ["a", "b"]
    assert loads.arrived(jobs[0], "patches", now_s=1.5) == 1.5
    assert keys(loads.order([group("c", 1)], now_s=2.0)) == ["c"]


def test_patches_that_wait_for_the_encoder_take_the_room_of_further_ones():
    loads = Loads(LIMITS)
    first = loads.order([group("a", 6), group("b", 6)], now_s=0.0)
    assert keys(first) == ["a"]
    loads.arrived(first[0], "patches", now_s=0.0)
    assert not loads.order([group("b", 6)], now_s=0.0)
    loads.pop("a")
    assert loads.n_bytes == 0
    assert keys(loads.order([group("b", 6)], now_s=0.0)) == ["b"]


def test_a_group_larger_than_all_room_is_loaded_alone():
    loads = Loads(LIMITS)
    assert keys(loads.order([group("huge", 99), group("b")], now_s=0.0)) == ["huge"]


def test_an_earlier_job_for_the_same_group_is_not_waited_for():
    loads = Loads(LIMITS)
    old = loads.order([group("a")], now_s=0.0)[0]
    loads.pop("a")
    new = loads.order([group("a")], now_s=0.0)[0]
    assert not loads.expects(old)
    assert loads.expects(new)
