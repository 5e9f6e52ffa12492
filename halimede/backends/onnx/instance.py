"""An instance of an ONNX model: the path of a batch through its session.

Every batch passes here, so it is one of the modules that are compiled. Knows of the runtime only the `run` that it was
given. On an instance's thread, or on the event loop.
"""

from collections.abc import Callable, Sequence
from math import prod
from time import sleep
from typing import Any, ClassVar, Final, NoReturn

import numpy as np
import numpy.typing as npt

from halimede.backends.api import Arrays, Batch, BatchedRequest, Responses
from halimede.backends.onnx.errors import translated
from halimede.backends.texts import wrong_rows
from halimede.config.model_config import ModelConfig
from halimede.errors import Invalid
from halimede.tensors import BYTES, STRINGS_PER_TURN

Array = npt.NDArray[Any]
Run = Callable[[list[str], Arrays, Any], Sequence[Array]]


MAX_TEXTS: Final = 1_000_000
"""Strings in the inputs of a batch of an ONNX model, of which the runtime takes a million in 0.1 s without a break for
others. Beyond: the requests run one by one; a request with more: 400, INVALID_ARGUMENT."""


def _closed(names: Sequence[str], arrays: Any, options: Any = None) -> NoReturn:
    raise RuntimeError("this instance is closed")


class OnnxInstance:
    """One instance: the session of its device with everything prepared that does not depend on the batch.

    `run` takes the names of the wanted outputs, the inputs by name and the options of the run."""

    healthy: ClassVar[bool] = True

    def __init__(self, config: ModelConfig, run: Run, options: Any) -> None:
        inputs, outputs = config.model_inputs, config.model_outputs
        self._model = config.name
        self._names = [spec.name for spec in outputs]
        cut = {name for each in config.batch_outputs for name in each.targets}
        self._by_rows = frozenset(name for name in self._names if name not in cut and config.max_batch_size)
        self._texts = [spec.name for spec in inputs if spec.datatype is BYTES]
        self._options = options
        self._run: Run = run

    def execute(self, batch: Batch, responses: Responses) -> None:
        """Runs the batch at once. Raises Internal with the runtime's words, or where the model's outputs do not fit."""
        requests = batch.requests
        if self._texts and sum(map(self._count_texts, requests)) > MAX_TEXTS:
            self._execute_each(batch, responses)
            return
        arrays = batch.arrays()
        if self._texts and self._decode_texts(arrays):
            self._execute_each(batch, responses)
            return
        responses.scatter(self._infer(self._wanted(requests), sum([r.batch_size for r in requests]), arrays))

    def close(self) -> None:
        """Lets go of the session, which is the model's: a late reference to the instance holds no memory of it."""
        self._run = _closed

    def _wanted(self, requests: Sequence[BatchedRequest]) -> list[str]:
        """The outputs that some request asks for: the runtime need not hand out others."""
        if len(self._names) == 1:
            return self._names
        asked = set().union(*[one.outputs for one in requests])
        return [name for name in self._names if name in asked]

    def _infer(self, names: list[str], rows: int, arrays: Arrays) -> Arrays:
        try:
            values = self._run(names, arrays, self._options)
        except Exception as error:
            raise translated(error) from error
        outputs = {}
        for name, value in zip(names, values, strict=False):
            outputs[name] = value
            if name in self._by_rows:
                shape = value.shape
                if not shape or shape[0] != rows:
                    raise wrong_rows(self._model, name, shape, rows)
        return outputs

    def _count_texts(self, one: BatchedRequest) -> int:
        inputs = one.request.inputs
        return sum([prod(inputs[name].shape) for name in self._texts if name in inputs])

    def _decode_texts(self, arrays: Arrays) -> str:
        """Puts arrays of `str`, the only text that the runtime takes, in the place of BYTES inputs. Returns the name of
        the first input with an element that is not UTF-8, or nothing."""
        for name in self._texts:
            if name in arrays:
                texts = decoded(arrays[name])
                if texts is None:
                    return name
                arrays[name] = texts
        return ""

    def _execute_each(self, batch: Batch, responses: Responses) -> None:
        """Fails the requests that carry a broken element, or too many, and runs the others one by one: they did nothing
        wrong."""
        for i, one in enumerate(batch.requests):
            if (count := self._count_texts(one)) > MAX_TEXTS:
                text = f"inputs of model '{self._model}' have {count} strings; the largest number is {MAX_TEXTS}"
                responses.fail(i, Invalid(text))
                continue
            arrays = batch.arrays_of(i)
            if broken := self._decode_texts(arrays):
                text = f"input '{broken}' of model '{self._model}' has an element that is not valid UTF-8"
                responses.fail(i, Invalid(text))
            else:
                responses.scatter_to(i, self._infer(list(one.outputs), one.batch_size, arrays))


def decoded(array: Array) -> Array | None:
    """An object array of `bytes` as one of `str`; None if an element is not UTF-8."""
    flat = array.reshape(-1)
    texts = np.empty(len(flat), dtype=object)
    try:
        for at in range(0, len(flat), STRINGS_PER_TURN):
            if at:
                sleep(0)
            elements: list[bytes] = flat[at : at + STRINGS_PER_TURN].tolist()
            texts[at : at + STRINGS_PER_TURN] = [element.decode() for element in elements]
    except UnicodeDecodeError:
        return None
    return texts.reshape(array.shape)
