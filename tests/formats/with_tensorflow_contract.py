"""The contract suite with SavedModels, in child processes of an environment that has TensorFlow."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from halimede.backends.api import Backend, BackendContext
from halimede.backends.creation import create_backend
from halimede.backends.tensorflow import TRAITS
from halimede.backends.testing import SITUATIONS, Situation
from tests.backends.contract.checking import Declared, check
from tests.formats.built import TENSORFLOW, place
from tests.formats.with_tflite_contract import CANNOT, fields_of, name_of


class TensorFlowAdapter(Declared):
    name = "tensorflow"
    reloads = 4
    cannot: Mapping[str, str] = CANNOT

    def create(self, context: BackendContext) -> Backend:
        return create_backend(TRAITS, context)

    def write(self, role: str, version: Path, shape: Sequence[int]) -> Mapping[str, Any]:
        if role == "broken":
            (version / "model.savedmodel").mkdir()
            (version / "model.savedmodel" / "saved_model.pb").write_bytes(b"no model")
        else:
            place(f"{name_of(role, shape)}.savedmodel", version, "model.savedmodel")
        environment = {"EXECUTION_ENV_PATH": {"string_value": str(TENSORFLOW)}}
        alone = {"kind": "KIND_CPU", "count": 1}  # each instance takes seconds to start
        return {
            **fields_of(role),
            "instance_group": [alone],
            "platform": "tensorflow_savedmodel",
            "parameters": environment,
        }


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: str(each.name))
def test_tensorflow_keeps_the_contract(situation: Situation, tmp_path: Path) -> None:
    check(situation, TensorFlowAdapter(), tmp_path)
