"""The backend `python`: each instance of a `TritonPythonModel` in a worker process of its own (contract P).

It turns configurations into orders for workers, batches into frames and what comes back into answers; what a worker
does with them is `workers.child`'s business. `describe`, `open`, `create_instance` and `close` run on load threads,
everything else on the event loop.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from halimede.backends.api import (
    BackendContext,
    Batch,
    BatchedRequest,
    Fault,
    InstancePlace,
    ModelFolder,
    Placement,
    Responses,
)
from halimede.backends.python import TRAITS
from halimede.backends.python.in_flight import InFlightBatch
from halimede.backends.python.in_process import InProcess, InProcessModel
from halimede.backends.python.orders import ids_of, model_of, start_order, where
from halimede.backends.python.settings import (
    ENVIRONMENT,
    cpu_threads,
    execution_limit,
    parse_settings,
    runs_in_process,
    warn_of_own_stub,
)
from halimede.backends.python.source import faults_of
from halimede.config.model_config import Incomplete, ModelConfig
from halimede.errors import Error, Internal, Unsupported
from halimede.platform.hosts import available_cores
from halimede.tensors import Buffer
from halimede.workers.calls import CallRouter, Nobody, WorkerCalls
from halimede.workers.child import frames
from halimede.workers.child.berth import NOWHERE
from halimede.workers.environments import Environments
from halimede.workers.limit import ExecutionLimit
from halimede.workers.messages import Answer, read_answers, requests_frame
from halimede.workers.packing import LONG_NS, Packer
from halimede.workers.pool import Workers
from halimede.workers.process import OWN, Interpreter
from halimede.workers.supervisor import Supervisor
from halimede.workers.worker import Meanwhile, Worker, WorkerLost, WorkerRefused, WorkerSlow

log = logging.getLogger(__name__)


class PythonInstance:
    """A worker that serves a model, and after its death another one. `healthy` says whether it can run a batch: not
    from the death of a process until the next one is ready.

    `execute` runs on the event loop and passes the batch on; the answers come later, by the loop. It may take `limit`
    seconds, 0 for any time. `iterative`: its requests may run once more (contract S72).
    """

    iterative = False

    def __init__(
        self,
        worker: Worker,
        name: str,
        loop: asyncio.AbstractEventLoop,
        supervisor: Supervisor,
        router: CallRouter,
        limit: float,
        finish_limit: float,
        packer: Packer,
    ) -> None:
        self._worker = worker
        self._packer = packer
        self._name = name
        self._loop = loop
        self._finish_limit = finish_limit
        self._supervisor = supervisor
        self._router = router
        self._calls = router.of(worker)
        self._limit = ExecutionLimit(loop, limit, self._hangs, self._waits_for_readers) if limit else None
        self._failure: Error | None = None
        self._changed: Callable[[bool, bool], None] = lambda healthy, expected: None
        self._proven = False
        self._quick = True
        """Whether its last batch was so quick that sharing a core with the loop may pay."""
        self._numbers = count(1)
        self._flights: dict[int, InFlightBatch] = {}
        self._warm: Callable[[Callable[[], None]], object] | None = None
        self._warming = False
        supervisor.attach(self._taken_over, self._tell)

    @property
    def healthy(self) -> bool:
        return self._worker.alive and not self._warming

    @property
    def flights(self) -> Collection[InFlightBatch]:
        """The batches that the worker has."""
        return self._flights.values()

    @property
    def pid(self) -> int:
        return self._worker.pid

    @property
    def restarts(self) -> int:
        return self._supervisor.count

    @property
    def reports_readiness(self) -> bool:
        return self._worker.readiness is not None

    def ask_ready(self, done: Callable[[bool], None]) -> None:
        """Asks the model (contract P9), beside what it executes."""
        readiness = self._worker.readiness
        if not self.healthy:
            done(False)
        elif readiness is None:
            done(True)
        else:
            readiness.ask(done)

    def listen(self) -> None:
        """Lets the loop take over the worker, which has initialized its model."""
        self._calls.loading = False
        self._worker.attach(self._loop, self._arrived, self._lost)

    def watch(self, changed: Callable[[bool, bool], None]) -> None:
        self._changed = changed
        if not self.healthy:
            self._tell()

    def execute(self, batch: Batch, responses: Responses) -> None:
        """Raises Internal where the worker is gone (contract P10). A request that cannot be passed on fails alone."""
        if not self._worker.alive:
            raise _unhealthy(self._name)
        requests = batch.requests
        places: Sequence[int] = range(len(requests))
        number = next(self._numbers)
        try:
            buffers = requests_frame(number, requests, self._packer.core if self._quick else NOWHERE)
        except Error:
            places = _passable(requests, responses)
            if not places:
                responses.finished()
                return
            requests = [requests[i] for i in places]
            buffers = requests_frame(number, requests)
        self._flights[number] = InFlightBatch(requests, responses, places, self.iterative)
        if self._limit is not None:
            self._limit.begin()
        self._worker.send(buffers)

    def close(self) -> None:
        """Has the model finalized (contract P8) and the process ended, within a limit."""
        self._supervisor.close()
        if self._worker.alive:
            self._worker.close(self._finish_limit)
        self._router.close(self._worker)
        self._supervisor.forget(self._worker)

    def _arrived(self, message: frames.Frame) -> None:
        flight = self._flights.get(message.batch)
        try:
            if message.kind in _ANSWERS:
                if flight is not None:
                    self._answer(flight, message)
            elif message.kind == frames.QUESTION and message.flags == frames.IS_CANCELLED:
                self._reply(flight, message)
            else:
                self._calls.arrived(message, self._flights)
        except frames.MALFORMED as error:
            self._worker.distrust(error)

    def _answer(self, flight: InFlightBatch, message: frames.Frame) -> None:
        answers: Sequence[Answer] = ()
        if message.kind == frames.ANSWERS:
            answers = read_answers(message, len(flight.requests))
        if flight.running:
            flight.responses.compute_times(message.first_moment, message.second_moment)
            self._quick = message.second_moment - message.first_moment < LONG_NS
        if message.kind == frames.FAILED:
            text = f"Failed to process the request(s) for model '{self._name}', message: {message.rest().decode()}"
            log.error("%s", text, extra={**self._worker.about, "request_id": ids_of(flight.requests)})
            flight.fail(Internal(text))
        for answer in answers:
            flight.answer(answer)
            if not answer.final:
                self._give_credit(flight, answer.i, message)
        if message.flags & frames.FINISHED:
            if self._limit is not None:
                self._limit.end()
            if not self._proven and not self._warming:  # what serves no client proves nothing
                self._proven = True
                self._supervisor.served()
            flight.finish()
            self._packer.served(len(flight.requests))
        if not flight.running and not flight.missing:
            self._flights.pop(message.batch, None)

    def _give_credit(self, flight: InFlightBatch, index: int, message: frames.Frame) -> None:
        """Lets the sender of this answer go on, once its reader has taken enough to be worth a frame, or has taken it
        where answers are counted (contract G32).
        What is told is the sum and not the difference, so that the order of these frames does not matter."""
        if flight.taken is None:
            flight.taken = [0] * len(flight.requests)
            flight.due = [frames.CREDIT_STEP] * len(flight.requests)
        most_ahead = flight.requests[index].request.most_ahead
        cost = frames.cost(len(message.data), most_ahead)
        flight.taken[index] = taken = flight.taken[index] + cost
        if 0 < most_ahead < frames.WINDOW // frames.OVERHEAD or taken >= flight.due[index]:
            flight.due[index] = taken + frames.CREDIT_STEP
            credit = frames.frame(frames.CREDIT, [frames.NUMBER.pack(taken)], None, message.batch, index)
            flight.unread += 1
            flight.responses.on_writable(flight.places[index], partial(self._taken, flight, self._worker, credit))
            flight.waits = flight.unread > 0

    def _taken(self, flight: InFlightBatch, worker: Worker, credit: list[Buffer]) -> None:
        flight.unread -= 1
        if self._limit is not None and flight.waits and flight.running and worker.alive:
            self._limit.begin()  # what the model waited for its reader was not its own time
        worker.send(credit)

    def _reply(self, flight: InFlightBatch | None, message: frames.Frame) -> None:
        """Answers the question whether the client of a request has gone (contract P82). Of a request
        that is over nothing is known any more."""
        (number,) = message.unpack(frames.NUMBER)
        index = message.count
        cancelled = flight is not None and index < len(flight.requests) and flight.requests[index].cancelled
        self._worker.send(frames.frame(frames.REPLY, [], None, number, int(cancelled)))

    # ---- supervision

    def _lost(self) -> None:
        """Whoever gives out batches is told first, so that the end of the batch here brings no other one."""
        error, self._failure = self._failure or _unhealthy(self._name), None
        flights, self._flights = self._flights, {}
        if self._limit is not None:
            self._limit.end()
        self._calls.close()
        self._router.close(self._worker)
        self._supervisor.lost(self._worker)
        self._tell()
        for flight in flights.values():
            flight.fail(error)
            if flight.running:
                flight.finish()

    def _tell(self) -> None:
        self._changed(self.healthy, self._supervisor.expected)

    def _taken_over(self, worker: Worker) -> None:
        self._worker = worker
        self._calls = self._router.of(worker)
        self._proven = False
        self._quick = True
        self.listen()
        if self._warm is None:
            self._serves()
        else:
            self._warming = True
            self._warm(partial(self._warmed, worker))

    def _serves(self) -> None:
        self._supervisor.serves()
        self._tell()

    def warm_again_by(self, warm: Callable[[Callable[[], None]], object]) -> None:
        self._warm = warm

    def _warmed(self, worker: Worker) -> None:
        if worker is self._worker and worker.alive:
            self._warming = False
            self._serves()

    def _hangs(self) -> None:
        text = f"Failed to process the request(s) for model '{self._name}', message: the time limit for execute is over"
        log.error("%s", text, extra=self._worker.about)
        self._failure = Internal(text)
        self._worker.end(f"of '{self._name}' is killed: it exceeded its time limit")

    def _waits_for_readers(self) -> bool:
        return any(flight.unread for flight in self._flights.values() if flight.running)


_ANSWERS = frozenset({frames.ANSWERS, frames.FAILED})


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
    gathers = False
    in_flight = 1

    def __init__(
        self,
        backend: "PythonBackend",
        config: ModelConfig,
        folder: ModelFolder,
        limit: float,
        interpreter: Interpreter,
    ) -> None:
        self._backend = backend
        self._config = config
        self._folder = folder
        self._limit = limit
        self._interpreter = interpreter

    def create_instance(self, place: InstancePlace) -> PythonInstance:
        """Blocks until the model is initialized, without a limit. Raises Internal with the model's own words."""
        order = start_order(self._config, self._folder, place)
        threads = cpu_threads(self._config, place, len(available_cores()))
        interpreter = replace(self._interpreter, host=place.host, threads=threads)
        return self._backend.start_instance(order, place.name, self._limit, interpreter)

    def close(self) -> None:
        """Nothing of its own: instances are closed one by one."""


