"""The sequence batcher that a configuration asks for (contract S54, S61 to S64). Pure."""

from collections.abc import Callable, Sequence

from halimede.config import ModelConfig
from halimede.config.sequencing import ControlKind, OldestStrategy, SequenceBatching
from halimede.scheduling.policy import Policy
from halimede.scheduling.sequences import Controls, DirectPolicy, OldestPolicy, Rules
from halimede.scheduling.states import SequenceStates


def sequence_policy(
    config: ModelConfig,
    batching: SequenceBatching,
    indices: Sequence[int],
    begin: Callable[[], SequenceStates | None] | None = None,
    start_at: int = 0,
    start_backlog: int = 0,
) -> Policy:
    """`indices` are the instances that are given batches, `begin` makes the states of a sequence. `start_at` and
    `start_backlog` as of the policies."""
    strategy, rows = batching.strategy, max(1, config.max_batch_size)
    rules = Rules(
        model=config.name,
        slots=(strategy.max_candidate_sequences or rows) if isinstance(strategy, OldestStrategy) else rows,
        idle_ns=batching.max_idle_us * 1000,
        controls=controls_of(batching, config.max_batch_size > 0),
        iterative=batching.iterative,
        begin=begin,
        indices=indices,
    )
    delay_ns = strategy.max_queue_delay_us * 1000
    if isinstance(strategy, OldestStrategy):
        return OldestPolicy(rules, config.max_batch_size, strategy.preferred_batch_sizes, delay_ns, start_at)
    return DirectPolicy(rules, delay_ns, strategy.minimum_slot_utilization, start_at, start_backlog)


def controls_of(batching: SequenceBatching, batches: bool) -> Controls:
    """What the model is told of its sequences (contract S58)."""
    return Controls(
        batches,
        start=batching.control(ControlKind.START),
        end=batching.control(ControlKind.END),
        ready=batching.control(ControlKind.READY),
        correlation_id=batching.control(ControlKind.CORRID),
    )
