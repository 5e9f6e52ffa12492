"""The backend `python`: each instance of a `TritonPythonModel` in a worker process of its own (P1 to P82).

It turns configurations into orders for workers. `backends.child.instance` passes batches on; `workers.child` is the
program in the worker. `describe`, `open`, `create_instance` and `close` run on load threads, everything else on the
event loop.
"""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from halimede.backends.api import (
    BackendContext,
    Fault,
    InstancePlace,
    ModelFolder,
    Placement,
)
from halimede.backends.child.in_flight import InFlightBatch
from halimede.backends.child.instance import ChildInstance
from halimede.backends.child.sandbox import confined, new_sandbox
from halimede.backends.child.settings import execution_limit
from halimede.backends.python import TRAITS
from halimede.backends.python.dependencies import lacking
from halimede.backends.python.in_process import InProcessModel, InProcessShared
from halimede.backends.python.modules import ModulesOfEnvironments
from halimede.backends.python.orders import log_fields, source_of, start_order
from halimede.backends.python.settings import (
    ENVIRONMENT,
    cpu_threads,
    naming_its_list,
    parse_settings,
    runs_in_process,
    warn_of_own_stub,
)
from halimede.backends.python.source import faults_of, file_of, gpu_fault, surely_completes_nothing
from halimede.config.model_config import Incomplete, ModelConfig
from halimede.errors import Error, Internal, Unsupported
from halimede.platform.gpus import visible_gpus
from halimede.platform.hosts import available_cores
from halimede.workers.calls import CallRouter, ModelCall, NoServer, WorkerCalls
from halimede.workers.child import frames
from halimede.workers.host.environments import Environments
from halimede.workers.host.pool import WorkerPool
from halimede.workers.host.process import OWN, Interpreter
from halimede.workers.host.supervisor import Supervisor
from halimede.workers.host.worker import EarlyFrames, Worker, WorkerLost, WorkerRefused, WorkerSlow

log = logging.getLogger(__name__)


class PythonInFlightBatch(InFlightBatch):
    """A batch with the calls that the model makes for it; None before the first."""

    __slots__ = ("__weakref__", "calls")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.calls: dict[int, ModelCall] | None = None

    @property
    def waits_for(self) -> Collection[ModelCall]:
        return self.calls.values() if self.calls else ()


class PythonInstance(ChildInstance[PythonInFlightBatch]):
    """An instance of a Python model: it may call other models, and it may say itself whether it is ready."""

    def __init__(
        self,
        worker: Worker,
        name: str,
        loop: asyncio.AbstractEventLoop,
        supervisor: Supervisor,
        router: CallRouter,
        limit: float,
        finish_limit: float,
    ) -> None:
        self._router = router
        self._calls = router.of(worker)
        super().__init__(worker, name, loop, supervisor, limit, finish_limit, PythonInFlightBatch)

    @property
    def reports_readiness(self) -> bool:
        return self._worker.readiness is not None

    def ask_ready(self, done: Callable[[bool], None]) -> None:
        """Asks the model (P9), also while it executes a batch."""
        readiness = self._worker.readiness
        if not self.healthy:
            done(False)
        elif readiness is None:
            done(True)
        else:
            readiness.ask(done)

    def listen(self) -> None:
        self._calls = self._router.of(self._worker)
        self._calls.loading = False
        super().listen()

    def _other_frame(self, message: frames.Frame) -> None:
        self._calls.arrived(message, self._in_flight)

    def _lost(self) -> None:
        self._calls.close()
        super()._lost()

    def _let_go(self) -> None:
        self._router.close(self._worker)

    def _unhealthy(self) -> Internal:
        return _unhealthy(self._name)


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
        """Blocks until the model is initialized, without a time limit. Raises Internal with the model's text."""
        order = start_order(self._config, self._folder, place)
        threads = cpu_threads(self._config, place, len(available_cores()))
        label = f"model={self._config.name} version={self._folder.number} instance={place.name}"
        interpreter = replace(self._interpreter, host=place.host, threads=threads, label=label)
        try:
            return self._backend.start_instance(order, place.name, self._limit, interpreter)
        except Internal as error:
            raise naming_its_list(error, self._config.parameters.get(ENVIRONMENT, ""), self._folder) from error

    def close(self) -> None:
        """Nothing to release: the server closes the instances."""


