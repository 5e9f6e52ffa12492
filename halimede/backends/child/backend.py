"""A backend whose models run in child processes: each call of the server becomes an order for a process.

The server does not import the backend's module, nor its runtime. `describe`, `open`, `create_instance` and `close` run
on load threads and block until a process has answered.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from halimede.backends.api import BackendContext, Fault, InstancePlace, ModelFolder, Placement
from halimede.backends.child.in_flight import InFlightBatch
from halimede.backends.child.instance import ChildInstance
from halimede.backends.child.order import Order, read, read_error, written
from halimede.backends.child.sandbox import confined, new_sandbox
from halimede.backends.child.settings import ChildSettings, execution_limit
from halimede.backends.inspection import not_inspected
from halimede.backends.traits import DeviceKind, Traits
from halimede.config.model_config import Description, Incomplete, InstanceGroup, InstanceKind, ModelConfig
from halimede.errors import Error, Internal, Unavailable
from halimede.platform.hosts import available_cores
from halimede.workers.host.environments import Environments
from halimede.workers.host.pool import WorkerPool
from halimede.workers.host.process import Interpreter
from halimede.workers.host.supervisor import Supervisor
from halimede.workers.host.worker import VERBATIM, Worker, WorkerLost, WorkerRefused, WorkerSlow

log = logging.getLogger(__name__)

PROGRAM = Path(__file__).parents[2] / "hosted" / "main.py"
ENVIRONMENT = "EXECUTION_ENV_PATH"
"""The parameter that names an environment of the model's own (P71)."""
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


class HostedInstance(ChildInstance[InFlightBatch]):
    """An instance of any backend in a child."""

    sends_rows = True


class ChildModel:
    """A version of a model whose instances are processes."""

    placement = Placement.LOOP
    inline_safe = False
    gathers = False
    """Whatever the model in the child says: to start a batch here is only to pass it on, which costs little."""
    in_flight = 1
    """As the model in the child says, which is known once its first instance has loaded."""

    def __init__(self, backend: "ChildBackend", config: ModelConfig, folder: ModelFolder, limit: float) -> None:
        self._backend = backend
        self._config = config
        self._folder = folder
        self._limit = limit

    def create_instance(self, place: InstancePlace) -> HostedInstance:
        """Starts the process, which opens the model. Raises what the backend raises there, Internal if it dies."""
        return self._backend.start_instance(self, self._config, self._folder, place, self._limit)

    def close(self) -> None:
        """The processes are the instances'."""


