"""What holds in every random history of loads, unloads and polls (`control_histories.py`): what serves is what the last
load that went well was asked for, all of it or none, nothing is closed while it is used, and nothing is left open.
"""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.loading.control_histories import play_explicit, play_poll

SEED = 1_971_003
MEMORY = Path("/dev/shm")
HISTORIES = 2000


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """Loads that fail say so, thousands of times."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as each:
        yield each


def play(runner: asyncio.Runner, random: Random) -> None:
    with TemporaryDirectory(prefix="halimede-history-", dir=MEMORY if MEMORY.is_dir() else None) as folder:
        history = play_explicit if random.random() < 0.5 else play_poll
        runner.run(history(random, Path(folder), runner.get_loop()))


def test_random_histories(runner: asyncio.Runner) -> None:
    for seed in range(SEED, SEED + HISTORIES):
        try:
            play(runner, Random(seed))
        except Exception as error:
            raise AssertionError(f"history of seed {seed}") from error


@settings(max_examples=200, deadline=None)
@given(random=st.randoms(use_true_random=False))
def test_histories_that_hypothesis_makes_small(runner: asyncio.Runner, random: Random) -> None:
    play(runner, random)
