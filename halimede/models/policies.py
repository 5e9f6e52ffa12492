"""Translates a model's configuration into what the scheduler runs with: its policy, the sequence controls, and the
ragged inputs.

Pure; any thread.
"""

from collections.abc import Callable, Sequence

from halimede.config import ModelConfig, QueuePolicy
from halimede.config.sequencing import ControlKind, OldestStrategy, SequenceBatching
from halimede.scheduling.adaptive import AdaptivePolicy, Pace, PacedForming
from halimede.scheduling.dynamic import DynamicPolicy, Forming
from halimede.scheduling.policy import Policy
from halimede.scheduling.priority import PriorityQueuePolicy, QueueRules
from halimede.scheduling.queue import DefaultPolicy, RefusingPolicy
from halimede.scheduling.ragged import BatchInput, Ragged
from halimede.scheduling.regrouping import Regrouping
from halimede.scheduling.sequences import Controls, DirectPolicy, OldestPolicy, SequenceRules
from halimede.scheduling.states import SequenceStates
from halimede.scheduling.strategy import BatchStrategy, ChosenForming


def policy_for(config: ModelConfig, start_at: int, strategy: BatchStrategy | None = None) -> Policy:
    """The scheduling policy that a configuration asks for (S1). Without limits and priority levels, a quicker one."""
    # Nothing would ever take a request from a queue.
    if all(group.passive for group in config.instance_groups):
        return RefusingPolicy(f"all instances of model '{config.name}' are passive and take no requests")
    batching, queue = config.dynamic_batching, config.queue_policy
    limited = queue.max_size or queue.timeout_us
    if batching is None:
        return PriorityQueuePolicy(0, 0, _rules(queue), {}) if limited else DefaultPolicy()
    sizes, delay_ns = batching.preferred_batch_sizes, batching.max_queue_delay_us * 1000
    pace = Pace(batching.latency_target_us * 1000) if batching.latency_target_us else None
    # A preferred size starts without delay (S21). A delay, a target or a strategy decides how long a batch waits.
    has_own_rule = any(size < config.max_batch_size for size in sizes) or delay_ns or strategy or pace
    regrouping = None if has_own_rule else Regrouping(config.max_batch_size)
    # Most models have none of these, and then one queue is enough.
    if not limited and not batching.priority_levels and strategy is None and pace is None:
        return DynamicPolicy(config.max_batch_size, sizes, delay_ns, start_at, regrouping)
    # The loader has refused a model with both a strategy and a latency target.
    forming = Forming(config.max_batch_size, sizes, delay_ns)
    if strategy is not None:
        forming = ChosenForming(config.max_batch_size, sizes, delay_ns, strategy, config.name)
    elif pace is not None:
        forming = PacedForming(config.max_batch_size, sizes, pace)
    policy = PriorityQueuePolicy(
        batching.priority_levels,
        batching.default_priority_level,
        _rules(queue),
        {level: _rules(policy) for level, policy in batching.level_policies.items()},
        forming,
        start_at,
        regrouping,
    )
    return policy if pace is None else AdaptivePolicy(policy, pace)


def _rules(policy: QueuePolicy) -> QueueRules:
    return QueueRules(policy.max_size, policy.timeout_us, policy.allow_override, policy.delays)


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
    rules = SequenceRules(
        model=config.name,
        slots=(strategy.max_candidate_sequences or rows) if isinstance(strategy, OldestStrategy) else rows,
        idle_ns=batching.max_idle_us * 1000,
        controls=controls_of(batching, config.max_batch_size > 0),
        iterative=batching.iterative,
        begin=begin,
        indices=indices,
    )
    delay_ns = strategy.max_queue_delay_us * 1000
    # Oldest: sequences share batches of the dynamic batcher. Direct: each has a row of an instance to itself.
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


def ragged_of(config: ModelConfig) -> Ragged | None:
    """None if each request is simply some rows of its batch."""
    flat = [spec.name for spec in config.inputs if spec.allow_ragged_batch]
    lead = (-1,) if config.max_batch_size else ()
    shapes = {spec.name: lead + spec.model_dims for spec in config.outputs}
    cut = {name: (each.source, shapes[name]) for each in config.batch_outputs for name in each.targets}
    made = [BatchInput(each.kind.value, each.targets, each.datatype, each.source) for each in config.batch_inputs]
    return Ragged(flat, made, cut) if flat or made or cut else None
