"""The backend `python`: each instance of a `TritonPythonModel` in a worker process of its own (contract P).

It turns configurations into orders for workers, batches into frames and what comes back into answers; what a worker
does with them is `workers.child`'s business. `describe`, `open`, `create_instance` and `close` run on load threads,
everything else on the event loop.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from halimede.backends.api import Batch, BatchedRequest, InstancePlace, ModelFolder, Placement, Responses
from halimede.config.model_config import ModelConfig
from halimede.errors import Error, Internal, Invalid, Unsupported
from halimede.workers.child import frames
from halimede.workers.messages import Answer, read_answers, requests_frame
from halimede.workers.process import Process
from halimede.workers.worker import Worker, WorkerLost, WorkerRefused, WorkerSlow

log = logging.getLogger(__name__)

_DEFAULT_FILENAME = "model.py"


@dataclass(frozen=True, slots=True)
class PythonSettings:
    """The backend's settings. `finish_limit` is how long a model may take to finalize, `describe_limit` to complete its
    configuration, in seconds."""

    finish_limit: float = 30.0
    describe_limit: float = 300.0


def parse_settings(settings: Mapping[str, str]) -> PythonSettings:
    """Checks `--backend-config=python,...` (contract P70). Raises Invalid.

    The settings of shared memory are checked and change nothing: there is no fixed region.
    """
    values = {}
    for name, (least, complaint) in _NUMBERS.items():
        if name in settings:
            values[name] = _number(name, settings[name])
            if values[name] < least:
                raise Invalid(complaint)
    if settings.get("shm-region-prefix-name") == "":
        raise Invalid("shm-region-prefix-name can't be empty")
    return PythonSettings(
        finish_limit=float(values.get("stub-timeout-seconds", 30)),
        describe_limit=float(values.get("auto-complete-timeout-seconds", 300)),
    )


_NUMBERS: Mapping[str, tuple[int, str]] = {
    "shm-default-byte-size": (4 << 20, "shm-default-byte-size can't be smaller than 4 MiBs"),
    "shm-growth-byte-size": (1, "shm-growth-byte-size can't be smaller than or equal to zero."),
    "stub-timeout-seconds": (1, "stub-timeout-seconds can't be smaller than or equal to zero."),
    "thread-pool-size": (1, "thread-pool-size can't be less than 1."),
    "auto-complete-timeout-seconds": (1, "auto-complete-timeout-seconds can't be smaller than or equal to zero."),
}


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Invalid(f"{name} must be an integer, not '{text}'") from None


class _Flight:
    """A batch that the worker has: its requests, where the answers go, and which requests have not had their last.

    `running` until the worker can take the next batch. Senders may answer after that. `taken` is how much the readers
    of requests with many responses took, `due` from where on the worker shall be told. `places` are where the requests
    stood in the batch that the responses belong to: some of it may have been left out.
    """

    __slots__ = ("due", "missing", "places", "requests", "responses", "running", "taken")

    def __init__(self, requests: Sequence[BatchedRequest], responses: Responses, places: Sequence[int]) -> None:
        self.requests = requests
        self.responses = responses
        self.places = places
        self.missing = set(range(len(requests)))
        self.running = True
        self.taken: list[int] | None = None
        self.due: list[int] = []

    def answer(self, answer: Answer) -> None:
        index, final, outputs, error, parameters = answer
        if final:
            self.missing.discard(index)
        place = self.places[index]
        if error is None:
            self.responses.send(place, outputs, final, parameters)
        else:
            self.responses.fail(place, error, final)

    def fail(self, error: Error) -> None:
        for i in sorted(self.missing):
            self.responses.fail(self.places[i], error)
        self.missing.clear()

    def finish(self) -> None:
        """The worker says for itself whom nobody will answer, so that the others get their answers later."""
        self.running = False
        self.responses.finished([self.places[i] for i in self.missing])


class PythonInstance:
    """One worker that serves a model. `healthy` says whether it can run a batch: false from the death of the process.

    `execute` runs on the event loop and passes the batch on; the answers come later, by the loop.
    """

    def __init__(self, worker: Worker, name: str, finish_limit: float, on_close: Callable[[Worker], None]) -> None:
        self._worker = worker
        self._name = name
        self._finish_limit = finish_limit
        self._on_close = on_close
        self._numbers = count(1)
        self._flights: dict[int, _Flight] = {}

    @property
    def healthy(self) -> bool:
        return self._worker.alive

    @property
    def pid(self) -> int:
        return self._worker.pid

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Lets the loop take over the worker, which has initialized its model."""
        self._worker.attach(loop, self._arrived, self._lost)

    def execute(self, batch: Batch, responses: Responses) -> None:
        """Raises Internal where the worker is gone (contract P10). A request that cannot be passed on fails alone."""
        if not self._worker.alive:
            raise _unhealthy(self._name)
        requests = batch.requests
        places: Sequence[int] = range(len(requests))
        number = next(self._numbers)
        try:
            buffers = requests_frame(number, requests)
        except Error:
            places = _passable(requests, responses)
            if not places:
                responses.finished()
                return
            requests = [requests[i] for i in places]
            buffers = requests_frame(number, requests)
        self._flights[number] = _Flight(requests, responses, places)
        self._worker.send(buffers)

    def close(self) -> None:
        """Has the model finalized (contract P8) and the process ended, within a limit."""
        if self._worker.alive:
            self._worker.close(self._finish_limit)
        self._on_close(self._worker)

    def _arrived(self, message: frames.Frame) -> None:
        flight = self._flights.get(message.batch)
        try:
            if message.kind == frames.QUESTION:
                self._reply(flight, message)
            elif flight is not None:
                self._answer(flight, message)
        except frames.MALFORMED as error:
            self._worker.distrust(error)

    def _answer(self, flight: _Flight, message: frames.Frame) -> None:
        answers: Sequence[Answer] = ()
        if message.kind == frames.ANSWERS:
            answers = read_answers(message, len(flight.requests))
        if flight.running:
            flight.responses.compute_times(message.first_moment, message.second_moment)
        if message.kind == frames.FAILED:
            text = f"Failed to process the request(s) for model '{self._name}', message: {message.rest().decode()}"
            log.error("%s", text)
            flight.fail(Internal(text))
        for answer in answers:
            flight.answer(answer)
            if not answer.final:
                self._give_credit(flight, answer.i, message)
        if message.flags & frames.FINISHED:
            flight.finish()
        if not flight.running and not flight.missing:
            self._flights.pop(message.batch, None)

    def _give_credit(self, flight: _Flight, index: int, message: frames.Frame) -> None:
        """Lets the sender of this answer go on, once its reader has taken enough to be worth a frame (contract G32).
        What is told is the sum and not the difference, so that the order of these frames does not matter."""
        if flight.taken is None:
            flight.taken = [0] * len(flight.requests)
            flight.due = [frames.CREDIT_STEP] * len(flight.requests)
        cost = frames.cost(len(message.data), flight.requests[index].request.most_ahead)
        flight.taken[index] = taken = flight.taken[index] + cost
        if taken >= flight.due[index]:
            flight.due[index] = taken + frames.CREDIT_STEP
            credit = frames.frame(frames.CREDIT, [frames.NUMBER.pack(taken)], None, message.batch, index)
            flight.responses.on_writable(flight.places[index], partial(self._worker.send, credit))

    def _reply(self, flight: _Flight | None, message: frames.Frame) -> None:
        """Answers the one question that there is: whether the client of a request has gone (contract P82). Of a request
        that is over nothing is known any more."""
        (number,) = message.unpack(frames.NUMBER)
        index = message.count
        cancelled = flight is not None and index < len(flight.requests) and flight.requests[index].cancelled
        self._worker.send(frames.frame(frames.REPLY, [], None, number, int(cancelled)))

    def _lost(self) -> None:
        log.error("worker process %d of '%s' ended", self._worker.pid, self._name)
        flights, self._flights = self._flights, {}
        for flight in flights.values():
            flight.fail(_unhealthy(self._name))
            if flight.running:
                flight.finish()


