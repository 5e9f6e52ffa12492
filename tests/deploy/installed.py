"""A server that was installed from a package or an image, and a model that needs no extra."""

import json
from collections.abc import Sequence
from pathlib import Path

from tests.compat.serving import Serving, write_model

_DOUBLE = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", data * 2)]) for data in inputs]
"""


class Installed(Serving):
    """`program` are the words that start `halimede`. The server looks for modules where it is installed only."""

    def __init__(self, program: Sequence[str | Path], repository: Path, log: Path, *flags: str) -> None:
        self._program = [str(word) for word in program]
        super().__init__(repository, log, *flags, environment={"HALIMEDE_COMPILED": "", "PYTHONPATH": ""})

    def command(self, repository: Path) -> Sequence[str]:
        words = super().command(repository)
        return [*self._program, *words[words.index("serve") :]]


def write_double(repository: Path) -> None:
    """Writes the Python model `double`."""
    (write_model(repository, "double", "INT32", backend="python") / "model.py").write_text(_DOUBLE)


def assert_doubles(serving: Serving) -> None:
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [2], "data": [1, 21]}
    status, answer = serving.ask("/v2/models/double/infer", json.dumps({"inputs": [tensor]}).encode())
    assert status == 200, answer
    assert answer["outputs"][0]["data"] == [2, 42]
