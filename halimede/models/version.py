"""A model version that serves: its configuration, its checks, its runner, and how many inferences hold it.

Event-loop thread only.
"""

from collections.abc import Callable, Sequence
from functools import partial

from halimede.backends.api import (
    Instance,
    InstancePlace,
    Placement,
    SelfAssessing,
    Supervised,
    is_self_assessing,
    is_supervised,
)
from halimede.config import ModelConfig, QueuePolicy
from halimede.errors import Error
from halimede.models.checks import OutputShapes, RequestCheck
from halimede.models.loader import LoadedVersion
from halimede.models.ragged import ragged_of
from halimede.models.readiness import ask_all
from halimede.models.resizing import Resized, Vacant, signatures
from halimede.models.sequences import sequence_policy
from halimede.platform.cores import use_all_cores
from halimede.requests import InferRequest, InferResponse, Moment, Reply
from halimede.scheduling.adaptive import AdaptivePolicy, Pace, PacedForming
from halimede.scheduling.dynamic import DynamicPolicy, Forming
from halimede.scheduling.ensemble import EnsembleRunner
from halimede.scheduling.inference import QUEUED, Inference
from halimede.scheduling.instances import Instances
from halimede.scheduling.limited import LimitedRunner
from halimede.scheduling.ordering import Ordering
from halimede.scheduling.policy import Policy, is_stateful_policy
from halimede.scheduling.priority import PriorityQueuePolicy, Rules
from halimede.scheduling.queue import DefaultPolicy, RefusingPolicy
from halimede.scheduling.runner import Runner
from halimede.scheduling.runner_config import Loop, Observer, RunnerConfig
from halimede.scheduling.step_binding import EnsembleRunnerConfig
from halimede.scheduling.strategy import BatchStrategy, ChosenForming


