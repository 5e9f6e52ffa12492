"""The life of a worker process.

| state | what ends it |
|---|---|
| waits for its order | START |
| completes a configuration, or loads the model | READY or REFUSED; after a completion or a refusal the process exits |
| serves | REQUESTS: one batch at a time; CLOSE, or the end of the connection |
| finishes | `finalize` has returned: the process exits |
"""

from __future__ import annotations

import gc
import json
import time
from contextlib import suppress
from functools import partial
from typing import Any

from . import frames, triton_python_backend_utils
from .batch import WorkerBatch, read_requests
from .calls import ModelCaller
from .channel import Channel, connect
from .logger import Level, logger_for, write_log
from .model import ModelFailed, UserModel, explain
from .progress import Progress
from .readiness import answer_questions
from .requests import InferenceRequest
from .tracebacks import Reporter
from .values import TritonModelException


def run(descriptor: int, segments: int | None = None) -> int:
    """Serves the server at the other end of these sockets; the result is the exit status."""
    channel = connect(descriptor, segments)
    order = channel.receive()
    if order is None or order.kind != frames.START:
        return 1
    return _obey(channel, json.loads(order.rest()))


def _obey(channel: Channel, order: dict[str, Any]) -> int:
    reporter = Reporter(partial(write_log, channel, Level.ERROR, frames.ROWS), _who(order))
    code = order.get("code", "")
    model = UserModel(order["directory"], order["version"], order["filename"], code, reporter.report)
    logger, where = logger_for(channel), model.folder
    reporter.watch_threads()
    say = partial(write_log, channel, Level.INFO, 0)
    try:
        if "complete" in order:
            triton_python_backend_utils.bind(where, logger)
            with Progress(say, f"{_who(order)}: still completing its configuration", model.path):
                completed = model.complete(order["complete"], order["name"])
            channel.send(_ready(completed))
            return 0
        args = order["args"]
        caller = ModelCaller(channel, args.get("model_name", order["name"]), args.get("model_instance_name", ""))
        triton_python_backend_utils.bind(where, logger, caller)
        with Progress(say, f"{_who(order)}: still initializing", model.path):
            model.start(order["args"])
    except ModelFailed as failure:
        channel.send(frames.frame(frames.REFUSED, [str(failure).encode("utf-8", "replace")]))
        return 1
    gc.freeze()
    if model.tells_ready:
        channel.offer(_ready(), answer_questions(model.is_ready))
    else:
        channel.send(_ready())
    return _serve(channel, caller, model, bool(order.get("decoupled")), reporter)


def _who(order: dict[str, Any]) -> str:
    """The model, and the instance if there is one, for the log."""
    instance = order.get("args", {}).get("model_instance_name")
    return f"model '{order['name']}'" + (f" instance {instance}" if instance else "")


def _ready(result: str = "null") -> list[Any]:
    """`result` is JSON."""
    return frames.frame(frames.READY, [result.encode()])


def _serve(channel: Channel, caller: ModelCaller, model: UserModel, decoupled: bool, reporter: Reporter) -> int:
    while True:
        message = channel.receive()
        if message is None:
            return 1
        if message.kind == frames.CLOSE:
            caller.close()
            return _close(model)
        batch = WorkerBatch(channel, message.batch, message.count, decoupled)
        caller.serves(message.batch)
        requests = read_requests(message, batch)
        batch.opened(requests, time.monotonic_ns())
        del message
        _execute(model, batch, requests, reporter)
        del requests  # from now on a request lives only if the model keeps it


def _execute(model: UserModel, batch: WorkerBatch, requests: list[InferenceRequest], reporter: Reporter) -> None:
    try:
        if batch.decoupled:
            model.execute_decoupled(requests, batch.failed)
            batch.handed_over(time.monotonic_ns())
            return
        responses = model.execute(list(requests))
        batch.check_again(responses)
        now = time.monotonic_ns()
        promised = {request._index for request in requests if request._sender is not None}
        batch.returned(responses, promised, now)
    except (ModelFailed, TritonModelException) as failure:
        batch.failed(str(failure))
    except Exception as error:  # an answer that cannot be written: an element fails in `str`, or a name is too long
        reporter.report("an answer", error)
        batch.failed(explain(error))


def _close(model: UserModel) -> int:
    with suppress(ModelFailed):  # its traceback is in the log
        model.finish()
    return 0
