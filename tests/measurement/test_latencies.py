"""Quantiles over a sliding window, and the histogram of first responses, with a hand-moved clock."""

import random
from itertools import pairwise
from math import ceil, inf, isnan

import pytest

from halimede.engine_port import Histogram
from halimede.measurement.latencies import WINDOW_NS, Buckets, Quantiles, bucket_of, first_response_buckets, micros_of

SECOND = 1_000_000_000
US = 1000


@pytest.mark.parametrize("micros", [0, 1, 255, 256, 257, 1000, 65_535, 10**6, 3_600 * 10**6, 2**62])
def test_bucket_is_near_what_it_stands_for(micros: int) -> None:
    assert abs(micros_of(bucket_of(micros)) - micros) <= micros / 128
    assert micros >= 256 or micros_of(bucket_of(micros)) == micros


def test_buckets_ascend_with_the_durations_and_leave_none_out() -> None:
    buckets = [bucket_of(micros) for micros in range(70_000)]
    assert all(after - before in (0, 1) for before, after in pairwise(buckets))


def test_duration_below_zero_counts_as_none() -> None:
    quantiles = Quantiles()
    quantiles.observe(-5 * US, 1)
    assert quantiles.read((0.5,), 1) == (0.0,)


def test_quantiles_are_those_of_the_sorted_durations() -> None:
    chosen = random.Random(3)
    micros = [int(chosen.lognormvariate(7, 2)) for _ in range(5000)]
    quantiles = Quantiles()
    for each in micros:
        quantiles.observe(each * US, 1)
    wanted = (0.0, 0.5, 0.9, 0.99, 0.999, 1.0)
    exact = [sorted(micros)[max(1, ceil(q * len(micros))) - 1] for q in wanted]
    for read, right in zip(quantiles.read(wanted, 1), exact, strict=True):
        assert abs(read - right) <= right / 128


def test_nothing_observed_is_not_a_number() -> None:
    assert all(map(isnan, Quantiles().read((0.5, 0.9), 1)))


def test_window_slides() -> None:
    quantiles = Quantiles()
    for second, micros in ((100, 7), (130, 50), (150, 90)):
        quantiles.observe(micros * US, second * SECOND)
    assert quantiles.read((0.0, 1.0), 155 * SECOND) == (7.0, 90.0)
    assert quantiles.read((0.0, 1.0), 100 * SECOND + WINDOW_NS) == (50.0, 90.0)
    assert quantiles.read((0.0, 1.0), 201 * SECOND) == (90.0, 90.0)
    assert all(map(isnan, quantiles.read((0.5,), 300 * SECOND)))
    quantiles.observe(3 * US, 301 * SECOND)
    assert quantiles.read((0.5,), 302 * SECOND) == (3.0,)


def test_memory_of_the_window_is_bounded() -> None:
    quantiles = Quantiles()
    for number in range(20_000):
        quantiles.observe(number * number * US, number * 10_000_000)
    assert len(quantiles._parts) == 5
    assert sum(map(len, quantiles._parts)) < 10_000


@pytest.mark.rows("M12")
def test_histogram_counts_what_is_at_most_a_bound() -> None:
    buckets = Buckets((1.0, 2.5, inf))
    for milliseconds in (0.5, 1.0, 1.5, 2.5, 30.0):
        buckets.observe(int(milliseconds * 1_000_000))
    assert buckets.read() == Histogram((1.0, 2.5, inf), (2, 4, 5), 35.5)


@pytest.mark.rows("M12")
def test_first_responses_are_observed_in_whole_milliseconds() -> None:
    buckets = first_response_buckets((1.0, 2.5))
    for milliseconds in (0.999, 1.999, 2.501, 3.0):
        buckets.observe(int(milliseconds * 1_000_000))
    assert buckets.read() == Histogram((1.0, 2.5, inf), (2, 3, 4), 6.0)
