"""A backend with a device, a stream that works by itself, three batches in flight, and failures: as runtimes for GPUs
have them, without a GPU."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np

from halimede.backends.api import (
    BaseBackend,
    BaseInstance,
    BaseModel,
    Batch,
    BatchedRequest,
    InstancePlace,
    ModelFolder,
    Placement,
    Responses,
)
from halimede.backends.testing.devices import FakeArray, FakeDevice
from halimede.backends.traits import Completes, DeviceKind, Home, Traits
from halimede.config.model_config import ModelConfig
from halimede.devices import CopyCounter
from halimede.platform.wakeable_thread import WakeableThread
from halimede.tensors import FP32, tensor_of

TRAITS = Traits(
    "fake",
    "tests.backends.contract.fake_backend:FakeBackend",
    completes=Completes.NEVER,
    optional_inputs=True,
    devices=frozenset({DeviceKind.CPU, DeviceKind.GPU}),
    homes=(Home.SERVER, Home.CHILD),
)


def wait_for(file: Path, requests: Sequence[BatchedRequest] = ()) -> None:
    """Blocks until a file exists or the client of one of the requests has gone, a minute at most."""
    for _ in range(30_000):
        if file.exists() or any(request.cancelled for request in requests):
            return
        sleep(0.002)


class FakeInstance(BaseInstance):
    """Gathers into memory of its device, computes there, and leaves its outputs there. Of a slow model the
    stream does nothing until the file `gate` exists."""

    def __init__(self, role: str, device_id: int, copies: CopyCounter, gate: Path) -> None:
        self._role = role
        self._gate = gate
        self._stream = WakeableThread(f"stream of device {device_id}")
        self.device = FakeDevice(device_id, copies=copies, kick=self._kick)
        self._seen: set[object] = set()

    def execute(self, batch: Batch, responses: Responses) -> None:
        device = self.device
        if self._role in ("decoupled", "lingering"):
            self._stream.submit(partial(self._answer_often, batch, responses))
            return
        given = device.empty(batch.shape("INPUT0"), FP32)
        batch.gather("INPUT0", given, device)
        result = device.empty(tuple(given.shape), FP32)
        if self._role == "watching":
            device.do(partial(wait_for, self._gate, batch.requests))
        device.do(partial(self._compute, given, result))
        if self._role == "again" and not self._seen:
            self._seen.add(batch.requests[0])
            responses.again(0)
        else:
            responses.scatter(self._outputs(result), device)
        device.do(partial(self._end, responses))

    def _outputs(self, result: FakeArray) -> dict[str, Any]:
        """On the device, except for an array that the server can see to be wrong."""
        if self._role == "wrong shape":
            return {"OUTPUT0": self.device.rows(result, 1, result.shape[0])}
        if self._role == "wrong datatype":
            return {"OUTPUT0": np.zeros(tuple(result.shape))}
        return {"OUTPUT9" if self._role == "unknown output" else "OUTPUT0": result}

    def close(self) -> None:
        self._stream.stop()

    def _kick(self) -> None:
        self._stream.submit(self._work)

    def _work(self) -> None:
        if self._role == "slow":
            wait_for(self._gate)
        self.device.run()

    def _compute(self, given: FakeArray, result: FakeArray) -> None:
        if self._role == "failing" and given.elements[0, 0] < 0:
            self.device.failure = ValueError("the first element is negative")
        result.elements[...] = given.elements

    def _end(self, responses: Responses) -> None:
        self.device.failure = None
        responses.finished()

    def _answer_often(self, batch: Batch, responses: Responses) -> None:
        for i in range(len(batch.requests)):
            array = np.array(batch.arrays_of(i)["INPUT0"])
            for _ in range(1 if self._role == "lingering" else int(array[0, 0])):
                responses.send(i, [tensor_of("OUTPUT0", FP32, array)], final=False)
            responses.send(i, None)
        if self._role == "lingering":
            wait_for(self._gate)
        responses.finished()


class FakeModel(BaseModel):
    placement = Placement.ASYNC
    in_flight = 3

    def __init__(self, role: str, gate: Path) -> None:
        self.copies = CopyCounter()
        self._role = role
        self._gate = gate

    def create_instance(self, place: InstancePlace) -> FakeInstance:
        return FakeInstance(self._role, place.device_id, self.copies, self._gate)


class FakeBackend(BaseBackend):
    traits = TRAITS

    def open(self, config: ModelConfig, folder: ModelFolder) -> FakeModel:
        return FakeModel(config.parameters["role"], Path(config.parameters["gate"]))