class ModelVersion:
    """`observer` is told of every inference of this version, `settled` of each that is over. `inline`: whether batches
    may run on the event loop at all.

    `held` counts the inferences that were begun and are not over; a version is only closed when it is 0.
    """

    def __init__(
        self,
        loaded: LoadedVersion,
        loop: Loop,
        observer: Observer,
        settled: Callable[[Inference], None],
        start_at: int = 0,
        inline: bool = True,
        start_backlog: int = 0,
    ) -> None:
        config = loaded.config
        self.name = config.name
        self.key = loaded.key or config.name
        self.number = loaded.number
        self.config: ModelConfig = config
        self.loaded = loaded
        self.held = self._lent = 0
        self.decoupled = config.decoupled
        self._check = RequestCheck(config)
        self._settled = settled
        self._on_idle: Callable[[], None] | None = None
        self._interceptor: Callable[[Inference], None] | None = None
        facts = _facts(loaded, inline)
        passive = self._passive = {place.index for place in loaded.places if place.passive}
        instances = self._instances = Instances(
            f"{config.name}:{loaded.number}",
            loaded.instances,
            passive,
            {place.index: partial(_prepare, place) for place in loaded.places},
        )
        batching = config.dynamic_batching
        self._ordering = Ordering(self._over) if batching is not None and batching.preserve_ordering else None
        over = self._over if self._ordering is None else self._ordering.over
        policy = _policy(loaded, start_at, start_backlog)
        instances.pinned = is_stateful_policy(policy)
        turns = loaded.turns
        self._runner: Runner | EnsembleRunner
        if loaded.ensemble is not None:
            self._runner = EnsembleRunner(_ensemble_facts(loaded, facts), observer, over)
        elif turns is None:
            self._runner = Runner(facts, policy, instances, loop, observer, over)
        else:
            self._runner = LimitedRunner(facts, policy, instances, loop, observer, over, turns)
        self._supervised: list[Supervised] = []
        self._self_assessing: list[SelfAssessing] = []
        self._restarts_of_others = 0
        for index in range(len(loaded.instances)):
            self._watch(index)

    def _watch(self, index: int) -> None:
        instance = self.loaded.instances[index]
        if is_self_assessing(instance) and index not in self._passive:
            self._self_assessing.append(instance)
        if is_supervised(instance):
            self._supervised.append(instance)
            instance.watch(partial(self._runner.mark, index))

    def resize(self, change: Resized, left: Callable[[Instance], None]) -> None:
        """Serves with other instances from now on (contract R13). `left` is given each of those that go, to be closed,
        once it has ended its batch."""
        loaded = self.loaded
        places = {place.index: place for place in loaded.places}
        kinds = signatures(loaded)
        for index, (place, instance, signature) in change.added.items():
            loaded.instances[index : index + 1] = [instance]
            places[index], kinds[index] = place, signature
        for index in change.removed:
            self._forget(loaded.instances[index])
            places.pop(index, None)
            del kinds[index]
        loaded.places, loaded.signatures = list(places.values()), kinds
        loaded.config = self.config = change.config
        self._passive = {place.index for place in loaded.places if place.passive}
        added = {index: (place.passive, partial(_prepare, place)) for index, (place, _, _) in change.added.items()}
        self._runner.resize(added, change.removed, partial(self._left, left))
        for index in change.added:
            self._watch(index)

    def _forget(self, instance: Instance) -> None:
        self._self_assessing = [each for each in self._self_assessing if id(each) != id(instance)]
        if is_supervised(instance):  # it is watched on: sequences may stay there
            self._supervised.remove(instance)
            self._restarts_of_others += instance.restarts

    def _left(self, left: Callable[[Instance], None], index: int) -> None:
        instances = self.loaded.instances
        instance, instances[index] = instances[index], Vacant()
        if is_supervised(instance):
            instance.watch(lambda healthy, expected: None)
        left(instance)

    @property
    def waiting(self) -> int:
        """How many inferences wait for an instance."""
        return self._runner.waiting

    @property
    def busy(self) -> int:
        """How many of its instances run a batch."""
        return self._instances.busy

    @property
    def inline_executions(self) -> int:
        """How many batches ran on the event loop."""
        return self._runner.inline_executions

    @property
    def serving(self) -> Sequence[Instance]:
        """The instances that are given batches."""
        return [
            instance
            for index, instance in enumerate(self.loaded.instances)
            if index not in self._passive and not isinstance(instance, Vacant)
        ]

    @property
    def healthy(self) -> bool:
        """Whether an instance can run a batch (contract P10): requests are served, if by fewer than there should be."""
        instances = self.serving
        return not instances or any(instance.healthy for instance in instances)

    @property
    def reports_readiness(self) -> bool:
        """Whether the model is to be asked too: then those of its instances that are healthy must all say that they
        are ready, since any of them may be given the next request."""
        return any(instance.reports_readiness for instance in self._self_assessing)

    def ask_ready(self, done: Callable[[bool], None]) -> None:
        """Tells `done` once, possibly before this returns."""
        healthy = {id(instance) for instance in self.serving if instance.healthy}
        ask_all([instance for instance in self._self_assessing if id(instance) in healthy], done)

    @property
    def restarts(self) -> int | None:
        """How often instances broke and came back, None where they cannot."""
        if not self._supervised:
            return None
        return self._restarts_of_others + sum(instance.restarts for instance in self._supervised)

    def infer(self, key: int, request: InferRequest, reply: Reply, start: int) -> Inference:
        """Begins an inference that arrived at `start`. Raises Error where the request does not fit the model."""
        fit = self._check.fit(request)
        inference = Inference(key, request, reply, fit.batch_size, fit.outputs, fit.batch_key)
        inference.times[Moment.REQUEST_START] = start
        if request.trace is not None:
            request.trace.begun(request, self.number, inference.times, self.config.ensemble is None)
        self.held += 1
        return inference

    def blockers(self) -> Sequence[object]:
        """The instances, of whatever model, of which one must end its batch before a waiting request can run."""
        others = self.loaded.turns.blockers() if self.loaded.turns is not None else ()
        return others or self.serving

    def blockers_of(self, inference: Inference) -> Sequence[object]:
        """The instances that an inference is at, or, where those wait for resources, the ones that have them."""
        if isinstance(self._runner, EnsembleRunner):
            return self._runner.blockers_of(inference)
        return self.blockers() if inference.state is QUEUED else self.serving

    def is_queued(self, inference: Inference) -> bool:
        """Whether it waits for an instance; of an ensemble, whether a step does."""
        if isinstance(self._runner, EnsembleRunner):
            return self._runner.is_queued(inference)
        return inference.state is QUEUED

    def preempt_turn(self) -> bool:
        """Lets an instance that only waits for its turn run before those whose turn is sooner; whether there is one."""
        return self.loaded.turns is not None and self.loaded.turns.preempt_turn()

    def hold(self) -> None:
        """An ensemble is about to hand it inferences: until `let_go` it is not closed, and takes them."""
        self.held += 1
        self._lent += 1

    def let_go(self) -> None:
        self.held -= 1
        self._lent -= 1
        if self._on_idle is not None:
            self._tell_idle()

    def submit(self, inference: Inference) -> None:
        """Takes an inference on its way."""
        if self._interceptor is not None:
            self._interceptor(inference)
            return
        if self._ordering is not None:
            self._ordering.enter(inference)
        self._runner.submit(inference)

    @property
    def contents(self) -> bytes:
        """What it is made of, as a digest, where the load was to find that out."""
        return self.loaded.contents

    def intercept_with(self, interceptor: Callable[[Inference], None]) -> None:
        """From now on inferences are handed to `interceptor`, which has each of them enter, and then run or settled."""
        self._interceptor = interceptor

    def enter(self, inference: Inference) -> None:
        """Gives it its place where answers keep the order of requests; its reply slot is not changed after that."""
        if self._ordering is not None:
            self._ordering.enter(inference)

    def run(self, inference: Inference) -> None:
        """Queues it."""
        self._runner.submit(inference)

    def settle(self, inference: Inference, answer: InferResponse | Error) -> None:
        """Ends an inference that is never queued."""
        self._runner.settle(inference, answer)

    def cancel(self, inference: Inference) -> None:
        self._runner.cancel(inference)

    def retire(self, on_idle: Callable[[], None]) -> None:
        """Takes nothing more; calls back once when nothing is left of what was begun."""
        if self._interceptor is None and not self._lent:  # what waits there was begun, and shall be queued
            self._runner.stop()
        self._on_idle = on_idle
        self._tell_idle()

    def close(self) -> None:
        """Ends what the version runs on. The instances themselves are closed on a load thread, by `loaded.close`."""
        self._runner.close()

    def _over(self, inference: Inference) -> None:
        self.held -= 1
        self._settled(inference)
        if self._on_idle is not None:
            self._tell_idle()

    def _tell_idle(self) -> None:
        if self._on_idle is not None and not self.held:
            on_idle, self._on_idle = self._on_idle, None
            on_idle()


