"""A model version that serves: its configuration, its checks, its runner, and how many inferences hold it.

Event-loop thread only.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic_ns

from halimede.backends.api import (
    Instance,
    InstancePlace,
    Placement,
    SelfAssessing,
    Supervised,
    is_on_device,
    is_self_assessing,
    is_supervised,
)
from halimede.config import ModelConfig
from halimede.errors import Error
from halimede.models.checks import OutputShapes, RequestCheck
from halimede.models.loader import LoadedVersion, NoModel
from halimede.models.policies import policy_for, ragged_of, sequence_policy
from halimede.models.readiness import ask_all
from halimede.models.resizing import InstancesNow, Resized, Signature, Vacant, signatures_of
from halimede.models.warmup import count_runs
from halimede.platform.slices import run_in_slices
from halimede.requests import InferRequest, InferResponse, Reply, Stamp
from halimede.scheduling.ensemble import EnsembleRunner
from halimede.scheduling.inference import QUEUED, Inference
from halimede.scheduling.instances import Instances
from halimede.scheduling.ordering import Ordering
from halimede.scheduling.policy import Policy, is_stateful_policy
from halimede.scheduling.runner import Runner
from halimede.scheduling.runner_config import Loop, Observer, RunnerConfig
from halimede.scheduling.step_binding import EnsembleRunnerConfig


class ModelVersion:
    """`observer` counts every inference of this version. `settled` is called with each that is over.

    `inline` says whether batches may run on the event loop at all. `held` counts the inferences that have begun and are
    not over, and the ensembles' holds. A retired version is closed when it is 0 and no batch runs.
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
        clock: Callable[[], int] = monotonic_ns,
    ) -> None:
        config = loaded.config
        self.name = config.name
        self.key = loaded.key or config.name
        self.number = loaded.number
        self.config: ModelConfig = config
        self.loaded = loaded
        """What was opened. It does not change; the instances of the version may (R13)."""
        self.instances: list[Instance] = list(loaded.instances)
        """In the order of their indices; `Vacant` at those of removed instances."""
        self.places: list[InstancePlace] = list(loaded.places)
        """Of the instances that were not removed."""
        self._signatures: dict[int, Signature] | None = None
        """Of the instances that were not removed, by index; None while they are those that were opened."""
        self.held = self._holds = 0
        self.decoupled = config.decoupled
        self._check = RequestCheck(config)
        self._observer = observer
        self._loop = loop
        self._settled = settled
        self._on_idle: Callable[[], None] | None = None
        self._interceptor: Callable[[Inference], None] | None = None
        runner_config = _runner_config(loaded, inline)
        passive = self._passive = {place.index for place in loaded.places if place.passive}
        instances = self._instances = Instances(
            f"{config.name}:{loaded.number}",
            self.instances,
            passive,
            {place.index: place.host.apply for place in loaded.places if place.host},
            _in_flight(loaded),
        )
        batching = config.dynamic_batching
        ordered = batching is not None and batching.preserve_ordering
        self._ordering = Ordering(self._over, loop.call_soon) if ordered else None
        over = self._over if self._ordering is None else self._ordering.settled
        policy = _policy(loaded, start_at, start_backlog)
        # A sequence cannot move to another instance if its own breaks.
        instances.pinned = is_stateful_policy(policy)
        self._runner: Runner | EnsembleRunner
        if loaded.ensemble is not None:
            self._runner = EnsembleRunner(_ensemble_config(loaded, runner_config), observer, over)
        else:
            self._runner = Runner(runner_config, policy, instances, loop, observer, over, loaded.limiter_slots, clock)
        self._supervised: list[Supervised] = []
        self._self_assessing: list[SelfAssessing] = []
        self._restarts_of_others = 0
        for index in range(len(self.instances)):
            self._watch(index)

    def _watch(self, index: int) -> None:
        instance = self.instances[index]
        if is_self_assessing(instance) and index not in self._passive:
            self._self_assessing.append(instance)
        if is_supervised(instance):
            self._supervised.append(instance)
            instance.watch(partial(self._runner.mark, index))

    def instances_now(self) -> InstancesNow:
        """What a load needs to know to change the instances."""
        vacant = [index for index, instance in enumerate(self.instances) if isinstance(instance, Vacant)]
        return InstancesNow(self.loaded, self.config, self._signatures_now(), len(self.instances), vacant)

    def _signatures_now(self) -> dict[int, Signature]:
        return dict(signatures_of(self.config) if self._signatures is None else self._signatures)

    def resize(self, change: Resized, left: Callable[[Instance], None]) -> None:
        """Serves with other instances from now on (R13). `left` is called with each removed instance once its batch has
        ended, to close it."""
        places = {place.index: place for place in self.places}
        signatures = self._signatures_now()
        # An index is never given to another instance while requests, sequences or threads may refer to it.
        for index, (place, instance, signature) in change.added.items():
            # Replaces a `Vacant`, or appends: an index may be one beyond the last.
            self.instances[index : index + 1] = [instance]
            places[index], signatures[index] = place, signature
        for index in change.removed:
            self._forget(self.instances[index])
            places.pop(index, None)
            del signatures[index]
        self.places, self._signatures = list(places.values()), signatures
        self.config = change.config
        self._passive = {place.index for place in self.places if place.passive}
        added = {
            index: (place.passive, place.host.apply if place.host else None)
            for index, (place, _, _) in change.added.items()
        }
        self._runner.resize(added, change.removed, partial(self._left, left))
        for index in change.added:
            self._watch(index)
        run_in_slices(count_runs(change.warmed, self._observer), lambda _: None, self._loop.call_soon)

    def _forget(self, instance: Instance) -> None:
        # By identity: a backend's instances may define equality.
        self._self_assessing = [each for each in self._self_assessing if id(each) != id(instance)]
        if is_supervised(instance):
            # It is watched until it is gone: sequences may stay on it.
            self._supervised.remove(instance)
            self._restarts_of_others += instance.restarts

    def _left(self, left: Callable[[Instance], None], index: int) -> None:
        instance, self.instances[index] = self.instances[index], Vacant()
        if is_supervised(instance):
            # Its process ends now, which is no failure.
            instance.watch(lambda healthy, expected: None)
        left(instance)

    @property
    def waiting(self) -> int:
        """The number of inferences that wait for an instance."""
        return self._runner.waiting

    @property
    def busy(self) -> int:
        """The number of instances that run a batch."""
        return self._instances.busy

    @property
    def inline_executions(self) -> int:
        """The number of batches that ran on the event loop."""
        return self._runner.inline_executions

    @property
    def serving(self) -> Sequence[Instance]:
        """The instances that are given batches."""
        return [
            instance
            for index, instance in enumerate(self.instances)
            if index not in self._passive and not isinstance(instance, Vacant)
        ]

    @property
    def healthy(self) -> bool:
        """Whether at least one instance can run a batch (P10)."""
        # An ensemble has no instances; the health of its members is their own.
        instances = self.serving
        return not instances or any(instance.healthy for instance in instances)

    @property
    def reports_readiness(self) -> bool:
        """Whether the model itself reports its readiness. Then all of its healthy instances must report that they are
        ready, because any of them may get the next request (P9)."""
        return any(instance.reports_readiness for instance in self._self_assessing)

    def ask_ready(self, done: Callable[[bool], None]) -> None:
        """Asks the instances whether they are ready. Calls `done` once, possibly before this returns."""
        healthy = {id(instance) for instance in self.serving if instance.healthy}
        ask_all([instance for instance in self._self_assessing if id(instance) in healthy], done)

    @property
    def restarts(self) -> int | None:
        """How often instances broke and were restarted. None if they cannot be."""
        if not self._supervised:
            return None
        return self._restarts_of_others + sum(instance.restarts for instance in self._supervised)

    @property
    def device_copies(self) -> int | None:
        """How many tensors were copied from a device to the host, None if the model runs on the host."""
        model = self.loaded.model
        return model.copies.value if is_on_device(model) else None

    @property
    def takes_device(self) -> bool:
        """Whether the model takes tensors on a device as they are."""
        return is_on_device(self.loaded.model)

    def infer(self, key: int, request: InferRequest, reply: Reply, start: int) -> Inference:
        """Begins an inference that arrived at `start`. Raises Error if the request does not fit the model."""
        fit = self._check.fit(request)
        inference = Inference(key, request, reply, fit.batch_size, fit.outputs, fit.batch_key, fit.input_bytes)
        inference.times[Stamp.REQUEST_START] = start
        if request.trace is not None:  # the steps of an ensemble have traces of their own
            request.trace.begun(request, self.number, inference.times, self.config.ensemble is None)
        self.held += 1
        return inference

    def blockers(self) -> Sequence[object]:
        """The instances, of any model, one of which must end its batch before a waiting request can run."""
        others = self.loaded.limiter_slots.blockers() if self.loaded.limiter_slots is not None else ()
        return others or self.serving

    def blockers_of(self, inference: Inference) -> Sequence[object]:
        """The instances that an inference waits for or runs on.

        If they wait for the rate limiter, the instances that hold the resources.
        """
        if isinstance(self._runner, EnsembleRunner):
            return self._runner.blockers_of(inference)
        return self.blockers() if inference.state is QUEUED else self.serving

    def is_queued(self, inference: Inference) -> bool:
        """Whether an inference, or a step of it if this is an ensemble, waits for an instance."""
        if isinstance(self._runner, EnsembleRunner):
            return self._runner.is_queued(inference)
        return inference.state is QUEUED

    def preempt_turn(self) -> bool:
        """Lets an instance run out of turn if it only waits for its turn. Returns whether there is one."""
        return self.loaded.limiter_slots is not None and self.loaded.limiter_slots.preempt_turn()

    def hold(self) -> None:
        """Called by an ensemble that will submit inferences. The version stays open for them until `let_go`."""
        self.held += 1
        self._holds += 1

    def let_go(self) -> None:
        self.held -= 1
        self._holds -= 1
        if self._on_idle is not None:
            self._tell_idle()

    def submit(self, inference: Inference) -> None:
        """Runs or queues an inference, or hands it to the interceptor."""
        if self._interceptor is not None:  # a response cache
            self._interceptor(inference)
            return
        if self._ordering is not None:
            self._ordering.enter(inference)
        self._runner.submit(inference)

    @property
    def keeps_order(self) -> bool:
        """Whether the order of its requests matters: those of a sequence, or if responses keep that order."""
        return self._ordering is not None or self.config.sequence_batching is not None

    @property
    def contents(self) -> bytes:
        """A digest of what the version is made of, empty if nobody needs it."""
        return self.loaded.contents

    def intercept_with(self, interceptor: Callable[[Inference], None]) -> None:
        """Hands inferences to `interceptor` from now on. For each it calls `enter`, and then `run` or `settle`."""
        self._interceptor = interceptor

    def enter(self, inference: Inference) -> None:
        """Gives an inference its place if responses keep the order of requests. Its reply slot must not change then."""
        if self._ordering is not None:
            self._ordering.enter(inference)

    def run(self, inference: Inference) -> None:
        """Runs or queues an inference that was intercepted."""
        self._runner.submit(inference)

    def settle(self, inference: Inference, answer: InferResponse | Error) -> None:
        """Ends an inference that was never queued."""
        self._runner.settle(inference, answer)

    def cancel(self, inference: Inference) -> None:
        self._runner.cancel(inference)

    def retire(self, on_idle: Callable[[], None]) -> None:
        """Begins no more inferences. Calls `on_idle` once, when those that have begun are over and no ensemble holds
        the version."""
        # An interceptor or an ensemble may still submit inferences that have begun.
        if self._interceptor is None and not self._holds:
            self._runner.stop()
        self._on_idle = on_idle
        self._tell_idle()

    def close(self) -> None:
        """Ends the runner, and its threads after their batches. `close_model` closes the instances."""
        self._runner.close()

    def when_batches_end(self, done: Callable[[], None]) -> None:
        """Calls `done` once, when no instance has a batch; before this returns if none has one now. A batch of a model
        with many responses may run on after its last response, when nothing holds the version any more."""
        self._instances.when_idle(done)

    def close_model(self) -> None:
        """Closes the instances and the model, when no batch runs any more (`when_batches_end`). Called on a closing
        thread; may block, does not raise."""
        self.loaded.close(self.instances)

    def forget(self) -> None:
        """Lets go of the closed model, its instances and its labels, so that their memory is free at once. The version
        itself is part of cycles, and Python's collector never looks at objects that were there when the server had
        started."""
        self.instances.clear()
        self._supervised.clear()
        self._self_assessing.clear()
        self.loaded = replace(self.loaded, model=NoModel(), instances=(), labels={})

    def _over(self, inference: Inference) -> None:
        self.held -= 1
        self._settled(inference)
        if self._on_idle is not None:
            self._tell_idle()

    def _tell_idle(self) -> None:
        # Once only: what it calls may end further inferences.
        if self._on_idle is not None and not self.held:
            on_idle, self._on_idle = self._on_idle, None
            on_idle()


