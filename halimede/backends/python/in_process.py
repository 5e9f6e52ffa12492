"""Python models in the server's own process, each instance on a thread of its own (parameter `EXECUTION`; its dangers
are in docs/decisions/in-process-python.md).

The model runs as in a worker, with the same texts: `workers.child.model.UserModel`. `open` and `create_instance` run on
load threads, the model's code on the thread of its instance, its calls to other models on the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from halimede.backends.api import Batch, InstancePlace, ModelFolder, Placement, Responses
from halimede.backends.child.instance import ids_of
from halimede.backends.python.in_process_batch import InProcessBatch, encodable
from halimede.backends.python.orders import log_fields, start_order
from halimede.config.model_config import ModelConfig
from halimede.errors import Internal
from halimede.platform.wakeable_thread import WakeableThread
from halimede.tensors import Buffer
from halimede.workers.calls import CallRouter
from halimede.workers.child import frames
from halimede.workers.child.calls import ModelCaller
from halimede.workers.child.logger import Level, logger_for, write_log
from halimede.workers.child.model import ModelFailed, Report, UserModel, explain
from halimede.workers.child.progress import Progress
from halimede.workers.child.requests import InferenceRequest
from halimede.workers.child.tracebacks import Reporter
from halimede.workers.child.values import TritonModelException
from halimede.workers.host.readiness import Question
from halimede.workers.in_process.channel import LocalChannel
from halimede.workers.in_process.imports import ModelPackage
from halimede.workers.in_process.interface import Interface

log = logging.getLogger(__name__)

__tracebackhide__ = True
"""Frames of this module are left out of the exceptions of models."""


class _ServerEnd:
    """The server's end of the connection to one instance: answers to its calls go there."""

    def __init__(self, channel: LocalChannel) -> None:
        self._channel = channel

    def send(self, buffers: list[Buffer]) -> None:
        self._channel.deliver(buffers)


class PrivateModel(UserModel):
    """A model whose modules have private names. `interface` is what they import as `triton_python_backend_utils`. Used
    on the thread of its instance, except for `release`."""

    def __init__(self, order: Mapping[str, Any], channel: LocalChannel, caller: ModelCaller, report: Report) -> None:
        super().__init__(order["directory"], order["version"], order["filename"], order["code"], report)
        self.interface = Interface(self.folder, logger_for(channel), caller)
        self._package = ModelPackage(self._own_folders(), self.interface.modules)

    def _own_folders(self) -> list[Path]:
        """The folders of its modules (P13): the model's, or those of the Python-based backend."""
        return [Path(self.path).parent] if self._code else [Path(self.folder), Path(self._directory)]

    def _import_of_version(self, name: str) -> Any:
        return self._package.import_file(name)

    _import_of_backend = _import_of_version

    def release(self) -> None:
        """Releases everything of the model. On a load thread, when none of its code runs."""
        self._model = None
        self._background.close()
        self._package.close()


