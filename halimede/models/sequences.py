"""Makes the sequence policy that a configuration asks for (S54, S61 to S64). Pure."""

from collections.abc import Callable, Sequence

from halimede.config import ModelConfig
from halimede.config.sequencing import ControlKind, OldestStrategy, SequenceBatching
from halimede.scheduling.policy import Policy
from halimede.scheduling.sequence_state import SequenceStates
from halimede.scheduling.sequences import Controls, DirectPolicy, OldestPolicy, Rules


def sequence_policy(
    config: ModelConfig,
    batching: SequenceBatching,
    indices: Sequence[int],
    begin: Callable[[], SequenceStates | None] | None = None,
    start_at: int = 0,
    start_backlog: int = 0,
) -> Policy:
    """`indices` are the instances that run batches. `begin` makes the states of a new sequence.

    `start_at` and `start_backlog` hold back the first batches until so many requests have come (C60).
    """
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
    """The control inputs that tell the model where a sequence starts and ends (S58)."""
    return Controls(
        batches,
        start=batching.control(ControlKind.START),
        end=batching.control(ControlKind.END),
        ready=batching.control(ControlKind.READY),
        correlation_id=batching.control(ControlKind.CORRID),
    )
