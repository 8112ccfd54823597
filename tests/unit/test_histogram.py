"""Counts by size: exact, cumulative, and told as Prometheus reads them."""

from __future__ import annotations

import math

import pytest

from liveedge.api.exposition import Metric, Sample, exposition, histogram
from liveedge.core.histogram import Histogram
from tests.unit.test_api_metrics import parse


def test_a_value_at_a_bound_is_in_its_bucket_and_one_above_all_is_in_the_last():
    found = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        found.observe(value)
    assert found.cumulative() == [(1.0, 2), (2.0, 4), (math.inf, 5)]
    assert (found.count, found.sum) == (5, 14.0)


@pytest.mark.parametrize("bounds", [(2.0, 1.0), (1.0, 1.0)])
def test_bounds_rise(bounds: tuple[float, ...]):
    with pytest.raises(AssertionError):
        Histogram(bounds)


def test_its_text_has_every_bucket_the_sum_and_the_count():
    found = Histogram((0.005, 1.0))
    found.observe(0.25)
    text = exposition([histogram("wait_seconds", "Waiting.", {(("of", "me"),): found})])
    assert text.splitlines()[1:] == [
        "# TYPE liveedge_wait_seconds histogram",
        'liveedge_wait_seconds_bucket{of="me",le="0.005"} 0',
        'liveedge_wait_seconds_bucket{of="me",le="1"} 1',
        'liveedge_wait_seconds_bucket{of="me",le="+Inf"} 1',
        'liveedge_wait_seconds_sum{of="me"} 0.25',
        'liveedge_wait_seconds_count{of="me"} 1',
    ]
    assert len(parse(text)["liveedge_wait_seconds"].samples) == 5


def test_a_histogram_is_not_told_as_a_plain_value():
    with pytest.raises(AssertionError):
        Metric("wait_seconds", "histogram", "Waiting.", (Sample(1.0),))
    with pytest.raises(AssertionError):
        Metric("wait", "gauge", "Waiting.", (Sample(1.0, (), "_sum"),))