class _Readiness:
    """A thread that asks the model whether it is ready: the instance's own thread may be in `execute` for long."""

    def __init__(self, model: PrivateModel, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._model = model
        self._loop = loop
        self._thread = WakeableThread(f"{name} readiness")
        self.question = Question(loop, lambda: self._thread.submit(self._ask))
        """Used on the event loop."""

    def _ask(self) -> None:
        self._tell(partial(self.question.answered, self._model.is_ready()))

    def close(self) -> None:
        self._thread.stop()
        self._tell(self.question.close)

    def _tell(self, what: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop was closed: nothing waits for the answer
            self._loop.call_soon_threadsafe(what)


class InProcessInstance:
    """A model on its thread. `execute` is called there, `in_flight_batches` is read on the event loop."""

    healthy = True

    def __init__(
        self,
        order: Mapping[str, Any],
        loop: asyncio.AbstractEventLoop,
        router: CallRouter,
        limit: float,
    ) -> None:
        """`limit` is the number of seconds that the model may take to finalize. Raises OSError or RuntimeError if the
        system has no thread or descriptor left."""
        args = order["args"]
        self._name = args["model_instance_name"]
        self._decoupled: bool = order["decoupled"]
        self._limit = limit
        self._router = router
        self._numbers = count(1)
        self._in_flight: dict[int, InProcessBatch] = {}
        self.thread = WakeableThread(self._name)
        self._channel = LocalChannel(loop, self._arrived)
        self._channel.about = log_fields(order)
        self._end = _ServerEnd(self._channel)
        self._calls = router.open(self._end, self._name, args["model_name"])
        self._caller = ModelCaller(self._channel, args["model_name"], self._name)
        self._who = f"model '{order['name']}' instance {self._name}"
        self._reporter = Reporter(partial(write_log, self._channel, Level.ERROR, frames.ROWS), self._who)
        self._model = PrivateModel(order, self._channel, self._caller, self._reporter.report)
        self._loop = loop
        self._readiness: _Readiness | None = None
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @property
    def in_flight_batches(self) -> Collection[InProcessBatch]:
        """The batches without their last answer."""
        return self._in_flight.copy().values()

    def start(self, args: Mapping[str, str], given_up: Future[None]) -> None:
        """Initializes the model. Blocks until that is done or `given_up` is. Raises Internal with the model's text."""
        started = self.thread.call(partial(self._initialize, dict(args)))
        wait({started, given_up}, return_when=FIRST_COMPLETED)
        if not started.done():
            started.add_done_callback(lambda _: self._release())
            raise Internal(f"'{self._name}' is still in initialize while the server exits; its thread is abandoned")
        try:
            started.result()
            if self._model.tells_ready:
                self._readiness = _Readiness(self._model, self._loop, self._name)
        except Exception as failure:
            self._release()
            raise Internal(str(failure)) from failure
        self._calls.loading = False

    def _initialize(self, args: dict[str, str]) -> None:
        # Models call `asyncio.get_event_loop().run_until_complete`, which works on the main thread of a worker.
        self._own_loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._own_loop)
        say = partial(write_log, self._channel, Level.INFO, 0)
        with Progress(say, f"{self._who}: still initializing", self._model.path):
            self._model.start(args)

    @property
    def reports_readiness(self) -> bool:
        return self._readiness is not None

    def ask_ready(self, done: Callable[[bool], None]) -> None:
        """Asks the model (P9), also while it executes a batch."""
        if self._readiness is None:
            done(True)
        else:
            self._readiness.question.ask(done)

    def execute(self, batch: Batch, responses: Responses) -> None:
        number = next(self._numbers)
        over = partial(self._in_flight.pop, number, None)
        in_flight = InProcessBatch(batch.requests, responses, self._decoupled, over)
        requests = in_flight.opened(
            self._model.interface.request
        )  # kept here: their senders must not end before the batch does
        self._in_flight[number] = in_flight
        try:
            if requests:
                self._caller.serves(number)
                self._run(in_flight, requests)
        except (ModelFailed, TritonModelException) as failure:
            self._failed(in_flight, str(failure))
        except Exception as error:  # an answer that cannot be written: its elements have no text
            self._reporter.report("an answer", error)
            self._failed(in_flight, explain(error))
        finally:
            in_flight.ended()

    def _run(self, in_flight: InProcessBatch, requests: list[InferenceRequest]) -> None:
        if self._decoupled:
            self._model.execute_decoupled(requests, partial(self._failed, in_flight))
            in_flight.handed_over()
        else:
            responses = self._model.execute(list(requests))
            in_flight.returned(requests, responses)

    def _failed(self, in_flight: InProcessBatch, words: str) -> None:
        text = encodable(f"Failed to process the request(s) for model '{self._name}', message: {words}")
        log.error("%s", text, extra={**self._channel.about, "request_id": ids_of(in_flight.requests)})
        in_flight.failed(Internal(text))

    def _arrived(self, message: frames.Frame) -> None:
        """A frame of the model about calls or models. On the event loop."""
        try:
            self._calls.arrived(message, self._in_flight.copy())
        except frames.MALFORMED:
            log.exception("'%s' sent a malformed message, which is ignored", self._name)

    def close(self) -> None:
        """Finalizes and releases the model (P8). If `finalize` does not end in time, its thread is abandoned."""
        if self._closed:
            return
        self._closed = True
        self._caller.close()
        finished = self.thread.call(self._model.finish)
        try:
            finished.result(self._limit)
        except ModelFailed as failure:
            log.error("finalize of '%s' failed: %s", self._name, failure)
        except TimeoutError:
            log.warning("finalize of '%s' takes longer than %g s; its thread is abandoned", self._name, self._limit)
        self._release()

    def _release(self) -> None:
        if self._own_loop is not None:
            self.thread.submit(partial(_close_loop, self._own_loop))
        self.thread.stop()
        if self._readiness is not None:
            self._readiness.close()
        self._router.close(self._end)
        self._channel.close()
        self._model.release()


def _close_loop(loop: asyncio.AbstractEventLoop) -> None:
    with suppress(RuntimeError):  # the model still runs it on another thread
        loop.close()


class InProcessShared:
    """What all models in this process share. `finish_limit` is the number of seconds that one may take to finalize."""

    def __init__(self, loop: asyncio.AbstractEventLoop, router: CallRouter, finish_limit: float) -> None:
        self.loop = loop
        self.router = router
        self.finish_limit = finish_limit
        self.given_up: Future[None] = Future()

    def close(self) -> None:
        """Ends the wait for models that are still in `initialize`."""
        if not self.given_up.done():
            self.given_up.set_result(None)


class InProcessModel:
    """A version of a Python model whose instances run in this process."""

    placement = Placement.THREAD
    inline_safe = False
    gathers = True
    in_flight = 1

    def __init__(self, home: "InProcessShared", config: ModelConfig, folder: ModelFolder) -> None:
        self._home = home
        self._config = config
        self._folder = folder

    def create_instance(self, place: InstancePlace) -> InProcessInstance:
        """Blocks until the model is initialized, without a time limit. Raises Internal with the model's text."""
        order, home = start_order(self._config, self._folder, place), self._home
        try:
            instance = InProcessInstance(order, home.loop, home.router, home.finish_limit)
        except (OSError, RuntimeError) as error:
            raise Internal(f"unable to start a thread for '{place.name}': {error}") from error
        instance.start(order["args"], self._home.given_up)
        return instance

    def close(self) -> None:
        """Nothing to release: the server closes the instances."""
