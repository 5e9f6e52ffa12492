"""The messages of the Triton client's package come without its client, and do not hinder whoever imports that."""

import subprocess
import sys

import pytest

BEFORE = """
import sys
from halimede.schema import model_config_pb2, service_pb2
assert not {"grpc", "tritonclient.grpc", "tritonclient.grpc.service_pb2"}.intersection(sys.modules)
import tritonclient.grpc
from tritonclient.grpc import model_config_pb2 as theirs
assert tritonclient.grpc.InferInput and tritonclient.grpc.service_pb2
assert theirs.ModelConfig is model_config_pb2.ModelConfig
assert tritonclient.grpc.service_pb2.ModelInferRequest is service_pb2.ModelInferRequest
"""
AFTER = """
import tritonclient.grpc
from halimede.schema import service_pb2
assert service_pb2 is tritonclient.grpc.service_pb2
"""
MISSING = """
import sys
sys.modules["tritonclient"] = None  # as if it were not installed
try:
    import halimede.schema
except ModuleNotFoundError:
    pass
else:
    raise AssertionError
assert "tritonclient.grpc" not in sys.modules
"""


@pytest.mark.parametrize("script", [BEFORE, AFTER, MISSING], ids=["before", "after", "missing"])
def test_messages_without_the_client(script: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
