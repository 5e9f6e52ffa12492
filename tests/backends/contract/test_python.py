"""The contract suite with Python models, in workers and in the server's own process."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from halimede.backends.api import BackendContext
from halimede.backends.python.backend import PythonBackend
from halimede.backends.testing import RELOADS, SITUATIONS, NotApplicable, Situation
from tests.backends.contract.checking import Declared, check

_MODEL = """import os, time
import numpy as np
import triton_python_backend_utils as pb_utils

ROLE, GATE = {role!r}, {gate!r}


def response(array):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)])


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        if ROLE == "complete":
            config.add_input({{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [2]}})
            config.add_output({{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [2]}})
        return config

    def initialize(self, args):
        self.seen = False

    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        if ROLE == "failing" and array[0, 0] < 0:
            raise ValueError("the first element is negative")
        while ROLE == "slow" and not os.path.exists(GATE):
            time.sleep(0.002)
        while ROLE == "watching" and not os.path.exists(GATE) and not request.is_cancelled():
            time.sleep(0.002)
        if ROLE == "again":
            self.seen = not self.seen
            if self.seen:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                return None
        if ROLE in ("decoupled", "lingering"):
            sender = request.get_response_sender()
            for _ in range(1 if ROLE == "lingering" else int(array[0, 0])):
                sender.send(response(array))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            while ROLE == "lingering" and not os.path.exists(GATE):
                time.sleep(0.002)
            return None
        return response(array)

    def execute_decoupled(self, requests):
        for request in requests:
            self.one(request)
"""
_ROLES = frozenset(
    {
        *("echo", "bytes", "ragged", "optional", "sequence", "complete", "failing"),
        *("slow", "watching", "again", "decoupled", "lingering"),
    }
)


class PythonAdapter(Declared):
    name = "python"
    parameters: Mapping[str, Any] = {}
    reloads = 5
    """Each takes a process."""
    cannot: Mapping[str, str] = {
        "wrong output shape": "a model answers each request by itself, in any shape",
        "wrong output datatype": "a model answers with any datatype (P77)",
        "unknown output": "the worker drops outputs that the request does not ask for (P75)",
        "broken file": "the error of a model that cannot be imported is Triton's, and blames nothing",
        "several batches in flight": "an instance has one batch at a time",
        "tensors on a device": "what a model computes on a device is its own",
    }

    def __init__(self, folder: Path) -> None:
        self._gate = folder / "gate"

    def create(self, context: BackendContext) -> PythonBackend:
        return PythonBackend(context)

    def write(self, role: str, version: Path, shape: Sequence[int]) -> Mapping[str, Any]:
        if role not in _ROLES:
            raise NotApplicable("a model.py cannot do this")
        text = _MODEL.format(role=role, gate=str(self._gate))
        if role in ("decoupled", "lingering"):
            text = text.replace(
                "    def execute(self, requests):\n        return", "    def _(self, requests):\n        return"
            )
            text = text.replace("execute_decoupled", "execute")
        (version / "model.py").write_text(text)
        return {"parameters": self.parameters}

    def release(self) -> None:
        self._gate.touch()


class InProcessAdapter(PythonAdapter):
    reloads = RELOADS
    parameters: Mapping[str, Any] = {"EXECUTION": {"string_value": "in_process"}}
    cannot: Mapping[str, str] = {**PythonAdapter.cannot, "killed child": "it runs in the server's process"}


@pytest.mark.parametrize("adapter", [PythonAdapter, InProcessAdapter])
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: str(each.name))
def test_python_keeps_the_contract(situation: Situation, adapter: type[PythonAdapter], tmp_path: Path) -> None:
    check(situation, adapter(tmp_path), tmp_path)
