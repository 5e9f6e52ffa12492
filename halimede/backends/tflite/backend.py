"""The `tflite` backend: TensorFlow Lite models on LiteRT, without TensorFlow.

Each instance has an interpreter of its own, and all share the bytes of the file. `execute` runs on an instance's
thread, or on the event loop while it is measured to be quick."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from ai_edge_litert.interpreter import Interpreter

from halimede.backends.api import (
    Arrays,
    BaseBackend,
    BaseInstance,
    BaseModel,
    Batch,
    Fault,
    InstancePlace,
    ModelFolder,
    Responses,
    cpu_share,
)
from halimede.backends.checks import check, problems
from halimede.backends.parameters import Settings
from halimede.backends.texts import wrong_rows
from halimede.backends.tflite import TRAITS
from halimede.backends.tflite.values import values_decide
from halimede.config.model_config import DescribedTensor, Description, Incomplete, ModelConfig
from halimede.errors import Cause, Error, Internal, Invalid, Unavailable
from halimede.tensors import DATATYPES, DataType, Shape

Array = npt.NDArray[Any]

_SIGNATURE = "SIGNATURE"
"""The parameter of a model that chooses its signature."""
_THREADS = "num_threads"

_DATATYPES: Mapping[Any, DataType] = MappingProxyType(
    {each.numpy.type: each for name, each in DATATYPES.items() if name not in ("BF16", "BYTES")}
    | {np.bytes_: DATATYPES["BYTES"]}
)


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output: its name for clients, and its number in the interpreter."""

    name: str
    index: int
    kind: Any
    shape: Shape


@dataclass(frozen=True, slots=True)
class Signature:
    """Which tensors of a file are its inputs and outputs. `name` is empty for a file without signatures."""

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def open_interpreter(content: bytes, model: str, threads: int) -> Any:
    """Raises Internal with the runtime's words."""
    try:
        return Interpreter(model_content=content, num_threads=threads)
    except (ValueError, RuntimeError) as error:
        raise Internal(f"tflite error in reading model '{model}': {_text(error)}").blaming(Cause.FILE) from error


def signature_of(interpreter: Any, model: str, wanted: str) -> Signature:
    """The signature that a model wants, or the first; without signatures the tensors have the names of the file.

    Raises Invalid, and Internal for a datatype that the runtime cannot name."""
    try:
        return _signature_of(interpreter, model, wanted)
    except (ValueError, RuntimeError) as error:
        raise Internal(f"tflite error in reading model '{model}': {_text(error)}").blaming(Cause.FILE) from error


def _signature_of(interpreter: Any, model: str, wanted: str) -> Signature:
    names = list(interpreter.get_signature_list())
    if wanted and wanted not in names:
        text = f"unable to load model '{model}', expected '{wanted}' signature, the file has: {', '.join(names)}"
        raise Invalid(text).blaming(Cause.CONFIGURATION)
    if not names:
        sides = interpreter.get_input_details(), interpreter.get_output_details()
        return Signature("", *(tuple(_port(each["name"], each) for each in side) for side in sides))
    name = wanted or names[0]
    runner = interpreter.get_signature_runner(name)
    named = runner.get_input_details(), runner.get_output_details()
    return Signature(name, *(tuple(_port(key, side[key]) for key in sorted(side)) for side in named))


def _port(name: str, details: Mapping[str, Any]) -> Port:
    signature = details["shape_signature"]
    shape = signature if len(signature) else details["shape"]
    return Port(name, details["index"], details["dtype"], tuple(map(int, shape)))


def describe(signature: Signature, model: str, source: str) -> Description:
    """Raises Invalid for a tensor that no request could carry."""
    for port in (*signature.inputs, *signature.outputs):
        if port.kind not in _DATATYPES:
            kind = getattr(port.kind, "__name__", port.kind)
            raise Invalid(f"unsupported datatype '{kind}' for tensor '{port.name}' of model '{model}'").blaming(
                Cause.FILE
            )
    sides = (signature.inputs, signature.outputs)
    inputs, outputs = (
        tuple(DescribedTensor(port.name, _DATATYPES[port.kind], port.shape) for port in side) for side in sides
    )
    return Description(inputs, outputs, source=source)


class TfliteInstance(BaseInstance):
    """One interpreter. Its outputs are copies."""

    def __init__(self, config: ModelConfig, interpreter: Any, signature: Signature) -> None:
        cut = {name for each in config.batch_outputs for name in each.targets}
        self._model = config.name
        self._run = Runner(interpreter, signature).run if not signature.name else _of_signature(interpreter, signature)
        self._scalars = frozenset(port.name for port in signature.inputs if not port.shape)
        self._dims = {spec.name: spec.model_dims for spec in config.model_outputs}
        self._by_rows = frozenset(name for name in self._dims if config.max_batch_size and name not in cut)

    def execute(self, batch: Batch, responses: Responses) -> None:
        """Raises Internal with the runtime's words, or where the number of rows does not fit."""
        arrays = batch.arrays()
        rows = sum([each.batch_size for each in batch.requests])
        for name in self._scalars.intersection(arrays):
            arrays[name] = arrays[name].reshape(())
        try:
            values = self._run(arrays)
        except (ValueError, RuntimeError) as error:
            raise Internal(f"tflite error in running model '{self._model}': {_text(error)}") from error
        outputs = {}
        for name, dims in self._dims.items():
            array = values[name]
            if name in self._by_rows and array.shape[:1] != (rows,):
                raise wrong_rows(self._model, name, array.shape, rows)
            outputs[name] = array if array.ndim or not dims else array.reshape(dims)
        responses.scatter(outputs)


