"""The 16-bit weights that the kernels use are those of torch's resize for uint8."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from liveedge.models.qwen3_vl.resample import COLUMNS, LANES, axis_weights, interpolate


def resampled(line: np.ndarray, n_out: int) -> np.ndarray:
    """[n, n_in] along the last axis, in the arithmetic that the weights are made for."""
    axis = axis_weights(line.shape[1], n_out)
    assert axis is not None
    sums = np.full((len(line), n_out), 1 << (axis.precision - 1), np.int64)
    padded = np.pad(line.astype(np.int64), ((0, 0), (0, axis.weights.shape[1])))
    for tap in range(axis.weights.shape[1]):
        sums += padded[:, axis.first + tap] * axis.weights[:, tap]
    return np.clip(sums >> axis.precision, 0, 255).astype(np.uint8)


@given(n_in=st.integers(1, 1500), n_out=st.integers(1, 600), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_they_give_what_torch_gives(n_in, n_out, seed):
    lines = np.random.default_rng(seed).integers(0, 256, (40, n_in), dtype=np.uint8)
    if n_in != n_out:
        image = torch.from_numpy(lines)[None, None].expand(1, 3, -1, -1)
        expected = interpolate(image, (40, n_out))[0, 0].numpy()
        assert np.array_equal(resampled(lines, n_out), expected)


def test_an_axis_that_keeps_its_length_has_none():
    assert axis_weights(480, 480) is None


@pytest.mark.parametrize("n_in", [1, 2, COLUMNS - 1, COLUMNS + 1, 9_999])
def test_windows_lie_inside_the_input(n_in):
    axis = axis_weights(n_in, 64)
    assert axis is not None
    assert axis.weights.shape[1] % LANES == 0
    assert axis.first.min() >= 0
    if n_in >= axis.weights.shape[1]:
        assert (axis.first + axis.weights.shape[1]).max() <= n_in


@given(n_in=st.integers(1, 900), n_out=st.integers(1, 600))
def test_no_window_begins_before_the_one_before(n_in, n_out):
    axis = axis_weights(n_in, n_out)
    if axis is not None:
        assert (np.diff(axis.first) >= 0).all()


def test_a_weight_that_rounds_to_zero_moves_no_window_behind_the_next():
    axis = axis_weights(64, 192)  # such a pair of lengths
    assert axis is not None
    assert (axis.weights[:, 0] == 0).any()
    assert (np.diff(axis.first) >= 0).all()


def test_weights_of_one_output_add_up_to_one():
    axis = axis_weights(854, 864)
    assert axis is not None
    assert np.allclose(axis.weights.sum(1) / (1 << axis.precision), 1, atol=1e-3)


def test_a_length_is_computed_once():
    assert axis_weights(321, 64) is axis_weights(321, 64)
