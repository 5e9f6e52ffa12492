"""The `dali` backend: pipelines that prepare data, such as decoding and resizing of pictures.

It runs in child processes, one for each instance, on the main thread.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import nvidia.dali.plugin_manager

from halimede.backends.api import (
    BackendContext,
    BaseInstance,
    BaseModel,
    Batch,
    BatchedRequest,
    Fault,
    InstancePlace,
    ModelFolder,
    Responses,
)
from halimede.backends.dali import TRAITS
from halimede.backends.dali.configuration import (
    check_inputs,
    completed,
    names_of,
    whole,
    writes_batch_size,
)
from halimede.backends.dali.library import has_driver, shape_of
from halimede.backends.dali.pipeline import Array, Output, RunningPipeline
from halimede.backends.dali.source import serialized_pipeline
from halimede.config.model_config import Incomplete, InstanceKind, ModelConfig, TensorSpec
from halimede.errors import Error, Unknown
from halimede.tensors import BYTES, Tensor, array_of, tensor_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """How requests are answered. `outputs` are in the order of the pipeline's. `joined` are those whose samples become
    rows. `streams`: one request gives several answers."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    joined: frozenset[str]
    streams: bool


class DaliInstance(BaseInstance):
    """One pipeline."""

    def __init__(self, plan: Plan, pipeline: RunningPipeline) -> None:
        self._plan = plan
        self._pipeline = pipeline

    def execute(self, batch: Batch, responses: Responses) -> None:
        """Runs all requests at once. If that fails, each runs alone: the others did nothing wrong."""
        requests = batch.requests
        if self._plan.streams:
            for i, one in enumerate(requests):
                self._stream(i, one, responses)
            return
        every = [self._samples(one) for one in requests]
        together = {spec.name: [sample for each in every for sample in each[spec.name]] for spec in self._plan.inputs}
        try:
            outputs = self._pipeline.run(together)
        except Error:
            if len(requests) == 1:
                raise
            for i, samples in enumerate(every):
                try:
                    self._answer(i, self._pipeline.run(samples), 0, responses)
                except Error as error:
                    responses.fail(i, error)
            return
        start = 0
        for i, samples in enumerate(every):
            self._answer(i, outputs, start, responses, self._count(samples))
            start += self._count(samples)

    def close(self) -> None:
        self._pipeline.close()

    def _samples(self, one: BatchedRequest) -> dict[str, Sequence[Array]]:
        inputs = one.request.inputs
        return {spec.name: samples_of(inputs[spec.name]) for spec in self._plan.inputs}

    def _count(self, samples: Mapping[str, Sequence[Array]]) -> int:
        return len(next(iter(samples.values()), ()))

    def _stream(self, i: int, one: BatchedRequest, responses: Responses) -> None:
        """One response for each run. The last one is known only when a further run has no more data."""
        last: list[Tensor] | None = None
        for outputs in self._pipeline.stream(self._samples(one)):
            if last is not None:
                responses.send(i, last, final=False)
            if one.cancelled:
                break
            last = self._tensors(outputs, 0, len(outputs[0]))
        responses.send(i, last)

    def _answer(
        self, i: int, outputs: Sequence[Output], start: int, responses: Responses, count: int | None = None
    ) -> None:
        try:
            end = len(outputs[0]) if count is None else start + count
            responses.send(i, self._tensors(outputs, start, end))
        except Error as error:
            responses.fail(i, error)

    def _tensors(self, outputs: Sequence[Output], start: int, end: int) -> list[Tensor]:
        """The rows of one request. Raises Invalid if they are no tensor, Unknown if one has another datatype than the
        configuration."""
        tensors = []
        for spec, output in zip(self._plan.outputs, outputs, strict=True):
            joined = spec.name in self._plan.joined
            array = output.joined(start, end) if joined else output.rows(start, end, spec.name)
            if array.dtype != spec.datatype.numpy:
                text = (
                    f"output '{spec.name}' of the pipeline is {array.dtype}, and the configuration has {spec.datatype}"
                )
                raise Unknown(f"DALI Backend error: {text}")
            tensors.append(tensor_of(spec.name, spec.datatype, array))
        return tensors


class DaliModel(BaseModel):
    """A version of a pipeline."""

    def __init__(self, config: ModelConfig, serialized: bytes, plan: Plan, batch_size: int) -> None:
        self._config, self._serialized, self._plan, self._batch_size = config, serialized, plan, batch_size

    def create_instance(self, place: InstancePlace) -> DaliInstance:
        device = place.device_id if place.kind is InstanceKind.GPU else None
        threads = whole(self._config.parameters, "num_threads", -1)
        return DaliInstance(self._plan, RunningPipeline(self._serialized, self._batch_size, threads, device))


class DaliBackend:
    """Opens pipelines. The setting `plugin_libs` names libraries with operators (BD10)."""

    traits = TRAITS

    def __init__(self, context: BackendContext) -> None:
        for path in filter(None, context.settings.get("plugin_libs", "").split(":")):
            try:
                nvidia.dali.plugin_manager.load_library(path)
            except Exception as error:
                log.error("the library '%s' of plugin_libs could not be loaded: %s", path, error)

    def usable_gpus(self, gpus: Sequence[int]) -> Sequence[int]:
        """All, if there is a driver: the library for the CPU and that for GPUs are the same."""
        return gpus if has_driver() else ()

    def describe(self, asked: Incomplete, folder: ModelFolder, filename: str) -> Mapping[str, Any]:
        """What the pipeline decides of the configuration (BD3 to BD7)."""
        shape = shape_of(serialized_pipeline(folder.version, filename))
        return completed(json.loads(asked.json), shape, writes_batch_size(folder.model))

    def runs_code(self, asked: Incomplete) -> bool:
        """The source of a pipeline is code. Whether there is one is only known from the files."""
        return True

    def faults(self, asked: Incomplete, config: ModelConfig | None, folder: ModelFolder, filename: str) -> list[Fault]:
        """None: what is wrong with a pipeline shows when its code has run."""
        return []

    def open(self, config: ModelConfig, folder: ModelFolder) -> DaliModel:
        """Raises Unknown in Triton's words if there is no pipeline, or the configuration does not fit it; Invalid."""
        serialized = serialized_pipeline(folder.version, config.model_filename)
        shape = shape_of(serialized)
        check_inputs(json.loads(config.json), shape)
        joined = names_of(config.parameters, "split_along_outer_axis")
        batches = config.max_batch_size > 0
        plan = Plan(config.inputs, config.outputs, joined, config.decoupled and not batches and shape.has_video)
        return DaliModel(config, serialized, plan, config.max_batch_size if batches else shape.max_batch_size)

    def close(self) -> None:
        """The pipelines are the instances'. Their memory ends with their processes."""


def samples_of(tensor: Tensor) -> Sequence[Array]:
    """The samples of an input: its rows. Of texts, DALI gets the bytes as they travel, with their lengths (BD13)."""
    if tensor.datatype is not BYTES:
        return list(array_of(tensor))
    rows = array_of(tensor)
    return [
        np.frombuffer(b"".join(len(each).to_bytes(4, "little") + each for each in row.reshape(-1).tolist()), np.uint8)
        for row in rows.reshape(len(rows), -1)
    ]
