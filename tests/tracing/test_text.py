"""The text of traces: Triton's order and form (T3 to T5, T7)."""

import json
from typing import Any

import numpy as np
import pytest

from halimede.errors import Internal, Unavailable
from halimede.tensors import datatype_named, tensor_of
from halimede.traces import GRPC, TENSORS, TIMESTAMPS, RootTrace
from halimede.tracing.text import elements, text_of
from tests.fakes import RecordingReply
from tests.tracing.traces import Traced, request_for, response_for

COMPUTE = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]


def objects(root: RootTrace | None) -> list[dict[str, Any]]:
    assert root is not None
    read: list[dict[str, Any]] = json.loads(f"[{text_of(root)}]")
    return read


def names(root: RootTrace | None, of: int = 1) -> list[str]:
    found = [one for one in objects(root) if one["id"] == of]
    return [stamp["name"] for one in found for stamp in one.get("timestamps", [])]


def test_trace_of_http_has_the_order_of_the_real_server() -> None:
    traced = Traced()
    traced.begin()
    root = traced.answered()
    assert names(root) == [
        *("HTTP_RECV_START", "HTTP_RECV_END", "REQUEST_START", "QUEUE_START", "INFER_RESPONSE_COMPLETE"),
        *(*COMPUTE, "REQUEST_END", "HTTP_SEND_START", "HTTP_SEND_END"),
    ]
    assert objects(root)[2] == {"id": 1, "model_name": "m", "model_version": 1, "request_id": "r"}
    assert objects(root)[3] == {"id": 1, "timestamps": [{"name": "REQUEST_START", "ns": 10}]}


def test_trace_of_grpc_has_the_stamps_of_its_front_end_last() -> None:
    traced = Traced(front=GRPC)
    traced.begin()
    assert names(traced.answered()) == [
        *("REQUEST_START", "QUEUE_START", *COMPUTE, "REQUEST_END", "GRPC_WAITREAD_START", "GRPC_WAITREAD_END"),
        *("INFER_RESPONSE_COMPLETE", "GRPC_SEND_START", "GRPC_SEND_END"),
    ]


def test_trace_of_many_responses_has_the_stamps_of_each() -> None:
    traced = Traced(front=GRPC, tells_end=False)
    traced.begin()
    traced.answered(response_for(1), False)
    traced.answered(response_for(2), False)
    traced.root.send(None, True)
    sends = ["INFER_RESPONSE_COMPLETE", *["GRPC_SEND_START", "GRPC_SEND_END"] * 2]
    assert names(traced.stream.roots[0])[-5:] == sends


def test_trace_of_a_client_that_has_gone_has_no_stamps_of_a_response() -> None:
    traced = Traced(front=GRPC, gone=True)
    traced.begin()
    assert names(traced.answered())[-3:] == ["REQUEST_END", "GRPC_WAITREAD_START", "GRPC_WAITREAD_END"]


def test_trace_without_compute_has_no_compute_stamps() -> None:
    traced = Traced(front=GRPC)
    traced.begin([10, 0, 0, 0, 0, 0])
    root = traced.answered(Internal("broke"))
    assert names(root)[:3] == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]


def test_trace_of_a_refused_request_has_no_end() -> None:
    refusal = Unavailable("full")
    refusal.refused = True
    traced = Traced()
    traced.begin([10, 20, 0, 0, 0, 0])
    assert names(traced.answered(refusal)) == ["HTTP_RECV_START", "HTTP_RECV_END", "REQUEST_START", "QUEUE_START"]


def test_trace_of_a_request_that_never_began_is_dropped() -> None:
    traced = Traced()
    assert traced.answered(Internal("no such model")) is None
    assert traced.reply.answers


def test_child_comes_before_its_parent_and_names_it() -> None:
    """Also if it is answered later than its parent (T7)."""
    traced = Traced()
    traced.begin()
    inner = request_for("inner", "i")
    reply = RecordingReply()
    slot = traced.root.child(inner, reply)
    assert inner.trace is not None
    inner.trace.begun(inner, 3, [11, 21, 31, 41, 51, 61])
    assert traced.answered() is None
    slot.send(response_for(), True)
    root = traced.stream.roots[0]
    assert objects(root)[0] == {"id": 2, "model_name": "inner", "model_version": 3, "request_id": "i", "parent_id": 1}
    assert names(root, 2) == ["REQUEST_START", "QUEUE_START", *COMPUTE, "REQUEST_END"]
    assert len(reply.answers) == 1


def test_tensors_are_written_with_their_data() -> None:
    """Inputs and outputs are written. Without the level TIMESTAMPS there are no stamps (T5)."""
    traced = Traced(TENSORS)
    traced.begin()
    root = traced.answered()
    tensor = {"name": "INPUT0", "data": "1,2", "shape": "2", "dtype": "INT32"}
    output = {"name": "OUTPUT0", "data": "3", "shape": "1", "dtype": "INT32"}
    assert objects(root) == [
        {"id": 1, "activity": "TENSOR_QUEUE_INPUT", "tensor": tensor},
        {"id": 1, "activity": "TENSOR_BACKEND_OUTPUT", "tensor": output},
    ]
    both = Traced(TENSORS | TIMESTAMPS)
    both.begin()
    kinds = [
        next(key for key in ("timestamps", "activity", "model_name") if key in one) for one in objects(both.answered())
    ]
    assert kinds[2:7] == ["model_name", "timestamps", "timestamps", "activity", "activity"]


@pytest.mark.parametrize(
    ("kind", "array", "shown"),
    [
        (
            "FP32",
            np.array([1.5, 2, 1e-7, 1e10, np.pi, np.inf, np.nan], np.float32),
            "1.5,2,1e-07,1e+10,3.14159,inf,nan",
        ),
        ("FP64", np.array([1e300]), "1e+300"),
        ("FP16", np.array([1.5], np.float16), ""),
        ("BF16", np.array([1], np.uint16), ""),
        ("BOOL", np.array([True, False]), "1,0"),
        ("INT8", np.array([65, -3], np.int8), "A,\u00fd"),
        ("UINT64", np.array([2**64 - 1], np.uint64), "18446744073709551615"),
        ("BYTES", np.array([b'a"b', b"", b"\xff\n"], object), '"a"b","","\ufffd\n"'),
    ],
)
def test_elements_are_written_as_the_real_server_does(kind: str, array: Any, shown: str) -> None:
    """Numbers, BOOL, BYTES, and 8-bit integers as characters (T3)."""
    tensor = tensor_of("X", datatype_named(kind), array)
    assert ",".join(elements(tensor.datatype, tensor.shape, bytes(tensor.memory.host()))) == shown


def test_text_is_json_for_all_names_and_data() -> None:
    traced = Traced(TENSORS | TIMESTAMPS)
    traced.request.id = 'a"\n\\'
    traced.request.inputs["X"] = tensor_of('n"', datatype_named("BYTES"), np.array([b'"\\\x00'], object))
    traced.begin()
    assert objects(traced.answered())[2]["request_id"] == 'a"\n\\'
