"""The package's messages and tritonclient's can be imported in one process, in either order."""

import subprocess
import sys

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from halimede.protocol import inference_pb2, model_config_pb2, pool

OURS_FIRST = """
import sys
from halimede.protocol import inference_pb2, model_config_pb2
assert not {"grpc", "tritonclient"}.intersection(sys.modules)
from tritonclient.grpc import service_pb2, InferInput
"""
THEIRS_FIRST = """
from tritonclient.grpc import service_pb2, InferInput
from halimede.protocol import inference_pb2, model_config_pb2
"""
ANOTHER_VERSION = """
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
file = descriptor_pb2.FileDescriptorProto(name="grpc_service.proto", package="inference", syntax="proto3")
file.message_type.add(name="ModelInferRequest").field.add(name="id", number=3, type="TYPE_STRING")
file.message_type.add(name="ModelConfig")
made = descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
class service_pb2:
    ModelInferRequest = message_factory.GetMessageClass(made.message_types_by_name["ModelInferRequest"])
from halimede.protocol import inference_pb2, model_config_pb2
"""
WORKS = """
theirs = service_pb2.ModelInferRequest(id="7")
ours = inference_pb2.ModelInferRequest.FromString(theirs.SerializeToString())
assert ours.id == "7" and type(ours) is not type(theirs)
assert inference_pb2.ModelConfigResponse().config == model_config_pb2.ModelConfig()
tensor = inference_pb2.ModelInferRequest.InferInputTensor(name="X")
assert inference_pb2.ModelInferRequest(inputs=[tensor]).inputs[0].name == "X"
assert model_config_pb2.ModelInstanceGroup.KIND_GPU == 1
assert model_config_pb2.DataType.Name(model_config_pb2.TYPE_FP32) == "TYPE_FP32"
"""


@pytest.mark.parametrize("implementation", ["upb", "python"])
@pytest.mark.parametrize(
    "imports", [OURS_FIRST, THEIRS_FIRST, ANOTHER_VERSION], ids=["ours_first", "theirs_first", "another_version"]
)
def test_messages_and_those_of_a_client_in_one_process(imports: str, implementation: str) -> None:
    """In the default pool, `ANOTHER_VERSION` would be an error: it has the same names with other fields."""
    environment = {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation, "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", imports + WORKS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 0, done.stderr


def test_classes_name_their_module() -> None:
    assert inference_pb2.ModelInferRequest.__module__ == "halimede.protocol.inference_pb2"
    assert inference_pb2.ModelInferRequest.InferInputTensor.__module__ == "halimede.protocol.inference_pb2"
    assert model_config_pb2.ModelConfig.__module__ == "halimede.protocol.model_config_pb2"


def test_file_can_be_defined_twice() -> None:
    names = {"__name__": "again"}
    assert pool.define(names, model_config_pb2.DESCRIPTOR.serialized_pb) is model_config_pb2.DESCRIPTOR


def test_other_file_with_a_known_name_is_refused() -> None:
    other = FileDescriptorProto(name=model_config_pb2.DESCRIPTOR.name, syntax="proto3")
    with pytest.raises(TypeError):
        pool.define({"__name__": "other"}, other.SerializeToString())
