"""Models in worker processes: which is given its next batch before the answers of the last one are written."""

from functools import partial

import pytest

from halimede.requests import Answer
from halimede.scheduling.dynamic import DynamicPolicy
from halimede.scheduling.execution import Execution
from tests.fakes import echo
from tests.scheduling.rig import Rig, finishing


@pytest.mark.parametrize("on_loop", [True, False])
def test_worker_has_its_next_batch_before_the_answers_of_the_last_are_written(on_loop: bool) -> None:
    order: list[str] = []

    def behave(execution: Execution) -> None:
        order.append(f"runs {execution.requests[0].request.id}")
        (finishing(echo) if on_loop else echo)(execution)

    def answered(name: str, answer: Answer, final: bool) -> None:
        order.append(f"answers {name}")

    rig = Rig([behave], DynamicPolicy(1, [1], 0, start_at=2), on_loop=on_loop)
    replies = [rig.submit(name, on_send=partial(answered, name)) for name in "ab"]
    rig.finish(*replies)
    rig.runner.close()
    if on_loop:
        assert order == ["runs a", "runs b", "answers a", "answers b"]
    else:
        assert order.index("answers a") < order.index("answers b")
