"""The pixel kernels (`patchify.c`) with Python types: what is passed is checked here, not in C.

Thread    any; each call uses the scratch memory that it is given.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from liveedge.native.library import load

CHANNELS = 3
ALIGNMENT = 32  # bytes: where patches begin


@dataclass(frozen=True, slots=True, eq=False)
class AxisWeights:
    """How one axis is resampled: output i is the sum of weights[i] * input[first[i] :]."""

    first: NDArray[np.int32]  # [n_out], never falling
    weights: NDArray[np.int16]  # [n_out, n_taps], n_taps a multiple of 4
    precision: int  # bits behind the point of a weight


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FramePlan:
    """What is the same for every frame of one size that becomes another."""

    in_height: int
    in_width: int
    height: int
    width: int
    down: AxisWeights | None  # None: the axis keeps its length
    across: AxisWeights | None
    patch: int
    merge: int
    depth: int
    mean: NDArray[np.float32]  # [3]
    std: NDArray[np.float32]

    @property
    def out_shape(self) -> tuple[int, int]:
        """(patches, values of one)."""
        area = self.patch**2
        return self.height * self.width // area, CHANNELS * self.depth * area


class _Axis(ctypes.Structure):
    _fields_ = (
        ("first", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("taps", ctypes.c_int64),
        ("precision", ctypes.c_int64),
    )


class _Frame(ctypes.Structure):
    _fields_ = (
        ("pixels", ctypes.c_void_p),
        ("row_bytes", ctypes.c_int64),
        ("in_height", ctypes.c_int64),
        ("in_width", ctypes.c_int64),
        ("height", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("across", _Axis),
        ("down", _Axis),
        ("patch", ctypes.c_int64),
        ("merge", ctypes.c_int64),
        ("depth", ctypes.c_int64),
        ("time", ctypes.c_int64),
        ("mean", ctypes.c_void_p),
        ("std", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
    )


class PixelKernels:
    """Frames to patches in C."""

    def __init__(self, library: ctypes.CDLL, *, plain: bool = False) -> None:
        self._plain = plain  # no instruction that not every processor has
        self._preprocess = library.le_preprocess
        self._preprocess.argtypes = [ctypes.POINTER(_Frame), ctypes.c_int]
        self._preprocess.restype = None
        self._scratch_bytes = library.le_scratch_bytes
        self._scratch_bytes.argtypes = [ctypes.POINTER(_Frame)]
        self._scratch_bytes.restype = ctypes.c_int64

    def scratch_bytes(self, plan: FramePlan) -> int:
        return self._scratch_bytes(ctypes.byref(_frame(plan)))

    def preprocess(
        self,
        plan: FramePlan,
        frame: NDArray[np.uint8],
        *,
        time: int,
        out: NDArray[np.float32],
        scratch: NDArray[np.uint8],
    ) -> None:
        """Resize, normalise and write `frame` [height, width, 3] as the `time`-th of its group.

        The pixels of a row must lie side by side; rows may be apart.
        """
        assert frame.dtype == np.uint8, frame.dtype
        assert frame.shape == (plan.in_height, plan.in_width, CHANNELS), frame.shape
        assert frame.strides[1:] == (CHANNELS, 1), frame.strides
        assert frame.strides[0] >= CHANNELS * plan.in_width or len(frame) == 1, frame.strides
        assert out.dtype == np.float32, out.dtype
        assert out.shape == plan.out_shape, out.shape
        assert out.flags.c_contiguous
        assert out.flags.writeable
        assert out.ctypes.data % ALIGNMENT == 0, out.ctypes.data
        assert 0 <= time < plan.depth, time
        job = _frame(plan)
        assert scratch.nbytes >= self._scratch_bytes(ctypes.byref(job)), scratch.nbytes
        job.pixels, job.row_bytes = frame.ctypes.data, frame.strides[0]
        job.time, job.out, job.scratch = time, out.ctypes.data, scratch.ctypes.data
        self._preprocess(ctypes.byref(job), int(self._plain))


@lru_cache(maxsize=1)
def pixel_kernels() -> PixelKernels | None:
    """The kernels of this process; None: there is no library."""
    library = load()
    return None if library is None else PixelKernels(library)


def _frame(plan: FramePlan) -> _Frame:
    return _Frame(
        in_height=plan.in_height,
        in_width=plan.in_width,
        height=plan.height,
        width=plan.width,
        across=_axis(plan.across),
        down=_axis(plan.down),
        patch=plan.patch,
        merge=plan.merge,
        depth=plan.depth,
        mean=plan.mean.ctypes.data,
        std=plan.std.ctypes.data,
    )


def _axis(axis: AxisWeights | None) -> _Axis:
    if axis is None:
        return _Axis()
    return _Axis(
        first=axis.first.ctypes.data,
        weights=axis.weights.ctypes.data,
        taps=axis.weights.shape[1],
        precision=axis.precision,
    )
