"""A server within a program, whose models are functions. `halimede.Server` is this class."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any, Self

from halimede.backends.function.functions import Function, Functions
from halimede.backends.registry import set_environment
from halimede.binding.arguments import check_kinds, explained
from halimede.binding.flags import Option, options_of
from halimede.binding.models import bound_model
from halimede.binding.run import Run, Stopped
from halimede.binding.tensors import Tensor
from halimede.engine.engine import Engine
from halimede.errors import Invalid, Unavailable
from halimede.loading.repository_control import ALL_MODELS
from halimede.models.repository import FoundModel
from halimede.platform.limits import allow_many_files

log = logging.getLogger(__name__)

SWITCH_INTERVAL = 0.0005
"""Seconds that a busy Python thread may keep the event loop waiting, as in `halimede serve`."""

SIGNAL_SECONDS = 1.0
"""Longest wait of the main thread. Python does not see a signal that comes just before a wait until the wait ends."""


class Server:
    """Serves functions, and the models of repositories, on the ports of HTTP, gRPC and metrics.

    The arguments are the flags of `halimede serve`, as keywords (`http_port=0`, `model_repository=["a", "b"]`) or as
    words ("--http-port=0"). Port 0 lets the system choose. Flags about the log are refused, since a program sets up its
    own. Raises Invalid for a wrong one.

    `serve` is for a program that is a server. `start` and `stop` are for notebooks, tests and programs with other work.
    Used on one thread at a time, except `stop`, `bind` and `unbind`, which any thread may call while the server runs.
    """

    def __init__(self, *flags: str, **options: Option) -> None:
        self._options = options_of(flags, options, os.environ)
        for warning in self._options.warnings:
            log.warning("%s", warning)
        self._bound: dict[str, FoundModel] = {}
        """On the event loop while the server runs, else on the program's thread."""
        self._stamps = count(1)
        self._run: Run | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- models

    @explained
    def bind(
        self,
        name: str,
        function: Function | Sequence[Function],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        *,
        max_batch_size: int = 0,
        batching: bool | Mapping[str, Any] = True,
        pass_requests: bool = False,
        decoupled: bool | None = None,
        concurrency: int = 16,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Makes a function a model, or replaces the function of a model. While the server runs, it serves the model
        when this returns.

        function -- called with the inputs as keyword arguments, and returns the outputs: a dict, a tuple or list, or
            the only output. A list of functions makes an instance of each; they run at the same time
        max_batch_size -- 0: the function gets one request at a time, with the shapes of `inputs`. More: it gets up to
            so many rows at a time, and all shapes have one more dimension for them, the first
        batching -- whether the server joins requests to batches; or the fields of `dynamic_batching`, such as
            {"max_queue_delay_microseconds": 500}
        pass_requests -- the function gets a list of `Request`, and returns a list with a result for each
        decoupled -- whether the function returns an iterator of responses; by default, whether it is a generator
        concurrency -- how many batches an instance of an async function has at a time
        config -- further fields of the model configuration, such as {"response_cache": {"enable": True}}

        Raises TypeError for a wrong call, Invalid for wrong arguments, and Error if a running server cannot load the
        model; a model of that name serves on then.
        """
        functions = Functions(
            check_kinds(name, function, inputs, outputs, config),
            takes_requests=pass_requests,
            concurrency=concurrency,
        )
        found = bound_model(
            name,
            functions,
            inputs,
            outputs,
            max_batch_size,
            batching,
            decoupled,
            config or {},
            next(self._stamps),
        )
        if self._run is None:
            self._bound[name] = found
        else:
            self._run.on_loop(lambda engine: self._bind(engine, found))

    async def _bind(self, engine: Engine, found: FoundModel) -> None:
        before = self._bound.get(found.name)
        self._bound[found.name] = found
        try:
            await engine.load(found.name)
        except BaseException:
            if self._bound.get(found.name) is found:
                self._bound.pop(found.name)
                if before is not None:
                    self._bound[found.name] = before
            raise

    def unbind(self, name: str) -> None:
        """Removes a bound model. Requests that the server has accepted are answered. Raises Invalid if no function has
        this name."""
        if self._run is None:
            self._remove(name)
        else:
            self._run.on_loop(lambda engine: self._unbind(engine, name))

    async def _unbind(self, engine: Engine, name: str) -> None:
        self._remove(name)
        await engine.unload(name)

    def _remove(self, name: str) -> None:
        if self._bound.pop(name, None) is None:
            raise Invalid(f"no function is bound as '{name}'")

    # ---- runs

    def start(self) -> None:
        """Loads the models and opens the ports, and returns. The server runs on a thread of its own until `stop`, or
        until the program ends. Raises Error if it cannot start."""
        if self._run is not None:
            raise Invalid("the server runs already")
        self._wait_until_ready(self._begin())

    def stop(self) -> None:
        """Closes the ports, answers the requests that were accepted, closes the models, and returns: within about
        `exit_timeout_secs`. Does nothing if the server does not run. It can be started again."""
        run = self._run
        if run is not None:
            run.end()
            run.over.wait()
            self._run = None

    def serve(self) -> None:
        """Starts the server, if it does not run, and serves until SIGINT or SIGTERM, or until `stop` is called on
        another thread. On another thread than the main one, signals are left alone. Raises Error if it cannot start.

        While it serves, it logs to standard error if the program has set up no log, and threads take shorter turns
        (`sys.setswitchinterval`).
        """
        with _as_a_server():
            run = self._run or self._begin()
            with _signals(run.end):
                try:
                    self._wait_until_ready(run)
                except Stopped:
                    return
                while not run.over.wait(SIGNAL_SECONDS):
                    pass
            self.stop()
        if run.failure is not None:
            raise run.failure

    def _begin(self) -> Run:
        set_environment()
        options = self._options
        # In explicit mode only the named models are loaded at the start.
        if options.model_control_mode == "explicit" and ALL_MODELS not in options.load_models:
            options = replace(options, load_models=(*options.load_models, *self._bound))
        run = self._run = Run(options, self._models)
        return run

    def _wait_until_ready(self, run: Run) -> None:
        try:
            while not wait({run.ready}, SIGNAL_SECONDS).done:
                pass
            run.ready.result()
        except BaseException:  # KeyboardInterrupt too
            run.end()
            run.over.wait()
            self._run = None
            raise

    def _models(self) -> list[FoundModel]:
        return list(self._bound.values())

    # ---- addresses

    @property
    def http_url(self) -> str:
        """Host and port of HTTP, as `tritonclient.http` takes them. Raises Unavailable if the server does not run, or
        has no such port."""
        return self._address("http")

    @property
    def grpc_url(self) -> str:
        """Likewise of gRPC."""
        return self._address("grpc")

    @property
    def metrics_url(self) -> str:
        """Likewise of the metrics, which are at `/metrics`."""
        return self._address("metrics")

    def _address(self, service: str) -> str:
        if self._run is None:
            raise Unavailable("the server does not run: call start() or serve() first")
        address: str = getattr(self._run.ready.result(), service)
        if not address:
            raise Unavailable(f"the server has no port for {service}: --allow-{service} is false")
        # An address that a client can connect to.
        for everywhere, here in (("0.0.0.0:", "127.0.0.1:"), ("[::]:", "[::1]:")):
            if address.startswith(everywhere):
                return here + address.removeprefix(everywhere)
        return address


@contextmanager
def _as_a_server() -> Iterator[None]:
    """Settings of a process that is a server, for as long as it serves."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    allow_many_files()
    try:
        with _logging():
            yield
    finally:
        sys.setswitchinterval(interval)


@contextmanager
def _signals(end: Callable[[], None]) -> Iterator[None]:
    """Calls `end` at the first signal. A second one does what it did before, so that nobody must wait."""
    if threading.current_thread() is not threading.main_thread():  # only that one may install handlers
        yield
        return

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def first(number: int, frame: object) -> None:
        restore()
        end()

    before = {number: signal.signal(number, first) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        restore()


@contextmanager
def _logging() -> Iterator[None]:
    logger = logging.getLogger("halimede")
    if logger.hasHandlers():  # the program has set up its log
        yield
        return
    handler, level = logging.StreamHandler(), logger.level
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level or logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
