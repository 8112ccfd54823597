"""How much a picture differs from the one last answered about, and when that is worth a question.

Pure: thumbnails in, numbers out; time is an argument. A thumbnail costs one conversion of the frame
(1.5 ms at 480p, for a worker), a comparison 0.1 ms.

A picture is compared with the one last *answered* about, so that slow drift adds up and a scene that
changes and returns is two changes. What flickers from look to look is not a change: shaking cameras
and burned-in clocks raise the noise of their blocks, and a block counts only above its own noise. An
exposure that moves by a little is no change either; lights that go out are one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

ROWS, COLUMNS = 18, 32  # blocks of a thumbnail
DEFAULT_THRESHOLD = 0.5  # chosen by measuring: docs/performance-log.md

_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)
_SAMPLES = 4  # per side of a block, at least: more say nothing new about its mean
_MOST_GAIN = 1.15  # between two exposures of one scene; a larger step is a change
_DARK = 0.02  # of full scale: keeps the ratio of two black blocks finite
_ABOVE_NOISE = 4.0  # so many times its own noise a block has to differ before it counts
_FLOOR = 0.01  # of full scale: what coding does to a still picture
_FULL = 0.1  # of full scale: more than this in a block counts no more
_AREA = 16  # blocks, 3 % of the picture: a change that fills so much has the full score
_MOST_FLICKER = 0.25  # of full scale: what one look can teach
_LEARNING = 0.05  # share of one look in the noise
_FIRST_LOOKS = 5  # count less: a change in the first second is not to pass for noise
_FLICKER_S = 0.5  # looks further apart than this say nothing about flicker

Thumbnail: TypeAlias = NDArray[np.float32]  # [ROWS, COLUMNS] mean luma of each block, 0 to 1


def thumbnail(rgb: NDArray[np.uint8]) -> Thumbnail:
    """The means of blocks of a picture [height, width, 3]."""
    height, width, _ = rgb.shape
    step_y = max(1, height // (ROWS * _SAMPLES))
    step_x = max(1, width // (COLUMNS * _SAMPLES))
    luma = rgb[::step_y, ::step_x] @ _LUMA
    ys, xs = _edges(luma.shape[0], ROWS), _edges(luma.shape[1], COLUMNS)
    sums = np.add.reduceat(np.add.reduceat(luma, ys[:-1], axis=0), xs[:-1], axis=1)
    areas = np.maximum(np.diff(ys), 1)[:, None] * np.maximum(np.diff(xs), 1)[None, :]
    means: Thumbnail = (sums / areas / 255).astype(np.float32)
    return means


def _edges(length: int, n_blocks: int) -> NDArray[np.intp]:
    """A picture smaller than its blocks has some of them twice."""
    return np.minimum(np.arange(n_blocks + 1) * length // n_blocks, length).astype(np.intp)


def difference(before: Thumbnail, after: Thumbnail) -> Thumbnail:
    """Of each block, with a small change of exposure taken out."""
    ratio = float(np.median((after + _DARK) / (before + _DARK)))
    gain = min(max(ratio, 1 / _MOST_GAIN), _MOST_GAIN)
    apart: Thumbnail = np.abs(after - np.float32(gain) * before)
    return apart


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRule:
    """When a change is worth a question."""

    threshold: float = DEFAULT_THRESHOLD
    debounce_s: float = 0.2  # it has to last so long
    min_interval_s: float = 1.0  # between two questions


class ChangeDetector:
    """Looks at one picture after another. Not thread-safe."""

    def __init__(self, rule: ChangeRule) -> None:
        self.score = 0.0  # of the newest look; 0 before anything was answered about
        self._rule = rule
        self._noise: Thumbnail = np.zeros((ROWS, COLUMNS), dtype=np.float32)
        self._n_learnt = 0
        self._answered: Thumbnail | None = None
        self._newest: Thumbnail | None = None
        self._looked_s = 0.0
        self._since_s: float | None = None  # the newest pictures differ enough
        self._asked_s: float | None = None

    def look(self, picture: Thumbnail, now_s: float) -> None:
        """See the newest picture."""
        if self._newest is not None and now_s - self._looked_s <= _FLICKER_S:
            self._learn(difference(self._newest, picture))
        self._newest, self._looked_s = picture, now_s
        self._compare(now_s)

    def answered(self, picture: Thumbnail, now_s: float) -> None:
        """From now on this is what pictures are compared with."""
        self._answered = picture
        self._since_s = None
        if self._newest is not None:
            self._compare(now_s)

    def asked(self, now_s: float) -> None:
        """A question is being asked."""
        self._asked_s = now_s

    @property
    def newest(self) -> Thumbnail | None:
        """The newest picture."""
        return self._newest

    @property
    def is_changed(self) -> bool:
        """Whether the newest picture differs enough, for however long."""
        return self._answered is None or self._since_s is not None

    def due_in_s(self, now_s: float) -> float | None:
        """When a question is due if nothing changes any more: 0 is now, None is never."""
        if self._newest is None or not self.is_changed:
            return None
        rule = self._rule
        moments = [now_s]
        if self._since_s is not None:
            moments.append(self._since_s + rule.debounce_s)
        if self._asked_s is not None:
            moments.append(self._asked_s + rule.min_interval_s)
        return max(moments) - now_s

    def _learn(self, flicker: Thumbnail) -> None:
        self._n_learnt += 1
        share = max(1 / (self._n_learnt + _FIRST_LOOKS), _LEARNING)
        self._noise += np.float32(share) * (np.minimum(flicker, _MOST_FLICKER) - self._noise)

    def _compare(self, now_s: float) -> None:
        assert self._newest is not None, "there is a picture"
        if self._answered is None:
            return
        beyond = difference(self._answered, self._newest) - _ABOVE_NOISE * self._noise - _FLOOR
        largest = np.partition(beyond.ravel(), -_AREA)[-_AREA:]
        self.score = float(np.clip(largest, 0.0, _FULL).mean() / _FULL)
        if self.score < self._rule.threshold:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now_s
