"""An engine that serves a model with a batch strategy of its own."""

from pathlib import Path

import pytest

from halimede.engine_port import ModelStatistics
from tests.engine.engines import IDENTITY, Awaited, ask, options_for, request_of, run, running

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "batching" / "batch_strategy.py"
BATCHING = """
dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 1000000 }
parameters { key: "MAX_BATCH_BYTES" value { string_value: "8" } }
"""


@pytest.mark.rows("S40")
def test_requests_run_in_batches_that_the_strategy_allows(tmp_path: Path) -> None:
    """Five requests of four bytes each, where eight are allowed."""

    async def scenario() -> None:
        options = options_for(tmp_path, {"m": IDENTITY + BATCHING})
        (tmp_path / "m" / "batch_strategy.py").write_text(EXAMPLE.read_text())
        async with running(options) as engine:
            replies = [Awaited() for _ in range(5)]
            for i, reply in enumerate(replies):
                engine.infer(request_of(i), reply)
            for reply in replies:
                assert (await reply.answered()).response.outputs
            counts = await ask(engine, ModelStatistics("m"))
            assert isinstance(counts, list)
            assert {batch.batch_size: batch.compute_infer.count for batch in counts[0].batches} == {2: 2, 1: 1}

    run(scenario)
