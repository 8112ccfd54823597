"""Groups on their way from pixels to patches: with the workers, or waiting for the encoder.

Owns    every load job from the step that orders it until its group is encoded or nobody waits.
Thread  the engine thread only.
Bound   `Limits.max_loading` groups with the workers, `Limits.patch_bytes` of patches (one group at
        least); a group that does not fit yet is ordered in a later step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from liveedge.engine.decide.limits import Limits, group_bytes
from liveedge.engine.decide.plan import LoadJob
from liveedge.engine.interface import FeatureGroup


@dataclass(slots=True)
class _Load:
    job: LoadJob
    ordered_s: float
    patches: object | None = None  # set once the worker is done


class Loads:
    """By content key: a group is loaded once for all who wait for it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._loads: dict[str, _Load] = {}
        self.n_bytes = 0  # of patches, ordered ones included

    def __len__(self) -> int:
        return len(self._loads)

    def __contains__(self, key: str) -> bool:
        return key in self._loads

    def order(self, groups: Iterable[FeatureGroup], *, now_s: float) -> tuple[LoadJob, ...]:
        """Jobs for the first of these groups that are not here yet, as far as there is room."""
        jobs: list[LoadJob] = []
        n_loading = sum(load.patches is None for load in self._loads.values())
        for group in groups:
            if group.key in self._loads:
                continue
            n_bytes = self.n_bytes + group_bytes(group)
            too_much = self._loads and n_bytes > self._limits.patch_bytes
            if too_much or n_loading >= self._limits.max_loading:
                break
            jobs.append(LoadJob(group))
            self._loads[group.key] = _Load(jobs[-1], ordered_s=now_s)
            self.n_bytes = n_bytes
            n_loading += 1
        return tuple(jobs)

    def expects(self, job: LoadJob) -> bool:
        """This job is the one that somebody waits for, not an earlier one for the same group."""
        load = self._loads.get(job.group.key)
        return load is not None and load.job is job

    def arrived(self, job: LoadJob, patches: object, *, now_s: float) -> float:
        """A worker is done; how many seconds the group was on its way."""
        load = self._loads[job.group.key]
        load.patches = patches
        return now_s - load.ordered_s

    def patches(self, key: str) -> object | None:
        """What the worker made of a group, if it is done."""
        load = self._loads.get(key)
        return None if load is None else load.patches

    def pop(self, key: str) -> LoadJob | None:
        """The group is encoded, or nobody waits for it any more."""
        load = self._loads.pop(key, None)
        if load is None:
            return None
        self.n_bytes -= group_bytes(load.job.group)
        return load.job
