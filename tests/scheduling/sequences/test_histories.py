"""Made-up histories of sequences, and what must hold in each (contract S53 to S57, S61, S63, S65, S72)."""

import random
from itertools import chain, repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduling.sequences.play import Player

SEED = 5074
HISTORIES = 3000
STEPS = 40


def _play(seed: int) -> None:
    chance = random.Random(seed)
    player = Player(lambda below: int(chance.random() * below))
    player.live(STEPS)
    player.end()


@pytest.mark.rows("S53", "S55")
def test_invariants_hold_in_random_histories() -> None:
    for seed in range(SEED, SEED + HISTORIES):
        try:
            _play(seed)
        except BaseException:
            print(f"seed {seed}")
            raise


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 255), max_size=300))
def test_invariants_hold_in_histories_of_hypothesis(choices: list[int]) -> None:
    source = chain(choices, repeat(0))
    player = Player(lambda below: next(source) % below)
    player.live(STEPS)
    player.end()
