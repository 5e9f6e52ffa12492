"""A backend for tests of the child home: each request says what the model does."""

import logging
import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from halimede.backends.api import BackendContext, Batch, InstancePlace, ModelFolder, Placement, Responses
from halimede.backends.traits import DeviceKind, Home, Traits
from halimede.config.model_config import Description, Incomplete, ModelConfig
from halimede.errors import Cause, Invalid, Unsupported
from halimede.tensors import BYTES, INT32, Tensor, array_of, tensor_of

TRAITS = Traits(
    "odd",
    "tests.backends.child.odd:OddBackend",
    devices=frozenset({DeviceKind.CPU, DeviceKind.GPU}),
    homes=(Home.SERVER, Home.CHILD),
)
log = logging.getLogger("odd")


class Damaged(Unsupported):
    """A kind of error that the server does not know."""


def text(words: str, name: str = "OUTPUT0") -> Tensor:
    return tensor_of(name, BYTES, np.array([words.encode()], dtype=object))


def number(value: int) -> list[Tensor]:
    return [tensor_of("OUTPUT0", INT32, np.array([value], np.int32))]


class OddInstance:
    def __init__(self, place: InstancePlace, config: ModelConfig) -> None:
        self._place = place
        self._config = config
        self.healthy = True

    def execute(self, batch: Batch, responses: Responses) -> None:
        order = array_of(batch.requests[0].request.inputs["ORDER"]).reshape(-1)[0].decode()
        getattr(self, order)(batch, responses)

    def ends(self, batch: Batch, responses: Responses) -> None:
        os.kill(os.getpid(), 9)

    def breaks(self, batch: Batch, responses: Responses) -> None:
        self.healthy = False
        responses.send(0, [text("broken")])

    def hangs(self, batch: Batch, responses: Responses) -> None:
        threading.Event().wait()

    def raises(self, batch: Batch, responses: Responses) -> None:
        raise KeyError("nothing")

    def refuses(self, batch: Batch, responses: Responses) -> None:
        responses.fail(0, Invalid("not this one"))
        for i in range(1, len(batch.requests)):
            responses.send(i, [text("fine")])

    def shows(self, batch: Batch, responses: Responses) -> None:
        devices = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = [list(group.gpus) for group in self._config.instance_groups]
        responses.send(0, [text(f"{devices} {self._place.device_id} {gpus} {self._place.name}")])

    def cores(self, batch: Batch, responses: Responses) -> None:
        responses.send(0, [text(str(sorted(self._place.host.cores or ())))])

    def logs(self, batch: Batch, responses: Responses) -> None:
        log.warning("a word of %s\nand its rows", "warning")
        responses.send(0, [text("logged")])

    def streams(self, batch: Batch, responses: Responses) -> None:
        for value in range(3):
            responses.send(0, number(value), final=False)
        responses.send(0, None)

    def floods(self, batch: Batch, responses: Responses) -> None:
        for _ in range(1000):
            responses.send(0, [text("x" * 100_000)], final=False)
        responses.send(0, None)

    def waits_for_the_client(self, batch: Batch, responses: Responses) -> None:
        while not batch.requests[0].cancelled:
            pass
        responses.send(0, [text("cancelled")])

    def is_told(self, batch: Batch, responses: Responses) -> None:
        gone = threading.Event()
        batch.requests[0].when_cancelled(gone.set)
        gone.wait()
        responses.send(0, [text("told")])

    def parameters(self, batch: Batch, responses: Responses) -> None:
        request = batch.requests[0].request
        said = f"{request.id} {request.parameters} {request.correlation_id} {batch.requests[0].batch_size}"
        responses.send(0, [text(said)], True, {"p": 7})

    def close(self) -> None:
        log.info("closed")


class OddModel:
    placement = Placement.THREAD
    inline_safe = False
    gathers = False
    in_flight = 1

    def __init__(self, config: ModelConfig) -> None:
        self._config = config

    def create_instance(self, place: InstancePlace) -> OddInstance:
        if self._config.parameters.get("FAIL") == "die":
            os._exit(3)
        if self._config.parameters.get("FAIL"):
            raise Damaged(self._config.parameters["FAIL"]).blaming(Cause.FILE)
        return OddInstance(place, self._config)

    def close(self) -> None:
        """Nothing to give back."""


class OddLoopModel(OddModel):
    placement = Placement.LOOP

    def create_instance(self, place: InstancePlace) -> Any:
        return OddLoopInstance()


class OddAsyncModel(OddModel):
    placement = Placement.ASYNC
    in_flight = 2

    def create_instance(self, place: InstancePlace) -> Any:
        return OddAsyncInstance()


class OddAsyncInstance:
    """Answers two batches when it has both, the second one first."""

    healthy = True

    def __init__(self) -> None:
        self._first: Responses | None = None

    def execute(self, batch: Batch, responses: Responses) -> None:
        if self._first is None:
            self._first = responses
            return
        for each, words in ((responses, "second"), (self._first, "first")):
            each.send(0, [text(words)])
            each.finished()

    def close(self) -> None:
        """Nothing to give back."""


class OddLoopInstance:
    healthy = True

    def execute(self, batch: Batch, responses: Responses) -> None:
        def answer() -> None:
            for i in range(len(batch.requests)):
                responses.send(i, [text(threading.current_thread().name)])
            responses.finished()

        threading.Timer(0.01, answer).start()

    def close(self) -> None:
        """Nothing to give back."""


class OddBackend:
    traits = TRAITS

    def __init__(self, context: BackendContext) -> None:
        self._settings = context.settings
        if "bad" in context.settings:
            raise Invalid("a bad setting")

    def usable_gpus(self, gpus: Sequence[int]) -> Sequence[int]:
        return [gpu for gpu in gpus if gpu % 2]

    def describe(self, asked: Incomplete, folder: ModelFolder, filename: str) -> Description | None:
        if asked.name == "bad":
            raise Invalid("a bad model")
        return Description((), (), warnings=(f"{asked.name} {filename} {sorted(self._settings)}", str(os.getpid())))

    def open(self, config: ModelConfig, folder: ModelFolder) -> OddModel:
        kinds = {"loop": OddLoopModel, "async": OddAsyncModel}
        return kinds.get(config.parameters.get("PLACEMENT", ""), OddModel)(config)

    def close(self) -> None:
        """Nothing to give back."""
