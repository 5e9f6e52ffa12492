from pathlib import Path

import numpy as np
import pytest

from halimede.backends.api import Placement
from halimede.backends.identity.backend import IdentityBackend, IdentityModel, output_name
from halimede.config.model_config import ModelConfig
from halimede.tensors import BYTES, FP32, Memory, MemoryKind, Tensor, tensor_of
from tests.backends.fakes import (
    FakeBatch,
    FakeRequest,
    FakeResponses,
    asked,
    context,
    folder,
    idle_loop,
    model_config,
    place,
    spec,
)


class DeviceMemory:
    """Memory that the host cannot reach: finds a hidden copy."""

    kind = MemoryKind.DEVICE
    device_id = 0
    byte_size = 8
    owner: object = None

    def host(self) -> memoryview:
        raise AssertionError("identity looked at the bytes")


def two_tensors() -> ModelConfig:
    return model_config(
        [spec("INPUT0", "FP32", [2]), spec("INPUT1", "BYTES", [1])],
        [spec("OUTPUT0", "FP32", [2]), spec("OUTPUT1", "BYTES", [1])],
        max_batch_size=8,
        backend="identity",
    )


def tensors(first: float) -> list[Tensor]:
    return [
        tensor_of("INPUT0", FP32, np.array([[first, 2]], np.float32)),
        tensor_of("INPUT1", BYTES, np.array([[b"ab"]], dtype=object)),
    ]


@pytest.mark.parametrize(("given", "expected"), [("INPUT0", "OUTPUT0"), ("INPUT", "OUTPUT"), ("x", "OUTPUTx")])
def test_output_name_of_input(given: str, expected: str) -> None:
    assert output_name(given) == expected


def test_identity_answers_each_request_with_its_own_memory() -> None:
    requests = [FakeRequest(tensors(first), ["OUTPUT0", "OUTPUT1"]) for first in (1, 5)]
    responses = FakeResponses()
    IdentityModel(two_tensors()).create_instance(place()).execute(FakeBatch(*requests), responses)
    for i, one in enumerate(requests):
        given, got = list(one.request.inputs.values()), responses.sent[i]
        assert [t.name for t in got] == ["OUTPUT0", "OUTPUT1"]
        assert [t.memory for t in got] == [t.memory for t in given]
        assert [(t.datatype, t.shape) for t in got] == [(FP32, (1, 2)), (BYTES, (1, 1))]


def test_identity_sends_only_what_was_asked_for() -> None:
    responses = FakeResponses()
    batch = FakeBatch(FakeRequest(tensors(1), ["OUTPUT1"]), FakeRequest(tensors(1), ["OUTPUT0"]))
    IdentityModel(two_tensors()).create_instance(place()).execute(batch, responses)
    assert {i: [t.name for t in sent] for i, sent in responses.sent.items()} == {0: ["OUTPUT1"], 1: ["OUTPUT0"]}


def test_identity_drops_an_input_without_an_output() -> None:
    config = model_config([spec("INPUT0", "FP32", [2]), spec("extra", "FP32", [2])], [spec("OUTPUT0", "FP32", [2])])
    given = [tensor_of(name, FP32, np.zeros(2, np.float32)) for name in ("extra", "INPUT0")]
    responses = FakeResponses()
    IdentityModel(config).create_instance(place()).execute(FakeBatch(FakeRequest(given, ["OUTPUT0"])), responses)
    assert [t.name for t in responses.sent[0]] == ["OUTPUT0"]


def test_identity_never_touches_device_memory() -> None:
    config = model_config([spec("INPUT0", "FP32", [2])], [spec("OUTPUT0", "FP32", [2])])
    memory: Memory = DeviceMemory()
    batch = FakeBatch(FakeRequest([Tensor("INPUT0", FP32, (2,), memory)], ["OUTPUT0"]))
    responses = FakeResponses()
    IdentityModel(config).create_instance(place()).execute(batch, responses)
    assert responses.sent[0][0].memory is memory


def test_identity_backend_needs_no_file(tmp_path: Path) -> None:
    with idle_loop() as loop:
        backend = IdentityBackend(context(loop))
        where = folder(tmp_path)
        assert backend.describe(asked(), where, "") is None
        model = backend.open(two_tensors(), where)
        assert (model.placement, model.inline_safe) == (Placement.THREAD, True)
        instance = model.create_instance(place())
        instance.close()
        model.close()
        backend.close()
