"""A request that runs on the event loop as a batch by itself and is answered at once, in one go.

What most requests to small models are: nobody waits before them, they are quick, and there is one answer. The runner
would do the same in many steps (`_start`, `_drain`, `_settle`, `_end`), each of which asks what such a request has not:
others in its batch, a thread, a destination, a flow. Whatever is not so plain is left to the runner. Event-loop thread
only.
"""

from collections.abc import Callable, Sequence

from halimede.errors import Error
from halimede.requests import InferResponse, Parameters, Stamp
from halimede.scheduling.execution import Execution
from halimede.scheduling.inference import RUNNING, SETTLED, Inference
from halimede.scheduling.inline import InlineEligibility, TurnBudget
from halimede.scheduling.instances import Instances
from halimede.scheduling.runner_config import Observer, RunnerConfig
from halimede.tensors import Tensor

_COMPUTE_START = int(Stamp.COMPUTE_START)


class FastPath:
    """`drain` is the runner's way with a batch that has run, `broke` logs what never should break; `observer` and
    `settled` as there."""

    __slots__ = ("_broke", "_budget", "_config", "_drain", "_eligibility", "_instances", "_observer", "_settled")

    def __init__(
        self,
        config: RunnerConfig,
        instances: Instances,
        budget: TurnBudget,
        eligibility: InlineEligibility,
        observer: Observer,
        settled: Callable[[Inference], None],
        drain: Callable[[Execution], None],
        broke: Callable[[Exception], Error],
    ) -> None:
        self._config = config
        self._instances = instances
        self._budget = budget
        self._eligibility = eligibility
        self._observer = observer
        self._settled = settled
        self._drain = drain
        self._broke = broke

    @staticmethod
    def serves(config: RunnerConfig) -> bool:
        """Whether there may be such requests to a model at all."""
        return config.inline_safe and not (config.decoupled or config.gathers or config.on_loop or config.stateful)

    def run(self, inference: Inference, now: int) -> bool:
        """Runs it on the instance that is free the longest, of which there must be one; False where it may not run on
        the loop now, and nothing was done."""
        rows = inference.batch_size or 1
        if inference.destinations is not None or not self._budget.left or not self._eligibility.allows(rows):
            return False
        config, instances = self._config, self._instances
        inference.state = RUNNING
        index = instances.turn()
        execution = Execution((inference,), rows, index, config.datatypes, False, None)
        execution.on_loop = True
        if config.ragged is not None:
            execution.ragged = config.ragged
        execution.run(instances.instances[index].execute, True, now)
        end = execution.compute_end
        self._budget.spend(end - now)
        response = self._response(inference, execution)
        if response is None:
            instances.take(index)
            self._drain(execution)
            return True
        self._eligibility.ran(rows, end - now, True)
        inference.times[_COMPUTE_START:] = (now, execution.input_end or now, execution.output_start or end, end)
        inference.state = SETTLED
        try:
            self._observer.served(inference, rows, end)
        except Exception as error:
            self._broke(error)
        try:
            inference.reply.send(response, True)
        except Exception as error:
            self._broke(error)
        try:
            self._settled(inference)
        except Exception as error:
            self._broke(error)
        return True

    def _response(self, inference: Inference, execution: Execution) -> InferResponse | None:
        """The response, where the model gave just one and nothing is wrong with it."""
        outcomes = execution.outcomes
        if len(outcomes) != 1:
            return None
        outcome = outcomes[0]
        answer = outcome.answer
        if not outcome.final or outcome.i or answer is None or isinstance(answer, Error):
            return None
        try:
            return response_of(answer, outcome.parameters, inference, self._config)
        except Exception:  # the runner comes upon it too, and says so
            return None


def response_of(
    outputs: Sequence[Tensor], parameters: Parameters | None, inference: Inference, config: RunnerConfig
) -> InferResponse:
    """The response with the outputs that were asked for, in the shape that clients see."""
    wanted, restore = inference.outputs, config.restore
    kept = []
    for tensor in outputs:
        if tensor.name in wanted:
            kept.append(tensor if restore is None else restore(tensor))
    return InferResponse(inference.request.id, config.model_name, config.model_version, kept, parameters)
