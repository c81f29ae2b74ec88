"""Statistics over seeds: bootstrap intervals and the interquartile mean."""

from __future__ import annotations

import numpy as np
import pytest

from benches.results.intervals import Estimate, estimate, interquartile_mean, mean, median


def test_the_bootstraps_interval_of_a_mean_is_that_of_the_normal_distribution_where_seeds_are_many() -> None:
    values = np.random.default_rng(3).normal(10.0, 2.0, size=400)
    found = estimate(values.tolist(), mean)
    half = 1.96 * values.std() / np.sqrt(len(values))
    assert found.value == pytest.approx(values.mean())
    assert found.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert found.high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_the_interval_of_two_seeds_reaches_from_one_to_the_other() -> None:
    assert estimate([1.0, 3.0], mean) == Estimate(2.0, 1.0, 3.0)


def test_an_estimate_is_the_same_every_time() -> None:
    assert estimate([1.0, 5.0, 2.0, 8.0, 3.0], median) == estimate([1.0, 5.0, 2.0, 8.0, 3.0], median)


def test_one_seed_has_no_interval() -> None:
    assert estimate([7.0], mean) == Estimate(7.0, None, None)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([8.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 700.0], 4.5),  # a quarter is two at either end
        ([-900.0, 1.0, 2.0, 3.0, 900.0], 2.0),  # a quarter of five is one
        ([1.0, 2.0, 6.0], 3.0),  # and none of three
    ],
)
def test_the_interquartile_mean_leaves_out_a_quarter_at_either_end(values: list[float], expected: float) -> None:
    assert interquartile_mean(np.array([values, values])).tolist() == [expected, expected]


def test_no_runs_have_no_statistic() -> None:
    with pytest.raises(ValueError, match="no runs"):
        estimate([], mean)