class PythonBackend:
    """Starts workers. Raises Invalid for a bad setting."""

    traits = TRAITS

    def __init__(self, context: BackendContext) -> None:
        loop = self._loop = context.loop
        self._router = CallRouter(loop, context.calls or Nobody())
        self._settings = parse_settings(context.settings)
        self._workers = Workers(context.worker_poller)
        self._packer = Packer(loop, self._settings.packs)
        self._in_process = InProcess(loop, self._router, self._settings.finish_limit, self._packer)
        self._environments = Environments()

    def usable_gpus(self, gpus: Sequence[int]) -> Sequence[int]:
        return gpus

    def describe(self, asked: Incomplete, folder: ModelFolder, filename: str) -> Mapping[str, Any] | None:
        """The configuration as the model's `auto_complete_config` leaves it, None without such a function (contract
        R77). Runs in a process that is thrown away. Raises Internal with the model's own words."""
        name = asked.name or folder.model.name
        order = {**where(folder, filename), "name": name, "complete": json.loads(asked.json)}
        worker = self._workers.spawn(self._interpreter(asked.parameters.get(ENVIRONMENT, ""), folder))
        try:
            completed: Mapping[str, Any] | None = self._ask(worker, order, name, self._settings.describe_limit)
            return completed
        finally:
            worker.kill()
            self._workers.forget(worker)

    def runs_code(self, asked: Incomplete) -> bool:
        return True

    def faults(self, asked: Incomplete, config: ModelConfig | None, folder: ModelFolder, filename: str) -> list[Fault]:
        """What can be seen of the model's file, and of the parameters that only this backend reads."""
        faults = faults_of(config, folder, filename)
        try:
            if config is not None:
                runs_in_process(config, execution_limit(config, self._settings.execution_limit))
        except Error as error:
            faults.append(Fault(str(error)))
        return faults

    def open(self, config: ModelConfig, folder: ModelFolder) -> PythonModel | InProcessModel:
        """Raises Unsupported or Invalid for bad parameters, Internal for an environment that makes no sense."""
        force_cpu = config.parameters.get("FORCE_CPU_ONLY_INPUT_TENSORS", "yes")
        if force_cpu not in ("yes", "no"):
            raise Unsupported(f"Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: {force_cpu}'")
        warn_of_own_stub(config.name, folder.model)
        limit = execution_limit(config, self._settings.execution_limit)
        if runs_in_process(config, limit):
            return InProcessModel(self._in_process, config, folder)
        interpreter = self._interpreter(config.parameters.get(ENVIRONMENT, ""), folder)
        return PythonModel(self, config, folder, limit, interpreter)

    def _interpreter(self, setting: str, folder: ModelFolder) -> Interpreter:
        """Raises Internal (contract P71)."""
        return self._environments.interpreter(setting, folder.model) if setting else OWN

    def start_instance(
        self, order: Mapping[str, Any], name: str, limit: float, interpreter: Interpreter
    ) -> PythonInstance:
        """A worker that carried out `order`, listened to by the loop. Raises Internal."""
        teach = partial(self._teach, order, name)
        supervisor = Supervisor(name, self._loop, self._workers, teach, self._settings.patience, interpreter)
        worker = supervisor.start()
        instance = PythonInstance(
            worker, name, self._loop, supervisor, self._router, limit, self._settings.finish_limit, self._packer
        )
        instance.iterative = bool(order["iterative"])
        instance.listen()
        return instance

    def close(self) -> None:
        """Ends what still runs, such as a worker whose model never finishes its initialize, and starts none again."""
        self._workers.close()
        self._in_process.close()
        self._environments.close()
        with suppress(RuntimeError):  # the loop was closed, and with it the thread that kept to a core
            self._loop.call_soon_threadsafe(self._packer.close)

    def _teach(self, order: Mapping[str, Any], name: str, worker: Worker) -> None:
        """The model may call others from its `initialize` on."""
        worker.about = model_of(order)
        calls = self._router.open(worker, name, order["args"]["model_name"])
        try:
            self._ask(worker, order, name, None, Meanwhile(self._loop, partial(_called, worker, calls)))
        except BaseException:
            self._router.close(worker)
            raise

    def _ask(
        self,
        worker: Worker,
        order: Mapping[str, Any],
        name: str,
        limit: float | None,
        meanwhile: Meanwhile | None = None,
    ) -> Any:
        try:
            return worker.ask(order, limit, meanwhile)
        except WorkerRefused as error:
            raise Internal(str(error)) from error
        except WorkerSlow as error:
            raise Internal(f"Timed out while completing the configuration of '{name}': {error}") from error
        except WorkerLost as error:
            raise _unhealthy(name) from error


def _called(worker: Worker, calls: WorkerCalls, message: frames.Frame) -> None:
    """A frame of a worker that has no batches yet."""
    try:
        calls.arrived(message, {})
    except frames.MALFORMED:
        worker.kill()
