"""The contract suite finds mistakes: backends that are wrong in one respect do not pass."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede.backends.api import (
    Backend,
    BackendContext,
    BaseBackend,
    BaseInstance,
    BaseModel,
    Batch,
    InstancePlace,
    ModelFolder,
    Responses,
)
from halimede.backends.testing import SITUATIONS, Adapter, NotApplicable
from halimede.backends.testing.bench import Array
from halimede.backends.testing.devices import FakeDevice
from halimede.backends.traits import Completes, Traits
from halimede.config.model_config import ModelConfig
from halimede.devices import DeviceArray, HostArray
from halimede.tensors import BYTES, INT32
from tests.backends.contract.fake_backend import FakeBackend, FakeInstance, FakeModel, wait_for
from tests.backends.contract.test_fake import FakeAdapter

BY_NAME = {each.name: each for each in SITUATIONS}


class BlockingInstance(FakeInstance):
    """Returns from `execute` only when the batch is over."""

    def execute(self, batch: Batch, responses: Responses) -> None:
        super().execute(batch, responses)
        if self._role == "slow":
            wait_for(self._gate)


class LeakingInstance(FakeInstance):
    """Leaves its thread behind."""

    def close(self) -> None:
        """Forgets to stop the stream."""


class ReusingInstance(FakeInstance):
    """Has one buffer for the results of all batches, on the host."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._buffer = np.empty((2, 512), np.float32)

    def execute(self, batch: Batch, responses: Responses) -> None:
        self._buffer[...] = batch.arrays()["INPUT0"]
        responses.scatter({"OUTPUT0": self._buffer})
        responses.finished()


class ForgetfulDevice(FakeDevice):
    """Copies nothing from device to device."""

    def copy(self, into: DeviceArray | HostArray, source: DeviceArray | HostArray) -> None:
        if isinstance(into, np.ndarray) or isinstance(source, np.ndarray):
            super().copy(into, source)


class ForgetfulInstance(FakeInstance):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.device = ForgetfulDevice(self.device.place.device_id, copies=self.device.copies, kick=self._kick)


class Mutant(FakeAdapter):
    """The fake backend with another instance."""

    patience = 0.5

    def __init__(self, folder: Path, instance: type[FakeInstance]) -> None:
        super().__init__(folder)
        self._instance = instance

    def create(self, context: BackendContext) -> Backend:
        instance = self._instance

        class MutantModel(FakeModel):
            def create_instance(self, place: InstancePlace) -> FakeInstance:
                return instance(self._role, place.device_id, self.copies, self._gate)

        class MutantBackend(FakeBackend):
            def open(self, config: ModelConfig, folder: ModelFolder) -> FakeModel:
                return MutantModel(config.parameters["role"], Path(config.parameters["gate"]))

        return MutantBackend(context)


@pytest.mark.parametrize(
    ("instance", "situation", "text"),
    [
        (BlockingInstance, "several batches in flight", "`execute` did not return 3 times before a batch had ended"),
        (LeakingInstance, "reload", "there are more threads than before"),
        (ForgetfulInstance, "tensors on a device", "instead of"),
        (ReusingInstance, "kept answers", "instead of"),
    ],
)
def test_suite_finds(instance: type[FakeInstance], situation: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=text):
        BY_NAME[situation].check(Mutant(tmp_path, instance), tmp_path)


class TextLengths(Adapter):
    """A backend whose input is BYTES and whose output is INT32: the lengths of texts."""

    name = "lengths"
    input, output = "TEXT", "LENGTH"
    input_type, output_type = BYTES, INT32

    def create(self, context: BackendContext) -> Backend:
        return LengthBackend(context)

    def write(self, role: str, version: Path, shape: Sequence[int]) -> Mapping[str, Any]:
        if role != "echo":
            raise NotApplicable("it only measures")
        return {}

    def encode(self, rows: Array) -> Array:
        return np.array([[b"x" * int(row[0])] for row in rows], object)

    def expected(self, rows: Array) -> Array:
        return rows[:, :1].astype(np.int32)


class LengthInstance(BaseInstance):
    def execute(self, batch: Batch, responses: Responses) -> None:
        texts = batch.arrays()["TEXT"]
        responses.scatter({"LENGTH": np.vectorize(len, otypes=[np.int32])(texts)})


class LengthModel(BaseModel):
    def create_instance(self, place: InstancePlace) -> LengthInstance:
        return LengthInstance()


class LengthBackend(BaseBackend):
    traits = Traits("lengths", completes=Completes.NEVER)

    def open(self, config: ModelConfig, folder: ModelFolder) -> LengthModel:
        return LengthModel()


@pytest.mark.parametrize("name", ["batch of one", "batch of many", "large batch", "without batching", "kept answers"])
def test_suite_runs_a_backend_with_tensors_of_its_own(name: str, tmp_path: Path) -> None:
    BY_NAME[name].check(TextLengths(), tmp_path)


def test_situation_that_needs_any_size_does_not_apply_to_tensors_of_fixed_sizes(tmp_path: Path) -> None:
    with pytest.raises(NotApplicable, match="sizes of their own"):
        BY_NAME["empty tensor"].check(TextLengths(), tmp_path)