def _passable(requests: Sequence[BatchedRequest], responses: Responses) -> list[int]:
    """Which requests a frame can carry. The others fail with what is wrong with them."""
    passable = []
    for i, request in enumerate(requests):
        try:
            requests_frame(0, [request])
        except Error as error:
            responses.fail(i, error)
        else:
            passable.append(i)
    return passable


def _unhealthy(name: str) -> Internal:
    return Internal(f"Stub process '{name}' is not healthy.")


class PythonModel:
    """A version of a Python model."""

    placement = Placement.LOOP
    inline_safe = False

    def __init__(self, backend: "PythonBackend", config: ModelConfig, folder: ModelFolder) -> None:
        self._backend = backend
        self._config = config
        self._folder = folder

    def create_instance(self, place: InstancePlace) -> PythonInstance:
        """Blocks until the model is initialized, without a limit. Raises Internal with the model's own words."""
        config = self._config
        args = {
            "model_config": config.json,
            "model_instance_kind": place.kind.value,
            "model_instance_name": place.name,
            "model_instance_device_id": str(place.device_id),
            "model_repository": str(self._folder.model),
            "model_version": str(self._folder.number),
            "model_name": config.name,
        }
        order = {**_where(self._folder, config.model_filename), "args": args, "decoupled": config.decoupled}
        return self._backend.start_instance(order, place.name)

    def close(self) -> None:
        """Nothing of its own: instances are closed one by one."""


