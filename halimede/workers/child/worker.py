"""The life of a worker process: take the order, load the model, serve batches until the server says close."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import time
from typing import Any

from . import frames, triton_python_backend_utils
from .calls import Caller
from .channel import Channel
from .exchange import Exchange, read_requests
from .logger import logger_for
from .model import ModelFailed, UserModel, explain
from .requests import InferenceRequest


def run(descriptor: int) -> int:
    """Serves the server at the other end of this socket; the result is the exit status."""
    channel = Channel(_own_socket(descriptor))
    _ignore_interrupts(channel)
    channel.end_with_server()
    order = channel.receive()
    if order is None or order.kind != frames.START:
        return 1
    return _obey(channel, json.loads(order.rest()))


def _own_socket(descriptor: int) -> socket.socket:
    sock = socket.socket(fileno=descriptor)
    sock.set_inheritable(False)
    sock.setblocking(True)
    return sock


def _ignore_interrupts(channel: Channel) -> None:
    """Who stops all processes at once means the server, which must drain first: the end of its socket ends us.

    A handler instead of SIG_IGN, so that programs started by the model have the default again; a forked child gets it
    too, and gives up the connection.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)

    def in_fork() -> None:
        channel.abandon()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    os.register_at_fork(after_in_child=in_fork)


def _obey(channel: Channel, order: dict[str, Any]) -> int:
    model = UserModel(order["directory"], order["version"], order["filename"])
    logger, where = logger_for(channel), os.path.dirname(model.path)
    try:
        if "complete" in order:
            triton_python_backend_utils.bind(where, logger)
            _tell(channel, model.complete(order["complete"], order["name"]))
            return 0
        caller = Caller(channel, order["args"].get("model_name", order["name"]))
        triton_python_backend_utils.bind(where, logger, caller)
        model.start(order["args"])
    except ModelFailed as failure:
        channel.send(frames.frame(frames.REFUSED, [str(failure).encode("utf-8", "replace")]))
        return 1
    gc.freeze()
    _tell(channel, None)
    return _serve(channel, caller, model, bool(order.get("decoupled")))


def _tell(channel: Channel, result: Any) -> None:
    channel.send(frames.frame(frames.READY, [json.dumps(result).encode()]))


def _serve(channel: Channel, caller: Caller, model: UserModel, decoupled: bool) -> int:
    while True:
        message = channel.receive()
        if message is None:
            return 1
        if message.kind == frames.CLOSE:
            caller.close()
            return _close(channel, model)
        exchange = Exchange(channel, message.batch, message.count, decoupled)
        caller.serves(message.batch)
        requests = read_requests(message, exchange)
        exchange.opened(requests, time.monotonic_ns())
        del message
        _execute(model, exchange, requests)
        del requests  # the model may be the only one to keep a request now


def _execute(model: UserModel, exchange: Exchange, requests: list[InferenceRequest]) -> None:
    try:
        if exchange.decoupled:
            model.execute_decoupled(requests, exchange.failed)
            exchange.handed_over(time.monotonic_ns())
            return
        responses = model.execute(list(requests))
        now = time.monotonic_ns()
        promised = {request._index for request in requests if request._sender is not None}
        exchange.returned(responses, promised, now)
    except ModelFailed as failure:
        exchange.failed(str(failure))
    except Exception as error:  # an answer that cannot be written: its elements have no text, its name no end
        exchange.failed(explain(error))


def _close(channel: Channel, model: UserModel) -> int:
    try:
        model.finish()
    except ModelFailed as failure:
        logger_for(channel).log_error(f"finalize of the model failed: {failure}")
    return 0