class ChildBackend:
    """The backend `traits` in child processes. Raises Invalid for a bad setting."""

    def __init__(self, traits: Traits, context: BackendContext) -> None:
        self.traits = traits
        self._loop = context.loop
        self._settings = ChildSettings.parse(context.settings)
        self._pool = WorkerPool(context.worker_poller, PROGRAM)
        self._sandbox = new_sandbox(self._settings.sandbox, traits.name)
        self._environments = Environments(
            build_in=context.environment_directory, build_limit=context.environment_limit, sandbox=self._sandbox
        )
        self._usable_gpus: dict[tuple[int, ...], Sequence[int]] = {}
        self._looks_only = context.worker_poller is None
        self._idle: list[tuple[Interpreter, Worker]] = []
        """Processes that can take a further order. A server keeps none: they hold the memory of a runtime."""

    def usable_gpus(self, gpus: Sequence[int]) -> Sequence[int]:
        """Asks the backend in a child process, once for the same `gpus`. A backend for the CPU alone is not asked."""
        key = tuple(gpus)
        if key and key not in self._usable_gpus and DeviceKind.GPU in self.traits.devices:
            self._usable_gpus[key] = self._call("usable_gpus", (list(gpus),))
        return self._usable_gpus.get(key, ())

    def describe(self, asked: Incomplete, folder: ModelFolder, filename: str) -> Description | Mapping[str, Any] | None:
        """Runs in a process of its own: what the backend opened for it is opened again by each instance."""
        arguments = (asked, folder, filename)
        described: Description | Mapping[str, Any] | None = self._call("describe", arguments, asked, folder)
        return described

    def runs_code(self, asked: Incomplete) -> bool:
        return bool(self._call("runs_code", (asked,)))

    def faults(self, asked: Incomplete, config: ModelConfig | None, folder: ModelFolder, filename: str) -> list[Fault]:
        try:
            found: list[Fault] | None = self._call("faults", (asked, config, folder, filename), asked, folder)
        except Error as error:
            return [Fault(error.message, cause=error.cause)]
        return [not_inspected(self.traits)] if found is None else found

    def open(self, config: ModelConfig, folder: ModelFolder) -> ChildModel:
        """Checks the parameters that this package reads. The backend checks the others when the first instance opens
        the model. Raises Invalid."""
        return ChildModel(self, config, folder, execution_limit(config, self._settings.execution_limit))

    def start_instance(
        self, model: ChildModel, config: ModelConfig, folder: ModelFolder, place: InstancePlace, limit: float
    ) -> HostedInstance:
        """A process that serves this instance, which the loop listens to. Raises Error."""
        interpreter = self._placed(self._interpreter(config.parameters, folder), config, place)
        if place.kind is InstanceKind.GPU:  # the process sees this GPU alone, under the number 0
            place = replace(place, device_id=0)
            config = replace(config, instance_groups=tuple(map(_on_first_gpu, config.instance_groups)))
        order = self._order((config, _plain(folder), place))
        about = {"model": config.name, "version": folder.number, "instance": place.name, VERBATIM: False}
        interpreter = replace(interpreter, label=f"model={config.name} version={folder.number} instance={place.name}")
        supervisor = Supervisor(
            *(place.name, self._loop, self._pool, partial(self._load_model_in, model, order, about, place.name)),
            *(self._settings.patience, interpreter),
        )
        worker = supervisor.start()
        log.info("%sinstance '%s' runs in process %d", worker.prefix, place.name, worker.pid, extra=about)
        instance = HostedInstance(
            *(worker, place.name, self._loop, supervisor, limit, self._settings.finish_limit), InFlightBatch
        )
        instance.listen()
        return instance

    def close(self) -> None:
        """Ends processes that still load, and starts none again."""
        self._pool.close()
        self._environments.close()
        if self._sandbox is not None:
            self._sandbox.close()

    # ---- orders

    def _interpreter(self, parameters: Mapping[str, str], folder: ModelFolder | None) -> Interpreter:
        """The interpreter of the model's environment, or the server's own. Raises Internal (P71)."""
        setting = parameters.get(ENVIRONMENT, "")
        found = Interpreter()
        if setting and folder:
            found = self._environments.interpreter(setting, folder.model, folder.unwanted)
        variables = os.environ if found.variables is None else found.variables
        missing = {name: value for name, value in self.traits.environment.items() if name not in variables}
        return replace(confined(found, self._sandbox, folder), overrides=missing)

    def _placed(self, interpreter: Interpreter, config: ModelConfig, place: InstancePlace) -> Interpreter:
        """The interpreter on the cores and with the GPU of an instance."""
        beside = config.instances_beside(place.host_policy)
        threads = max(1, len(available_cores()) // beside) if beside > 1 and not place.passive else 0
        overrides = dict(interpreter.overrides)
        variables = os.environ if interpreter.variables is None else interpreter.variables
        overrides[VISIBLE_DEVICES] = visible_devices(variables.get(VISIBLE_DEVICES), place)
        return replace(interpreter, host=place.host, threads=threads, overrides=overrides)

    def _order(self, arguments: tuple[Any, ...], method: str = "") -> bytes:
        return written(Order(self.traits, self._settings.of_backend, arguments, method))

    def _load_model_in(
        self, model: ChildModel, order: bytes, about: Mapping[str, object], name: str, worker: Worker
    ) -> None:
        worker.about = about
        in_flight = read(self._ask(worker, order, f"instance '{name}'", None))
        model.in_flight = in_flight if isinstance(in_flight, int) else 1

    def _call(
        self,
        method: str,
        arguments: tuple[Any, ...],
        asked: Incomplete | None = None,
        folder: ModelFolder | None = None,
    ) -> Any:
        """The result of a method of the backend, called in a child, which has the environment of the model that `asked`
        and `folder` stand for. Raises Error."""
        found = self._interpreter({} if asked is None else asked.parameters, folder)
        interpreter = replace(found, label=f"backend={self.traits.name}")
        worker = self._idle_worker(interpreter)
        if asked is not None and folder is not None:
            worker.about = {"model": asked.name, "version": folder.number, VERBATIM: False}
        plain = tuple(_plain(each) if isinstance(each, ModelFolder) else each for each in arguments)
        try:
            result = self._ask(worker, self._order(plain, method), f"'{method}'", self._settings.describe_limit)
        except BaseException:
            self._end(worker)
            raise
        if self._looks_only:
            self._idle.append((interpreter, worker))
        else:
            self._end(worker)
        return read(result)

    def _idle_worker(self, interpreter: Interpreter) -> Worker:
        """A process that waits for an order. Only commands keep some of them, and these have one thread."""
        for i, (has, worker) in enumerate(self._idle):
            if has == interpreter:
                del self._idle[i]
                return worker
        return self._pool.spawn(interpreter)

    def _end(self, worker: Worker) -> None:
        worker.kill()
        self._pool.forget(worker)

    def _ask(self, worker: Worker, order: bytes, what: str, limit: float | None) -> bytes:
        try:
            return worker.start(order, limit)
        except WorkerRefused as error:
            raise read_error(error.content) from error
        except WorkerSlow as error:
            raise Unavailable(f"backend '{self.traits.name}', {what}: {error} from its process") from error
        except WorkerLost as error:
            raise Internal(
                f"backend '{self.traits.name}', {what}: its process ended before the model was loaded; see its output"
            ) from error


def visible_devices(setting: str | None, place: InstancePlace) -> str:
    """The value of CUDA_VISIBLE_DEVICES for an instance: the GPU that it is placed on, none for other kinds. GPUs are
    numbered as the server's own `setting` leaves them."""
    if place.kind is not InstanceKind.GPU:
        return ""
    if setting is None:
        return str(place.device_id)
    names = [each.strip() for each in setting.split(",")]
    return names[place.device_id] if place.device_id < len(names) else str(place.device_id)


def _on_first_gpu(group: InstanceGroup) -> InstanceGroup:
    return replace(group, gpus=(0,)) if group.gpus else group


def _plain(folder: ModelFolder) -> ModelFolder:
    """Without what a description has opened: it is in another process."""
    return ModelFolder(folder.model, folder.version, folder.number, folder.code)
