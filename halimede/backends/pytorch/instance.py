"""An instance of a model of torch on the CPU: the path of a batch through its module.

On the thread of the instance, on the event loop while the model is quick, or on the main thread of a child process.
"""

from typing import Any

from halimede.backends.api import Arrays, Batch, Responses
from halimede.backends.pytorch.running import Loaded, Runner
from halimede.backends.pytorch.teams import IDLE_SECONDS, end_team
from halimede.backends.pytorch.values import tensor_of, texts_of
from halimede.config.model_config import ModelConfig
from halimede.errors import Error
from halimede.platform.wakeable_thread import WakeableThread
from halimede.tensors import DataType


def datatypes_of(config: ModelConfig) -> dict[str, DataType]:
    """The datatypes of all inputs of the model, those that the server computes included."""
    types = {spec.name: spec.datatype for spec in config.model_inputs}
    return types | {name: each.datatype for each in config.batch_inputs for name in each.targets}


class HostInstance:
    """`finishes`: the model also has instances on a device, so each batch must be ended (Placement.ASYNC).

    `thread` is the one that the server uses. It gives up its helper threads while there are no batches.
    """

    healthy = True

    def __init__(self, name: str, config: ModelConfig, runner: Runner, loaded: Loaded, finishes: bool = False) -> None:
        """Raises OSError or RuntimeError if the system has no thread or descriptor left."""
        self.thread = WakeableThread(name, end_team, IDLE_SECONDS)
        self._runner = runner
        self._batches = loaded.batches
        self._finishes = finishes
        self._inputs = [(name, datatype) for name, datatype in _ordered(runner, config)]
        self._texts = runner.binding.strings
        self._writes_inputs = runner.effects.writes_inputs

    def execute(self, batch: Batch, responses: Responses) -> None:
        """Raises Error with the words of the kind of model."""
        if self._batches or len(batch.requests) == 1:
            responses.scatter(self._infer(batch.arrays()))
        else:
            for i in range(len(batch.requests)):
                try:
                    responses.scatter_to(i, self._infer(batch.arrays_of(i)))
                except Error as error:
                    responses.fail(i, error)
        if self._finishes:
            responses.finished()

    def _infer(self, arrays: Arrays) -> Arrays:
        runner = self._runner
        given: list[Any] = [
            texts_of(arrays[name]) if name in self._texts else tensor_of(arrays[name], datatype, self._writes_inputs)
            for name, datatype in self._inputs
        ]
        return runner.arrays(runner.run(given))

    def close(self) -> None:
        self.thread.stop()
        self._runner.close()


def _ordered(runner: Runner, config: ModelConfig) -> list[tuple[str, DataType]]:
    types = datatypes_of(config)
    return [(name, types[name]) for name in runner.binding.inputs]
