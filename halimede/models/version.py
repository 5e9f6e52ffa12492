"""A model version that serves: its configuration, its checks, its runner, and how many inferences hold it.

Event-loop thread only.
"""

from collections.abc import Callable
from functools import partial

from halimede.backends.api import Placement, Supervised
from halimede.config import ModelConfig
from halimede.models.checks import OutputShapes, RequestCheck
from halimede.models.loader import LoadedVersion
from halimede.requests import InferRequest, Moment, Reply
from halimede.scheduling.dynamic import DynamicPolicy
from halimede.scheduling.inference import Inference
from halimede.scheduling.instances import Instances
from halimede.scheduling.policy import Policy
from halimede.scheduling.queue import DefaultPolicy
from halimede.scheduling.runner import Loop, Observer, Runner, RunnerFacts


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
    ) -> None:
        config = loaded.config
        self.name = config.name
        self.number = loaded.number
        self.config: ModelConfig = config
        self.loaded = loaded
        self.held = 0
        self.decoupled = config.decoupled
        self._check = RequestCheck(config)
        self._settled = settled
        self._on_idle: Callable[[], None] | None = None
        shapes = OutputShapes(config)
        facts = RunnerFacts(
            model_name=config.name,
            model_version=loaded.number,
            datatypes={spec.name: spec.datatype for spec in config.outputs},
            decoupled=config.decoupled,
            inline_safe=loaded.model.inline_safe and inline,
            on_loop=loaded.model.placement is Placement.LOOP,
            restore=shapes.restore if shapes else None,
        )
        instances = Instances(f"{config.name}:{loaded.number}", loaded.instances)
        self._runner = Runner(facts, policy_for(config, start_at), instances, loop, observer, self._over)
        self._supervised: list[Supervised] = []
        for index, instance in enumerate(loaded.instances):
            if isinstance(instance, Supervised):
                self._supervised.append(instance)
                instance.watch(partial(self._runner.mark, index))

    @property
    def waiting(self) -> int:
        """How many inferences wait for an instance."""
        return self._runner.waiting

    @property
    def inline_executions(self) -> int:
        """How many batches ran on the event loop."""
        return self._runner.inline_executions

    @property
    def healthy(self) -> bool:
        """Whether an instance can run a batch (contract P10): requests are served, if by fewer than there should be."""
        instances = self.loaded.instances
        return not instances or any(instance.healthy for instance in instances)

    @property
    def restarts(self) -> int | None:
        """How often instances broke and came back, None where they cannot."""
        return sum(instance.restarts for instance in self._supervised) if self._supervised else None

    def infer(self, key: int, request: InferRequest, reply: Reply, start: int) -> Inference:
        """Begins an inference that arrived at `start`. Raises Error where the request does not fit the model."""
        fit = self._check.fit(request)
        inference = Inference(key, request, reply, fit.batch_size, fit.outputs, fit.batch_key)
        inference.times[Moment.REQUEST_START] = start
        self.held += 1
        return inference

    def submit(self, inference: Inference) -> None:
        self._runner.submit(inference)

    def cancel(self, inference: Inference) -> None:
        self._runner.cancel(inference)

    def retire(self, on_idle: Callable[[], None]) -> None:
        """Takes nothing more; calls back once when nothing is left of what was begun."""
        self._runner.stop()
        self._on_idle = on_idle
        self._tell_idle()

    def close(self) -> None:
        """Ends what the version runs on. The instances themselves are closed on a load thread, by `loaded.close`."""
        self._runner.close()

    def _over(self, inference: Inference) -> None:
        self.held -= 1
        self._settled(inference)
        self._tell_idle()

    def _tell_idle(self) -> None:
        if self._on_idle is not None and not self.held:
            on_idle, self._on_idle = self._on_idle, None
            on_idle()


def policy_for(config: ModelConfig, start_at: int) -> Policy:
    """The scheduling policy that a configuration asks for (contract S1)."""
    batching = config.dynamic_batching
    if batching is None:
        return DefaultPolicy()
    return DynamicPolicy(
        config.max_batch_size, batching.preferred_batch_sizes, batching.max_queue_delay_us * 1000, start_at
    )