class Runner:
    """Runs the tensors of an interpreter, which are resized when a batch has other sizes than the last one."""

    def __init__(self, interpreter: Any, signature: Signature) -> None:
        self._interpreter = interpreter
        self._signature = signature
        self._shapes: dict[str, Shape] = {}

    def run(self, arrays: Arrays) -> Arrays:
        interpreter = self._interpreter
        shapes = {port.name: arrays[port.name].shape for port in self._signature.inputs}
        if shapes != self._shapes:
            self._shapes = {}
            for port in self._signature.inputs:
                interpreter.resize_tensor_input(port.index, shapes[port.name])
            interpreter.allocate_tensors()
            self._shapes = shapes
        for port in self._signature.inputs:
            interpreter.set_tensor(port.index, arrays[port.name])
        interpreter.invoke()
        return {port.name: interpreter.get_tensor(port.index) for port in self._signature.outputs}


def _of_signature(interpreter: Any, signature: Signature) -> Any:
    """What runs a signature; it resizes the tensors itself."""
    runner = interpreter.get_signature_runner(signature.name)
    return lambda arrays: runner(**arrays)


class TfliteModel(BaseModel):
    def __init__(
        self, config: ModelConfig, content: bytes, wanted: str, threads: int | None, inline_safe: bool
    ) -> None:
        self.inline_safe = inline_safe
        self._config = config
        self._content = content
        self._wanted = wanted
        self._threads = threads

    def create_instance(self, place: InstancePlace) -> TfliteInstance:
        share = cpu_share(self._config.instances_beside(place.host_policy))
        name = self._config.name
        interpreter = open_interpreter(self._content, name, self._threads or share.threads)
        try:
            interpreter.allocate_tensors()
        except (ValueError, RuntimeError) as error:  # an operator that the runtime does not have
            text = f"tflite error in preparing model '{name}': {_text(error)}"
            raise Internal(text).blaming(Cause.FILE) from error
        return TfliteInstance(self._config, interpreter, signature_of(interpreter, name, self._wanted))


class TfliteBackend(BaseBackend):
    """The parameter `num_threads`, of a model or in `--backend-config=tflite,num_threads=...`, is the number of threads
    of each instance."""

    traits = TRAITS

    def describe(self, asked: Incomplete, folder: ModelFolder, filename: str) -> Description:
        """Raises Unavailable, Invalid, Internal."""
        return self._described(asked, folder, filename)

    def runs_code(self, asked: Incomplete) -> bool:
        return False

    def faults(self, asked: Incomplete, config: ModelConfig | None, folder: ModelFolder, filename: str) -> list[Fault]:
        """A file that is missing or not a model; inputs and outputs that differ from the configuration."""
        try:
            described = self._described(asked, folder, filename)
        except Error as error:
            return [Fault(str(error), cause=error.cause)]
        return [] if config is None else [Fault(str(error)) for error in problems(config, described)]

    def open(self, config: ModelConfig, folder: ModelFolder) -> TfliteModel:
        """Raises Invalid if the configuration does not fit the model, Unavailable, Internal."""
        content = _content(folder, config.model_filename, config.name)
        wanted = config.parameters.get(_SIGNATURE, "")
        interpreter = open_interpreter(content, config.name, 1)
        signature = signature_of(interpreter, config.name, wanted)
        check(config, describe(signature, config.name, config.model_filename))
        of_model = Settings(f"unable to load model '{config.name}'", config.parameters).count(_THREADS)
        of_backend = Settings("backend config of 'tflite'", self.context.settings).count(_THREADS)
        return TfliteModel(config, content, wanted, of_model or of_backend, not values_decide(interpreter))

    def _described(self, asked: Incomplete, folder: ModelFolder, filename: str) -> Description:
        interpreter = open_interpreter(_content(folder, filename, asked.name), asked.name, 1)
        signature = signature_of(interpreter, asked.name, asked.parameters.get(_SIGNATURE, ""))
        return describe(signature, asked.name, filename)


def _content(folder: ModelFolder, filename: str, model: str) -> bytes:
    path = folder.version / filename
    try:
        return path.read_bytes()
    except OSError as error:
        raise Unavailable(f"unable to find '{path}' for model '{model}'").blaming(Cause.FILE) from error


def _text(error: Exception) -> str:
    return " ".join(str(error).split())
