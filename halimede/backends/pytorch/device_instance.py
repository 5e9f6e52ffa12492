"""An instance of a model of torch on a GPU: its batches run on its own stream (BT21, BT24).

`execute` starts the copies and the kernels of a batch and returns; the answers come from the thread of the device. On
the thread of the instance.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any

import torch

from halimede.backends.api import Batch, Responses
from halimede.backends.pytorch.device import TorchDevice
from halimede.backends.pytorch.instance import datatypes_of
from halimede.backends.pytorch.parameters import Options
from halimede.backends.pytorch.running import Loaded, Runner
from halimede.backends.pytorch.values import tensor_of, texts_of
from halimede.config.model_config import ModelConfig
from halimede.devices import DEVICE_FAILED
from halimede.errors import Error, Internal
from halimede.tensors import BYTES, DataType, MemoryKind


class DeviceInstance:
    """`device` belongs to this instance alone."""

    def __init__(
        self, config: ModelConfig, runner: Runner, loaded: Loaded, options: Options, device: TorchDevice
    ) -> None:
        self._runner = runner
        self._device = device
        self._options = options
        self._batches = loaded.batches
        types = datatypes_of(config)
        self._inputs = [(name, types[name]) for name in runner.binding.inputs]
        ragged = {spec.name for spec in config.inputs if spec.allow_ragged_batch}
        batch_inputs = {name for each in config.batch_inputs for name in each.targets}
        self._joined_on_host = ragged | batch_inputs | runner.binding.strings
        outputs = runner.binding.outputs
        # The server splits these on the host only.
        self._answers_on_host = bool(config.batch_outputs) or any(each.datatype is BYTES for each in outputs)

    @property
    def healthy(self) -> bool:
        return not self._device.broken

    def execute(self, batch: Batch, responses: Responses) -> None:
        """Raises Error with the words of the kind of model, Internal if the GPU has no memory left or has failed."""
        if self._device.broken:
            raise Internal(DEVICE_FAILED)
        try:
            with self._device.on_stream(), _cudnn(self._options):
                self._start(batch, responses)
            # Not before: the next batch would only wait on the stream, and could not gather more requests meanwhile.
            self._device.ready(lambda failure: self._ended(responses))
        except Exception as error:
            if _is_out_of_memory(error):
                torch.cuda.empty_cache()  # what other streams keep may be enough for the next batch
            elif (failure := self._device.failure()) is not None:
                raise failure from error
            raise

    def _start(self, batch: Batch, responses: Responses) -> None:
        if not self._batches and len(batch.requests) > 1:
            self._start_each(batch, responses)
            return
        arrays = batch.arrays() if self._joined_on_host else {}
        given = [self._argument(batch, name, datatype, arrays) for name, datatype in self._inputs]
        self._answer(responses, self._runner.run(given))

    def _start_each(self, batch: Batch, responses: Responses) -> None:
        for i in range(len(batch.requests)):
            arrays = batch.arrays_of(i)
            try:
                results = self._runner.run([self._moved(arrays[name], datatype) for name, datatype in self._inputs])
                responses.scatter_to(i, self._runner.arrays(results))
            except Error as error:
                responses.fail(i, error)

    def _answer(self, responses: Responses, results: Sequence[Any]) -> None:
        runner = self._runner
        if self._answers_on_host:
            responses.scatter(runner.arrays(results))
            return
        own = runner.effects.returns_own or runner.effects.keeps_state
        outputs: dict[str, Any] = {}
        for output in runner.binding.outputs:
            value = runner.value(output, results).detach()
            if not value.is_cuda or own:
                value = value.to(self._device.device, copy=own)
            outputs[output.name] = value.contiguous()
        responses.scatter(outputs, self._device)

    def _argument(self, batch: Batch, name: str, datatype: DataType, arrays: dict[str, Any]) -> Any:
        """An input of the batch on the device. Parts that are on a device already are gathered there; others in pinned
        memory, for one copy that does not wait."""
        if name in self._joined_on_host:
            return texts_of(arrays[name]) if datatype is BYTES else self._moved(arrays[name], datatype)
        device, shape = self._device, batch.shape(name)
        into = device.empty(shape, datatype)
        if any(part.memory.kind is MemoryKind.DEVICE for part in batch.parts(name)):
            batch.gather(name, into, device)
        else:
            host = device.pinned(prod(shape) * datatype.size).view(datatype.numpy).reshape(shape)
            batch.gather(name, host)
            device.copy(into, host)
        return into

    def _moved(self, array: Any, datatype: DataType) -> Any:
        return tensor_of(array, datatype).to(self._device.device)

    def _ended(self, responses: Responses) -> None:
        try:
            if self._options.cleans_cache and not self._device.broken:
                torch.cuda.empty_cache()
        finally:
            responses.finished()

    def close(self) -> None:
        self._device.close()
        self._runner.close()


def _is_out_of_memory(error: Exception | BaseException | None) -> bool:
    return error is not None and (isinstance(error, torch.OutOfMemoryError) or _is_out_of_memory(error.__cause__))


def _cudnn(options: Options) -> AbstractContextManager[object]:
    """Turns cuDNN off, in the whole process, while a model that wants that starts its kernels."""
    if options.cudnn:
        return nullcontext()
    return torch.backends.cudnn.flags(enabled=False)  # type: ignore[no-any-return]
