"""gRPC calls with serialized messages: a case has the request as protobuf text or bytes, and the answer stays bytes.

Messages are those of `tritonclient.grpc.service_pb2`. The client is grpcio, which both servers must satisfy. Every call
has a time limit.
"""

from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import message_factory, text_format
from tritonclient.grpc import service_pb2

TIMEOUT = 30.0  # seconds for one call
SERVICE = "inference.GRPCInferenceService"
STREAM = "ModelStreamInfer"
_METHODS = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name


@dataclass(frozen=True, slots=True)
class Call:
    """A call. Only a stream has several `messages`. An `rpc` with a slash is the whole path of a method."""

    rpc: str
    messages: tuple[str | bytes, ...]
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def path(self) -> str:
        return self.rpc if "/" in self.rpc else f"/{SERVICE}/{self.rpc}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The received messages, and the status of the call."""

    messages: tuple[bytes, ...]
    code: str
    details: str


def serialise(call: Call) -> tuple[bytes, ...]:
    """The messages of the call as bytes."""
    return tuple(m if isinstance(m, bytes) else _parsed(call.rpc, m).SerializeToString() for m in call.messages)


def _parsed(rpc: str, text: str) -> Any:
    return text_format.Parse(text, message_factory.GetMessageClass(_METHODS[rpc].input_type)())


def as_text(rpc: str, message: bytes) -> str:
    """A response message as protobuf text, with sorted maps; in hexadecimal if the method is not Triton's."""
    if rpc not in _METHODS:
        return message.hex()
    found = message_factory.GetMessageClass(_METHODS[rpc].output_type).FromString(message)
    return str(text_format.MessageToString(found)).rstrip("\n")


def _same(message: bytes) -> bytes:
    return message


def make(port: int, call: Call) -> Outcome:
    """Makes the call on its own channel. An error status is an outcome like any other."""
    found: list[bytes] = []
    requests = serialise(call)
    with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.max_receive_message_length", -1)]) as channel:
        try:
            if call.rpc == STREAM:
                stream = channel.stream_stream(call.path, _same, _same)
                found.extend(stream(iter(requests), timeout=TIMEOUT, metadata=call.metadata))
            else:
                unary = channel.unary_unary(call.path, _same, _same)
                found.append(unary(requests[0], timeout=TIMEOUT, metadata=call.metadata))
        except grpc.RpcError as error:
            return Outcome(tuple(found), error.code().name, error.details() or "")
    return Outcome(tuple(found), "OK", "")
