"""A Python backend on a loop that turns, and a model that runs the source code which a request brings."""

import asyncio
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from halimede.backends.api import BackendContext, InstancePlace, ModelFolder, Responses
from halimede.backends.python.backend import PythonBackend
from halimede.config.model_config import InstanceGroup, InstanceKind, ModelConfig
from halimede.tensors import Tensor
from tests.backends.fakes import message_of
from tests.workers.fakes import FakeBatch, FakeRequest, FakeResponses, FakeStream, on_loop, text_tensor

R = TypeVar("R", bound=Responses)

SCRIPTED = """
    import os, sys, threading, time
    import numpy as np
    import triton_python_backend_utils as pb_utils
    from triton_python_backend_utils import InferenceResponse as R

    def T(array, name="OUTPUT0"):
        return pb_utils.Tensor(name, np.array(array))

    class TritonPythonModel:
        def initialize(self, args):
            self.args = args

        def execute(self, requests):
            source = pb_utils.get_input_tensor_by_name(requests[0], "SOURCE").as_numpy()[0].decode()
            names = {"self": self, "requests": requests, **globals()}
            exec(source, names)
            return names.get("returned")
"""


ASYNCHRONOUS = """
    import asyncio, textwrap, threading
    import numpy as np
    import triton_python_backend_utils as pb_utils
    from triton_python_backend_utils import InferenceResponse as R

    def T(array, name="OUTPUT0"):
        return pb_utils.Tensor(name, np.array(array))

    class TritonPythonModel:
        async def execute(self, requests):
            source = pb_utils.get_input_tensor_by_name(requests[0], "SOURCE").as_numpy()[0].decode()
            names = {"self": self, "requests": requests, **globals()}
            exec("async def body():\\n" + textwrap.indent(source, "    "), names)
            return await names["body"]()
"""


def config(name: str = "m", **fields: Any) -> ModelConfig:
    values: dict[str, Any] = {
        "backend": "python",
        "platform": "",
        "max_batch_size": 0,
        "inputs": (),
        "outputs": (),
        "model_filename": "model.py",
        "instance_groups": (InstanceGroup(f"{name}_0", InstanceKind.CPU),),
        "message": message_of({"name": name}),
    }
    return ModelConfig(name=name, **{**values, **fields})


def folder(root: Path, source: str | None, filename: str = "model.py") -> ModelFolder:
    version = root / "m" / "1"
    version.mkdir(parents=True, exist_ok=True)
    if source is not None:
        (version / filename).write_text(textwrap.dedent(source))
    return ModelFolder(root / "m", version, 1)


PLACE = InstancePlace("m_0_0", InstanceKind.CPU, 0, 0, 1)


class Rig:
    """A backend on a loop that turns."""

    def __init__(self, loop: asyncio.AbstractEventLoop, settings: Mapping[str, str] | None = None) -> None:
        self.loop = loop
        self.backend = PythonBackend(BackendContext(loop, settings or {}))

    def start(self, where: ModelFolder, **fields: Any) -> Any:
        return self.backend.open(config(**fields), where).create_instance(PLACE)

    def begin(self, instance: Any, *requests: FakeRequest) -> FakeResponses:
        return self.pass_on(instance, FakeResponses(), *requests)

    def stream(self, instance: Any, *requests: FakeRequest) -> FakeStream:
        """The answers of a decoupled model."""
        return self.pass_on(instance, FakeStream(len(requests)), *requests)

    def pass_on(self, instance: Any, responses: R, *requests: FakeRequest) -> R:
        on_loop(self.loop, lambda: instance.execute(FakeBatch(*requests), responses))
        return responses

    def close(self, instance: Any) -> None:
        instance.close()
        self.backend.close()

    def run(self, instance: Any, *requests: FakeRequest) -> FakeResponses:
        return self.begin(instance, *requests).wait()


class InProcessRig(Rig):
    """The same for models in this process: the server's part of the way to their threads and back."""

    def start(self, where: ModelFolder, **fields: Any) -> Any:
        parameters = {"EXECUTION": "in_process", **fields.pop("parameters", {})}
        return super().start(where, parameters=parameters, **fields)

    def pass_on(self, instance: Any, responses: R, *requests: FakeRequest) -> R:
        def run() -> None:
            instance.execute(FakeBatch(*requests), responses)
            responses.finished()

        instance.thread.submit(run)
        return responses


both_ways = pytest.fixture(params=[Rig, InProcessRig], ids=["process", "in_process"], scope="module")
"""Makes a fixture whose `request.param` makes the rig of models that behave alike wherever they run."""


def scripted(source: str, *inputs: Tensor, **fields: Any) -> FakeRequest:
    return FakeRequest(text_tensor("SOURCE", textwrap.dedent(source)), *inputs, **fields)