class PythonBackend:
    """Starts workers. Raises Invalid for a bad setting."""

    traits = TRAITS

    def __init__(self, context: BackendContext) -> None:
        loop = self._loop = context.loop
        self._router = CallRouter(loop, context.calls or NoServer())
        self._settings = parse_settings(context.settings)
        self._workers = WorkerPool(context.worker_poller)
        self._in_process = InProcessShared(loop, self._router, self._settings.finish_limit)
        self._sandbox = new_sandbox(self._settings.sandbox, self.traits.name)
        self._environments = Environments(
            build_in=context.environment_directory, build_limit=context.environment_limit, sandbox=self._sandbox
        )
        self._modules = ModulesOfEnvironments()

    def usable_gpus(self, gpus: Sequence[int]) -> Sequence[int]:
        return gpus

    def describe(self, asked: Incomplete, folder: ModelFolder, filename: str) -> Mapping[str, Any] | None:
        """The configuration after the model's `auto_complete_config` (R77), None if the model has no such function.
        Runs in a process that ends afterwards; none is started for a model that visibly has no such function. Raises
        Internal with the model's text."""
        name = asked.name or folder.model.name
        order = {**source_of(folder, filename), "name": name, "complete": json.loads(asked.json)}
        setting = asked.parameters.get(ENVIRONMENT, "")
        interpreter = self._interpreter(setting, folder)
        # A process takes as long as that of an instance, and most models complete nothing.
        if surely_completes_nothing(file_of(folder, filename)):
            return None
        worker = self._workers.spawn(interpreter)
        try:
            completed: Mapping[str, Any] | None = self._ask(worker, order, name, self._settings.describe_limit)
            return completed
        except Internal as error:
            raise naming_its_list(error, setting, folder) from error
        finally:
            worker.kill()
            self._workers.forget(worker)

    def runs_code(self, asked: Incomplete) -> bool:
        return True

    def faults(self, asked: Incomplete, config: ModelConfig | None, folder: ModelFolder, filename: str) -> list[Fault]:
        """The faults of the model's file, of its environment, of what it imports, and of the parameters that only this
        backend reads. Runs no code of the model."""
        faults = faults_of(config, folder, filename)
        file = file_of(folder, filename)
        faults += lacking(file, folder, asked.parameters.get(ENVIRONMENT, ""), self._modules)
        on_gpu = None if visible_gpus(os.environ) else gpu_fault(file)
        if on_gpu is not None:
            faults.append(on_gpu)
        try:
            if config is not None:
                self._runs_in_process(config)
        except Error as error:
            faults.append(Fault(str(error)))
        return faults

    def open(self, config: ModelConfig, folder: ModelFolder) -> PythonModel | InProcessModel:
        """Raises Unsupported or Invalid for bad parameters, Internal for an environment that cannot be used."""
        force_cpu = config.parameters.get("FORCE_CPU_ONLY_INPUT_TENSORS", "yes")
        if force_cpu not in ("yes", "no"):
            raise Unsupported(f"Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: {force_cpu}'")
        warn_of_own_stub(config.name, folder.model)
        limit = execution_limit(config, self._settings.execution_limit)
        if self._runs_in_process(config):
            return InProcessModel(self._in_process, config, folder)
        interpreter = self._interpreter(config.parameters.get(ENVIRONMENT, ""), folder)
        return PythonModel(self, config, folder, limit, interpreter)

    def _interpreter(self, setting: str, folder: ModelFolder) -> Interpreter:
        """Raises Internal (P71)."""
        interpreter = self._environments.interpreter(setting, folder.model, folder.unwanted) if setting else OWN
        return confined(interpreter, self._sandbox, folder)

    def _runs_in_process(self, config: ModelConfig) -> bool:
        """Raises Invalid."""
        limit = execution_limit(config, self._settings.execution_limit)
        return runs_in_process(config, limit, self._settings.sandbox is not None)

    def start_instance(
        self, order: Mapping[str, Any], name: str, limit: float, interpreter: Interpreter
    ) -> PythonInstance:
        """Starts a worker with `order`, and lets the loop listen to it. Raises Internal."""
        load_model_in = partial(self._load_model, order, name)
        supervisor = Supervisor(name, self._loop, self._workers, load_model_in, self._settings.patience, interpreter)
        worker = supervisor.start()
        instance = PythonInstance(
            worker, name, self._loop, supervisor, self._router, limit, self._settings.finish_limit
        )
        instance.listen()
        return instance

    def close(self) -> None:
        """Kills workers that are left, such as one whose model never leaves `initialize`. None is started again."""
        self._workers.close()
        self._in_process.close()
        self._environments.close()
        if self._sandbox is not None:
            self._sandbox.close()

    def _load_model(self, order: Mapping[str, Any], name: str, worker: Worker) -> None:
        """Loads the model. It may call others from its `initialize` on."""
        worker.about = log_fields(order)
        calls = self._router.open(worker, name, order["args"]["model_name"])
        try:
            self._ask(worker, order, name, None, EarlyFrames(self._loop, partial(_called, worker, calls)))
        except BaseException:
            self._router.close(worker)
            raise

    def _ask(
        self,
        worker: Worker,
        order: Mapping[str, Any],
        name: str,
        limit: float | None,
        early: EarlyFrames | None = None,
    ) -> Any:
        try:
            return json.loads(worker.start(json.dumps(order).encode(), limit, early))
        except WorkerRefused as error:
            raise Internal(str(error)) from error
        except WorkerSlow as error:
            raise Internal(f"Timed out while completing the configuration of '{name}': {error}") from error
        except WorkerLost as error:
            raise _unhealthy(name) from error


def _called(worker: Worker, calls: WorkerCalls, message: frames.Frame) -> None:
    """Handles a frame of a worker that has no batches yet."""
    try:
        calls.arrived(message, {})
    except frames.MALFORMED:
        worker.kill()
