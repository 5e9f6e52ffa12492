"""The life of a child that hosts a backend: take an order, carry it out, then serve batches until CLOSE.

| order | what the child does | its answer |
|---|---|---|
| with a method (`describe`) | creates the backend, calls the method | READY with the result; then it takes another |
| without a method | opens the model, creates one instance | READY; then it runs batches until CLOSE |
| either, and an exception | closes what it made | REFUSED with the error; exit |

If an instance is unhealthy after a batch and does not recover by itself, as after a failure of its GPU, the process
ends; its supervisor in the server starts another one.

The main thread receives batches. It runs them, or starts them if the model is placed as ASYNC. If the model is placed
on the event loop, the thread of the loop, which this module starts, calls `execute`.
"""

import asyncio
import faulthandler
import logging
import os
import sys
import threading
from contextlib import ExitStack
from dataclasses import replace

from halimede.backends.api import BackendContext, BackendModel, Instance, Placement, ProcessThreads, is_supervised
from halimede.backends.child.order import Order, read_order, written, written_error
from halimede.backends.creation import create_in_this_process
from halimede.config.model_config import Description
from halimede.errors import Error, Internal
from halimede.hosted.batch import HostedBatch, HostedModel
from halimede.workers.child import frames
from halimede.workers.child.channel import BaseChannel, Channel, connect

log = logging.getLogger("halimede")


def run(descriptor: int, segments: int | None = None) -> int:
    """Serves the server at the other end of these sockets; the result is the exit status."""
    faulthandler.enable()
    channel = connect(descriptor, segments)
    message = channel.receive()
    if message is None or message.kind != frames.START:
        return 1
    send_log_to(channel)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="event loop", daemon=True).start()
    refusal: Error
    try:
        return obey(channel, loop, read_order(message.rest()))
    except Error as error:
        refusal = error
    except Exception as error:
        log.exception("the child process failed to carry out its order")
        refusal = Internal(f"{type(error).__name__}: {error}")
    channel.send(frames.frame(frames.REFUSED, [written_error(refusal)]))
    return 1


def obey(channel: Channel, loop: asyncio.AbstractEventLoop, order: Order) -> int:
    """Carries out an order. After one with a method, further ones may come, of the same backend. Raises Error, and what
    the backend raises."""
    with ExitStack() as made:  # closes them in reverse order, also if a later one cannot be made
        threads = ProcessThreads(order.traits.name)
        context = BackendContext(loop, order.settings, process_threads=threads)
        backend = create_in_this_process(order.traits, context)
        made.callback(backend.close)
        while order.method:
            method = getattr(backend, order.method, None)
            result = method(*order.arguments) if method is not None else None
            if isinstance(result, Description):  # what the backend opened to describe the model ends with this process
                result = replace(result, opened=None)
            channel.send(frames.frame(frames.READY, [written(result)]))
            message = channel.receive()
            if message is None:
                return 0
            order = read_order(message.rest())
        config, folder, place = order.arguments
        model = backend.open(config, folder)
        made.callback(model.close)
        instance = model.create_instance(place)
        made.callback(instance.close)
        channel.send(frames.frame(frames.READY, [written(model.in_flight)]))
        if serve(channel, loop, HostedModel.of(config), model, instance):
            return 0
        made.pop_all()  # the server is gone, so nothing would end a `close` that hangs
        return 1


def serve(
    channel: Channel, loop: asyncio.AbstractEventLoop, hosted: HostedModel, model: BackendModel, instance: Instance
) -> bool:
    """Runs batches until CLOSE arrives. Returns False if the connection ends before."""
    on_loop = model.placement is Placement.LOOP
    recovers = is_supervised(instance)

    def ended() -> None:
        if not (instance.healthy or recovers):
            log.error("the instance is broken for good, so its process ends; the server starts another one")
            os._exit(1)  # without the destructors of a runtime, which may hang where its GPU has failed

    while True:
        message = channel.receive()
        if message is None:
            return False
        if message.kind == frames.CLOSE:
            return True
        batch = HostedBatch(channel, loop, hosted, message, ended)
        del message  # else its memory is in use until the next batch arrives
        if on_loop:
            loop.call_soon_threadsafe(batch.run, instance.execute, False)
        else:
            batch.run(instance.execute, model.placement is Placement.THREAD)
        del batch


def send_log_to(channel: BaseChannel) -> None:
    """Sends the log records of this process to the server, whose log has the levels and the format that the operator
    chose."""
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    root.addHandler(ServerLog(channel))


class ServerLog(logging.Handler):
    """Sends each record as a LOG frame. Any thread."""

    def __init__(self, channel: BaseChannel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        level = 2 if record.levelno >= logging.ERROR else 1 if record.levelno >= logging.WARNING else 0
        try:
            text = frames.cut(self.format(record))
            meta = [frames.text_record(each) for each in (record.filename, str(record.lineno), text)]
            flags = frames.ROWS if "\n" in text else 0
            self._channel.send(frames.frame(frames.LOG, meta, count=level, flags=flags))
        except OSError:  # the server is gone, and this process ends in a moment
            print(record.getMessage(), file=sys.stderr)