def _in_flight(loaded: LoadedVersion) -> int:
    """How many batches each instance has at a time. Only one if the order of batches matters (sequences), and with the
    rate limiter, whose slot stands for one batch."""
    alone = loaded.limiter_slots is not None or loaded.config.sequence_batching is not None
    return 1 if alone else max(1, loaded.model.in_flight)


def _runner_config(loaded: LoadedVersion, inline: bool) -> RunnerConfig:
    config, shapes = loaded.config, OutputShapes(loaded.config)
    return RunnerConfig(
        model_name=config.name,
        model_version=loaded.number,
        datatypes={spec.name: spec.datatype for spec in config.model_outputs},
        decoupled=config.decoupled,
        inline_safe=loaded.model.inline_safe and inline and not any(place.host for place in loaded.places),
        on_loop=loaded.model.placement is Placement.LOOP,
        completes_later=loaded.model.placement is Placement.ASYNC,
        restore=shapes.restore if shapes else None,
        gathers=loaded.model.gathers,
        ragged=ragged_of(config),
        implicit_state=loaded.states is not None,
        checks_outputs=loaded.checks_outputs,
    )


def _ensemble_config(loaded: LoadedVersion, runner_config: RunnerConfig) -> EnsembleRunnerConfig:
    parts, ensemble = loaded.ensemble, loaded.config.ensemble
    assert parts is not None
    assert ensemble is not None
    return EnsembleRunnerConfig(
        name=runner_config.model_name,
        version=runner_config.model_version,
        graph=parts.graph,
        decoupled=runner_config.decoupled,
        most_in_flight=ensemble.max_in_flight,
        bind=parts.bind,
        changes=parts.changes,
        restore=runner_config.restore,
    )


def _policy(loaded: LoadedVersion, start_at: int, start_backlog: int) -> Policy:
    """`start_at` and `start_backlog` hold back the first batches (C60)."""
    config, sequences = loaded.config, loaded.config.sequence_batching
    serving = [place.index for place in loaded.places if not place.passive]
    # Without an instance that takes requests, `policy_for` returns the policy that refuses them.
    if sequences is None or not serving:
        return policy_for(config, start_at, loaded.strategy)
    begin = loaded.states.begin if loaded.states is not None else None
    return sequence_policy(config, sequences, serving, begin, start_at, start_backlog)