def _where(folder: ModelFolder, filename: str) -> dict[str, Any]:
    """The part of an order that says which file to import."""
    return {
        "directory": str(folder.model),
        "version": folder.version.name,
        "filename": filename or _DEFAULT_FILENAME,
        "name": folder.model.name,
    }


class PythonBackend:
    """Starts workers. `loop` is the event loop that batches come from; raises Invalid for a bad setting."""

    name = "python"
    default_instance_count = 1
    describes_always = True

    def __init__(self, loop: asyncio.AbstractEventLoop, settings: Mapping[str, str]) -> None:
        self._loop = loop
        self._settings = parse_settings(settings)
        self._workers: set[Worker] = set()

    def usable_gpus(self, gpus: Sequence[int]) -> Sequence[int]:
        return gpus

    def describe(self, config_json: str, folder: ModelFolder, filename: str) -> Mapping[str, Any] | None:
        """The configuration as the model's `auto_complete_config` leaves it, None without such a function (contract
        R77). Runs in a process that is thrown away. Raises Internal with the model's own words."""
        config = json.loads(config_json)
        name = config.get("name") or folder.model.name
        order = {**_where(folder, filename), "name": name, "complete": config}
        worker = self._spawn()
        try:
            completed: Mapping[str, Any] | None = self._ask(worker, order, name, self._settings.describe_limit)
            return completed
        finally:
            worker.kill()
            self._workers.discard(worker)

    def open(self, config: ModelConfig, folder: ModelFolder) -> PythonModel:
        """Raises Unsupported for what the configuration asks and this backend does not do."""
        for parameter in _NOT_SERVED:
            if parameter in config.parameters:
                raise Unsupported(
                    f"model '{config.name}': the parameter '{parameter}' of Python models is not supported"
                )
        force_cpu = config.parameters.get("FORCE_CPU_ONLY_INPUT_TENSORS", "yes")
        if force_cpu not in ("yes", "no"):
            raise Invalid(f"Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: {force_cpu}'")
        return PythonModel(self, config, folder)

    def start_instance(self, order: Mapping[str, Any], name: str) -> PythonInstance:
        """A worker that carried out `order`, listened to by the loop. Raises Internal."""
        worker = self._spawn()
        try:
            self._ask(worker, order, name, None)
        except Error:
            self._workers.discard(worker)
            raise
        instance = PythonInstance(worker, name, self._settings.finish_limit, self._workers.discard)
        instance.listen(self._loop)
        return instance

    def close(self) -> None:
        """Ends what still runs, such as a worker whose model never finishes its initialize."""
        for worker in list(self._workers):
            worker.kill()
        self._workers.clear()

    def _spawn(self) -> Worker:
        try:
            worker = Worker(Process())
        except OSError as error:
            raise Internal(f"Failed to start a worker process: {error}") from error
        self._workers.add(worker)
        return worker

    def _ask(self, worker: Worker, order: Mapping[str, Any], name: str, limit: float | None) -> Any:
        try:
            return worker.ask(order, limit)
        except WorkerRefused as error:
            raise Internal(str(error)) from error
        except WorkerSlow as error:
            raise Internal(f"Timed out while completing the configuration of '{name}': {error}") from error
        except WorkerLost as error:
            raise _unhealthy(name) from error


_NOT_SERVED = ("EXECUTION_ENV_PATH", "EXECUTION")
