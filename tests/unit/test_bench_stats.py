"""Percentiles, proportions and intervals: against definitions, and by how often they cover the truth."""

import math
import random

import numpy as np
import pytest

from liveedge.bench import stats


def generator(seed=0):
    return np.random.default_rng(seed)


def ar1(n, r, seed):
    """Neighbours with the correlation r."""
    noise = generator(seed).normal(size=n)
    values = np.empty(n)
    values[0] = noise[0]
    for i in range(1, n):
        values[i] = r * values[i - 1] + math.sqrt(1 - r * r) * noise[i]
    return values


@pytest.mark.parametrize("percent", [50, 90, 95, 99])
def test_a_percentile_is_the_smallest_sample_with_enough_at_or_below_it(percent):
    chance = random.Random(percent)
    for n in [*range(1, 30), 100, 367]:
        values = [chance.random() for _ in range(n)]
        by_definition = min(
            value
            for value in values
            if sum(other <= value for other in values) * 100 >= percent * n
        )
        assert stats.percentile(values, percent) == by_definition


def test_percentiles_of_a_known_distribution_are_recovered_within_2_percent():
    found = stats.distribution(generator().exponential(300.0, size=200_000))
    assert found.n == 200_000
    assert found.mean == pytest.approx(300.0, rel=0.02)
    for percent in (50, 90, 95, 99):
        true = -300.0 * math.log(1 - percent / 100)
        assert found.percentiles[f"p{percent}"] == pytest.approx(true, rel=0.02)


@pytest.mark.parametrize(("percent", "n"), [(50, 40), (90, 60), (95, 100), (99, 500)])
def test_intervals_of_percentiles_cover_the_truth_at_least_95_times_of_100(percent, n):
    true = -math.log(1 - percent / 100)
    runs = generator(percent).exponential(size=(1000, n))
    intervals = [stats.distribution(run).intervals[f"p{percent}"] for run in runs]
    covered = sum(low <= true <= high for low, high in intervals)
    assert covered >= 0.93 * len(runs)  # 95 % less three standard deviations of 1,000 tries


@pytest.mark.parametrize(("percent", "needed"), [(50, 6), (90, 36), (95, 72), (99, 368)])
def test_a_percentile_needs_samples_beyond_it(percent, needed):
    assert stats.samples_needed(percent) == needed
    few = stats.distribution(range(needed - 1))
    assert f"p{percent}" in few.too_few
    assert f"p{percent}" not in few.intervals
    assert f"p{percent}" in few.percentiles  # told all the same, and marked
    enough = stats.distribution(range(needed))
    assert f"p{percent}" in enough.intervals
    assert f"p{percent}" not in enough.too_few


def test_nothing_has_no_percentiles():
    assert stats.distribution([]).n == 0
    assert math.isnan(stats.percentile([], 50))
    assert stats.proportion(0, 0).share is None


def test_shares_have_wilsons_interval():
    assert stats.proportion(0, 10).interval == pytest.approx((0.0, 0.27754), abs=1e-4)
    assert stats.proportion(10, 10).interval == pytest.approx((0.72246, 1.0), abs=1e-4)
    assert stats.proportion(45, 50).interval == pytest.approx((0.78640, 0.95652), abs=1e-4)


@pytest.mark.parametrize("true", [0.02, 0.5, 0.9])
def test_intervals_of_shares_cover_the_truth(true):
    counts = generator(7).binomial(200, true, size=3000)
    intervals = [stats.proportion(int(k), 200).interval or (1.0, 0.0) for k in counts]
    assert sum(low <= true <= high for low, high in intervals) >= 0.93 * len(counts)