def _prepare(place: InstancePlace) -> None:
    """First on the thread of an instance, which the event loop starts while it may be keeping to one core."""
    use_all_cores()
    if place.host:
        place.host.apply()


def _facts(loaded: LoadedVersion, inline: bool) -> RunnerConfig:
    config, shapes = loaded.config, OutputShapes(loaded.config)
    return RunnerConfig(
        model_name=config.name,
        model_version=loaded.number,
        datatypes={spec.name: spec.datatype for spec in config.model_outputs},
        decoupled=config.decoupled,
        inline_safe=loaded.model.inline_safe and inline and not any(place.host for place in loaded.places),
        on_loop=loaded.model.placement is Placement.LOOP,
        restore=shapes.restore if shapes else None,
        gathers=getattr(loaded.model, "gathers", False),
        ragged=ragged_of(config),
        stateful=loaded.states is not None,
    )


def _ensemble_facts(loaded: LoadedVersion, facts: RunnerConfig) -> EnsembleRunnerConfig:
    parts, ensemble = loaded.ensemble, loaded.config.ensemble
    assert parts is not None
    assert ensemble is not None
    return EnsembleRunnerConfig(
        name=facts.model_name,
        version=facts.model_version,
        graph=parts.graph,
        decoupled=facts.decoupled,
        most_in_flight=ensemble.max_in_flight,
        bind=parts.bind,
        changes=parts.changes,
        restore=facts.restore,
    )


def _policy(loaded: LoadedVersion, start_at: int, start_backlog: int) -> Policy:
    """`start_at` and `start_backlog` hold back what is first (contract C60)."""
    config, sequences = loaded.config, loaded.config.sequence_batching
    serving = [place.index for place in loaded.places if not place.passive]
    if sequences is None or not serving:
        return policy_for(config, start_at, loaded.strategy)
    begin = loaded.states.begin if loaded.states is not None else None
    return sequence_policy(config, sequences, serving, begin, start_at, start_backlog)


def policy_for(config: ModelConfig, start_at: int, strategy: BatchStrategy | None = None) -> Policy:
    """The scheduling policy that a configuration asks for (contract S1), without limits and levels the quicker one."""
    if all(group.passive for group in config.instance_groups):
        return RefusingPolicy(f"all instances of model '{config.name}' are passive and take no requests")
    batching, queue = config.dynamic_batching, config.queue_policy
    limited = queue.max_size or queue.timeout_us
    if batching is None:
        return PriorityQueuePolicy(0, 0, _rules(queue), {}) if limited else DefaultPolicy()
    sizes, delay_ns = batching.preferred_batch_sizes, batching.max_queue_delay_us * 1000
    pace = Pace(batching.latency_target_us * 1000) if batching.latency_target_us else None
    if not limited and not batching.priority_levels and strategy is None and pace is None:
        return DynamicPolicy(config.max_batch_size, sizes, delay_ns, start_at)
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
    )
    return policy if pace is None else AdaptivePolicy(policy, pace)


def _rules(policy: QueuePolicy) -> Rules:
    return Rules(policy.max_size, policy.timeout_us, policy.allow_override, policy.delays)
