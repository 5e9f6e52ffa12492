"""The backend `function`. `open` and `create_instance` run on load threads, a function on the thread of its instance.

A function gets the inputs of a batch as keyword arguments, as arrays that are its own: it may change and keep them. It
may instead get a list of requests. What it gives is what `results` reads. What a generator yields is one response to
each request of its batch.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from halimede.backends.api import (
    BackendModel,
    BaseBackend,
    BaseModel,
    Batch,
    Instance,
    InstancePlace,
    ModelFolder,
    Responses,
)
from halimede.backends.function import TRAITS
from halimede.backends.function.functions import Function, Functions
from halimede.backends.function.request import Request
from halimede.backends.function.results import Part, Results
from halimede.config.model_config import ModelConfig
from halimede.errors import Cause, Error, Internal, Invalid
from halimede.platform.wakeable_thread import WakeableThread
from halimede.tensors import BYTES, SMALL_BYTES

log = logging.getLogger(__name__)


class BoundFunction:
    """One function of a model: the way from a batch to its call, and from its result to the answers."""

    def __init__(self, function: Function, takes_requests: bool, config: ModelConfig) -> None:
        self.decoupled = config.decoupled
        self._function = function
        self._takes_requests = takes_requests
        self._model = config.name
        self._results = Results(config)

    def call(self, batch: Batch) -> Any:
        """Calls the function with the inputs of the batch."""
        if self._takes_requests:
            return self._function([Request(one, _own(batch.arrays_of(i))) for i, one in enumerate(batch.requests)])
        # No name here refers to the arrays, so that one that the function returns need not be copied.
        return self._function(**_own(batch.arrays()))

    def parts(self, batch: Batch, result: Any) -> list[Part]:
        """The part of each request in a result that a generator yielded."""
        if self._takes_requests:
            return self._results.parts_of_each(batch.requests, result)
        return self._results.parts(batch.requests, self._results.named(result))

    def error_of(self, error: BaseException) -> Error:
        """The error for the clients of a function that raised, or whose result is wrong. An Error is passed on as it
        is. The log gets the text of an Internal one, and the traceback of any other exception."""
        about = {"model": self._model}
        if isinstance(error, Error):
            if isinstance(error, Internal):
                log.error("model '%s': %s", self._model, error, extra=about)
            return error
        raised = (type(error), error, _own_frames(error.__traceback__))
        log.error("model '%s': its function failed", self._model, exc_info=raised, extra=about)
        return Internal(
            f"Failed to process the request(s) for model '{self._model}', message: {type(error).__name__}: {error}"
        )

    def answer(self, batch: Batch, responses: Responses, result: Callable[[], Any]) -> None:
        """Answers the requests of a model that is not decoupled. `result` returns the function's result once, so that
        nothing here refers to it."""
        if not self._takes_requests:
            responses.scatter(self._results.arrays(batch.requests, self._results.named(result())))
            return
        for i, part in enumerate(self._results.parts_of_each(batch.requests, result())):
            if part is None:
                responses.fail(i, Internal(f"the function gave no result for request {i} of its list"))
            elif isinstance(part, Exception):
                responses.fail(i, self.error_of(part))
            else:
                responses.send(i, part)


def _own(arrays: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """The arrays, with copies of those that view the memory of a request: other models may read it too."""
    for name, array in arrays.items():
        if not array.flags.owndata and array.dtype != BYTES.numpy and array.nbytes > SMALL_BYTES:
            arrays[name] = array.copy()
    return arrays


def _own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of this package before the function's first one."""
    left = traceback
    while left is not None and left.tb_frame.f_globals.get("__name__", "").startswith(__package__):
        left = left.tb_next
    return left or traceback


class FunctionInstance:
    """A function on a thread of its own. The server calls `execute` there."""

    healthy = True

    def __init__(self, name: str, function: BoundFunction) -> None:
        """Raises OSError or RuntimeError if the system has no thread or descriptor left."""
        self.thread = WakeableThread(name)
        self._function = function

    def execute(self, batch: Batch, responses: Responses) -> None:
        function = self._function
        try:
            if function.decoupled:
                self._stream(batch, responses)
            else:
                function.answer(batch, responses, lambda: function.call(batch))
        except Exception as error:
            responses.fail_all(function.error_of(error))

    def _stream(self, batch: Batch, responses: Responses) -> None:
        stream = iterator_of(self._function.call(batch))
        try:
            for result in stream:
                for i, part in enumerate(self._function.parts(batch, result)):
                    self._send(responses, i, part)
                if all(one.cancelled for one in batch.requests):
                    break
        finally:
            # At once, and not when the iterator is collected: it may hold a lock, or a place in a queue.
            close = getattr(stream, "close", None)
            if close is not None:
                close()
        for i in range(len(batch.requests)):
            responses.send(i, None)

    def _send(self, responses: Responses, i: int, part: Part) -> None:
        """Sends a response that is not the last one. Blocks while the client does not read those before it."""
        if isinstance(part, Exception):
            responses.fail(i, self._function.error_of(part))
        elif part is not None:
            responses.send(i, part, final=False)

    def close(self) -> None:
        self.thread.stop()


def iterator_of(stream: Any) -> Iterator[Any]:
    """Raises Internal if a decoupled function returned anything else than an iterator or an iterable of responses."""
    if isinstance(stream, Mapping | np.ndarray | str | bytes) or not hasattr(stream, "__iter__"):
        raise Internal(f"a decoupled function must yield, or return an iterator; it returned a {type(stream).__name__}")
    return iter(stream)


class FunctionModel(BaseModel):
    """A model of plain functions or generator functions."""

    gathers = True

    def __init__(self, functions: Functions, config: ModelConfig) -> None:
        self._functions = functions
        self._config = config

    def create_instance(self, place: InstancePlace) -> Instance:
        # A client's configuration may ask for more instances than there are functions.
        functions = self._functions.functions
        function = BoundFunction(functions[place.index % len(functions)], self._functions.takes_requests, self._config)
        try:
            return self.new_instance(place.name, function)
        except (OSError, RuntimeError) as error:
            raise Internal(f"unable to start a thread for '{place.name}': {error}") from error

    def new_instance(self, name: str, function: BoundFunction) -> Instance:
        """Raises OSError or RuntimeError if the system has no thread or descriptor left."""
        return FunctionInstance(name, function)


class FunctionBackend(BaseBackend):
    """Opens bound models. Reads no file."""

    traits = TRAITS

    def open(self, config: ModelConfig, folder: ModelFolder) -> BackendModel:
        if not isinstance(folder.bound, Functions):
            raise Invalid(
                f"model '{config.name}': the backend 'function' has no models in files; a program binds them "
                "(halimede.Server.bind)"
            ).blaming(Cause.CONFIGURATION)
        if not folder.bound.is_async:
            return FunctionModel(folder.bound, config)
        from halimede.backends.function.asynchronous import AsyncModel  # few programs need it

        return AsyncModel(folder.bound, config, self.context.loop)
