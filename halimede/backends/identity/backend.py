"""The built-in backend `identity`: returns each input INPUTn as OUTPUTn, by reference, without reading it.

It shows the cost of the server itself, so `execute` is as cheap as Python allows: no array, no copy. `open` runs on
load threads, `execute` on an instance's thread or the event loop.
"""

from collections.abc import Mapping

from halimede.backends.api import (
    BaseBackend,
    BaseInstance,
    BaseModel,
    Batch,
    Fault,
    InstancePlace,
    ModelFolder,
    Responses,
)
from halimede.backends.identity import TRAITS
from halimede.config.model_config import Incomplete, ModelConfig
from halimede.tensors import Tensor


def output_name(input_name: str) -> str:
    """`INPUT0` -> `OUTPUT0`, `x` -> `OUTPUTx`."""
    return "OUTPUT" + input_name.removeprefix("INPUT")


class IdentityInstance(BaseInstance):
    """Answers each request of a batch with its own tensors. Holds no state: instances may run at the same time."""

    __slots__ = ("_names",)

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def execute(self, batch: Batch, responses: Responses) -> None:
        names = self._names
        for i, one in enumerate(batch.requests):
            wanted = one.outputs
            outputs = []
            for name, tensor in one.request.inputs.items():
                output = names.get(name, "")
                if output in wanted:
                    outputs.append(Tensor(output, tensor.datatype, tensor.shape, tensor.memory))
            responses.send(i, outputs)


class IdentityModel(BaseModel):
    """An identity model. It maps each input to an output, and drops inputs without one."""

    inline_safe = True

    def __init__(self, config: ModelConfig) -> None:
        declared = {spec.name for spec in config.outputs}
        names = {spec.name: output_name(spec.name) for spec in config.inputs}
        self._names = {name: output for name, output in names.items() if output in declared}

    def create_instance(self, place: InstancePlace) -> IdentityInstance:
        return IdentityInstance(self._names)


class IdentityBackend(BaseBackend):
    """Opens identity models. Needs no file, and cannot complete a configuration."""

    traits = TRAITS

    def runs_code(self, asked: Incomplete) -> bool:
        return False

    def faults(self, asked: Incomplete, config: ModelConfig | None, folder: ModelFolder, filename: str) -> list[Fault]:
        """None: a model has no files, and `halimede check` knows the configuration."""
        return []

    def open(self, config: ModelConfig, folder: ModelFolder) -> IdentityModel:
        return IdentityModel(config)