def test_gaps_of_one_answer_count_as_one_observation():
    pace = generator(3).uniform(10, 30, size=50)
    answers = [[value] * 40 for value in pace]  # every answer at a pace of its own
    found = stats.grouped_distribution(answers, random.Random(0))
    alone = stats.distribution([value for answer in answers for value in answer])
    by_answer = stats.distribution(pace)
    assert found.n == 2000
    assert found.percentiles == alone.percentiles
    assert found.too_few == by_answer.too_few == ("p95", "p99")
    low, high = found.intervals["p50"]
    assert high - low > 2 * (alone.intervals["p50"][1] - alone.intervals["p50"][0])
    assert (low, high) == pytest.approx(by_answer.intervals["p50"], rel=0.1)


def test_neighbours_that_resemble_each_other_count_for_less():
    n = 4000
    assert stats.independent(generator(1).lognormal(size=n)) > 0.9 * n
    assert stats.independent(ar1(n, 0.8, seed=2)) == pytest.approx(n * 0.2 / 1.8, rel=0.25)
    assert stats.independent([5.0] * n) == n
    assert stats.independent([True, False, False, False] * 100) == 400  # ties are no resemblance
    assert stats.independent([1.0, 2.0]) == 2


def test_intervals_of_queueing_requests_cover_the_truth():
    covered = naive = 0
    for seed in range(200):
        values = ar1(600, 0.7, seed)
        low, high = stats.distribution(values, n_independent=stats.independent(values)).intervals[
            "p50"
        ]
        covered += low <= 0 <= high
        low, high = stats.distribution(values).intervals["p50"]
        naive += low <= 0 <= high
    assert covered >= 0.90 * 200
    assert naive < 0.75 * 200


def test_looks_at_a_gauge_have_no_intervals():
    found = stats.readings([1.0, 2.0, 3.0])
    assert found.percentiles["p50"] == 2.0
    assert not found.intervals
    assert not found.too_few


def test_a_ratio_of_percentiles_finds_10_percent_in_300_samples():
    a = generator(1).lognormal(6.0, 0.25, size=300)
    b = generator(2).lognormal(6.0, 0.25, size=300) * 1.10
    found = stats.ratio(a, b, stats.percentile_of(50), random.Random(0))
    assert found.interval is not None
    assert 1.0 < found.interval[0] < 1.10 < found.interval[1]


def test_the_bootstrap_covers_a_ratio_of_1():
    outside = 0
    for seed in range(40):
        a, b = generator(seed).lognormal(0.0, 0.4, size=(2, 100))
        found = stats.ratio(a, b, stats.percentile_of(50), random.Random(seed))
        assert found.interval is not None
        outside += not found.interval[0] <= 1.0 <= found.interval[1]
    assert outside <= 6  # 2 are expected; more than 6 come once in two hundred times


def test_the_bootstrap_draws_neighbours_together_where_they_queue():
    queueing = np.exp(ar1(800, 0.9, seed=5))
    shuffled = generator(0).permutation(queueing)
    assert stats.block_length(queueing) > 10
    assert stats.block_length(shuffled) == 1
    together = stats.bootstrap(queueing, stats.mean_of, random.Random(0))
    alone = stats.bootstrap(shuffled, stats.mean_of, random.Random(0))
    assert together is not None
    assert alone is not None
    assert together[1] - together[0] > 2 * (alone[1] - alone[0])


def test_the_same_chance_gives_the_same_interval():
    values = generator(4).lognormal(size=100)
    first, second, other = (
        stats.bootstrap(values, stats.mean_of, random.Random(seed)) for seed in (1, 1, 2)
    )
    assert first == second != other


def test_two_shares_differ_by_newcombes_interval():
    # Newcombe 1998, table II: 56/70 - 48/80, method 10.
    found = stats.share_difference(stats.proportion(48, 80), stats.proportion(56, 70))
    assert found is not None
    assert found[0] == pytest.approx(0.2)
    assert found[1] == pytest.approx((0.0524, 0.3339), abs=1e-4)
    assert stats.share_difference(stats.proportion(0, 0), stats.proportion(1, 2)) is None


def test_a_million_samples_have_ranks():
    low, high = stats.interval_ranks(1_000_000, 99) or (0, 0)
    assert 989_700 < low < 990_000 < high < 990_300
