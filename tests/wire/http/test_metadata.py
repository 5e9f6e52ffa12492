"""Metadata and statistics, byte by byte as Triton writes them."""

from halimede.engine_port import (
    BatchCounts,
    Duration,
    ModelCounts,
    ModelInfo,
    ResponseCounts,
    ServerInfo,
    TensorInfo,
)
from halimede.tensors import FP32, INT32
from halimede.wire.http.metadata import encode_model_metadata, encode_server_metadata, encode_statistics


def test_server_metadata() -> None:
    facts = ServerInfo("triton", "2.51.0", ("classification", "model_repository(unload_dependents)"))
    assert encode_server_metadata(facts) == (
        b'{"name":"triton","version":"2.51.0","extensions":["classification","model_repository(unload_dependents)"]}'
    )


def test_model_metadata() -> None:
    facts = ModelInfo(
        "pair",
        (2, 3),
        "identity",
        (TensorInfo("INPUT0", INT32, (-1, 2)), TensorInfo("INPUT1", FP32, (-1, -1))),
        (TensorInfo("OUTPUT0", INT32, ()),),
    )
    assert encode_model_metadata(facts) == (
        b'{"name":"pair","versions":["2","3"],"platform":"identity","inputs":[{"name":"INPUT0","datatype":"INT32",'
        b'"shape":[-1,2]},{"name":"INPUT1","datatype":"FP32","shape":[-1,-1]}],"outputs":[{"name":"OUTPUT0",'
        b'"datatype":"INT32","shape":[]}]}'
    )


def test_statistics() -> None:
    names = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
    inference = {name: Duration(number, number * 10) for number, name in enumerate(names)}
    batch = BatchCounts(20, Duration(3, 0), Duration(3, 65897), Duration(3, 1))
    counts = ModelCounts("int32", 1, 1795228334681, 15, 12, inference, (batch,))
    assert encode_statistics([counts]) == (
        b'{"model_stats":[{"name":"int32","version":"1","last_inference":1795228334681,"inference_count":15,'
        b'"execution_count":12,"inference_stats":{"success":{"count":0,"ns":0},"fail":{"count":1,"ns":10},'
        b'"queue":{"count":2,"ns":20},"compute_input":{"count":3,"ns":30},"compute_infer":{"count":4,"ns":40},'
        b'"compute_output":{"count":5,"ns":50},"cache_hit":{"count":6,"ns":60},"cache_miss":{"count":7,"ns":70}},'
        b'"response_stats":{},"batch_stats":[{"batch_size":20,"compute_input":{"count":3,"ns":0},'
        b'"compute_infer":{"count":3,"ns":65897},"compute_output":{"count":3,"ns":1}}],"memory_usage":[]}]}'
    )


def test_statistics_of_responses() -> None:
    responses = (ResponseCounts(success=Duration(2, 9)), ResponseCounts(cancel=Duration(1, 3)))
    counts = ModelCounts("m", 1, 0, 0, 0, {}, (), responses)
    none = b'{"count":0,"ns":0}'
    phases = b'"compute_infer":%b,"compute_output":%b,' % (none, none)
    assert b'"response_stats":{"0":{%b"success":{"count":2,"ns":9},"fail":%b,"empty_response":%b,"cancel":%b},' % (
        phases,
        none,
        none,
        none,
    ) in encode_statistics([counts])
    assert b'"1":{%b"success":%b,' % (phases, none) in encode_statistics([counts])


def test_statistics_of_no_model() -> None:
    assert encode_statistics([]) == b'{"model_stats":[]}'
