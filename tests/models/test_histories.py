"""What holds in every random history of a model version (`histories.py`): nothing is lost or answered twice, no batch
is too large, priorities and order are obeyed, timeouts are told at their time, nothing waits without a reason.
"""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.histories import play

SEED = 2_024_061
HISTORIES = 5000


def test_random_histories() -> None:
    for seed in range(SEED, SEED + HISTORIES):
        try:
            play(Random(seed))
        except Exception as error:
            raise AssertionError(f"history of seed {seed}: play(Random({seed}))") from error


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False))
def test_histories_that_hypothesis_makes_small(random: Random) -> None:
    play(random)
