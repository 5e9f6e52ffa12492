"""Compressed bodies of inferences: what is done on the loop, what on another thread, and what an error looks like."""

import gzip
import random
import struct
import tracemalloc
import zlib

import pytest

from halimede.errors import Invalid
from halimede.front.http.compression import (
    MAX_COMPRESSED_ON_LOOP_BYTES,
    MAX_DEFLATED_ON_LOOP_BYTES,
    MAX_INFLATED_ON_LOOP_BYTES,
)
from halimede.front.http.handling import JSON, LARGE_BYTES, OFFLOAD_BYTES
from halimede.front.http.service import MAX_TRIED_BYTES
from halimede.requests import Answer, InferResponse
from halimede.tensors import INT32, HostMemory, Tensor
from tests.front.http_fakes import MAX_INPUT_SIZE, FakeExchange, Rig

ITEM = b'{"inputs":[{"name":"I","shape":[1],"datatype":"INT32","data":[7]}]%b}'
BODY = ITEM % b""
GZIPPED = gzip.compress(BODY, mtime=0)  # the time would make names of tests that differ between two runs
RAW = {"inference_header_content_length": "0"}


def infer(rig: Rig, body: bytes, **headers: str) -> FakeExchange:
    return rig.ask("POST", "/v2/models/m/infer", body, **headers)


def answered(answer: Answer, **headers: str) -> tuple[Rig, FakeExchange]:
    rig = Rig()
    exchange = infer(rig, BODY, **headers)
    rig.port.inferences[0].reply.send(answer, True)
    return rig, exchange


def response(count: int) -> InferResponse:
    """Numbers that hardly shrink."""
    draw = random.Random(1)
    data = struct.pack(f"<{count}i", *(draw.randrange(10**9) for _ in range(count)))
    return InferResponse("", "m", 1, [Tensor("O", INT32, (count,), HostMemory(data))])


# Requests.


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("body", [GZIPPED, zlib.compress(BODY)], ids=["gzip", "zlib"])
def test_small_compressed_request_is_read_at_once(coding: str, body: bytes) -> None:
    rig = Rig()
    infer(rig, body, content_encoding=coding)
    (entry,) = rig.port.inferences
    assert entry.request.inputs["I"].memory.host() == struct.pack("<i", 7)
    assert not len(rig.offload)


def test_request_that_becomes_large_is_decompressed_on_another_thread() -> None:
    rig = Rig()
    large = BODY + b" " * MAX_INFLATED_ON_LOOP_BYTES
    infer(rig, gzip.compress(large), content_encoding="gzip")
    assert not rig.port.inferences
    rig.offload.run()
    assert len(rig.port.inferences) == 1


def test_large_compressed_request_is_offloaded_whatever_its_result() -> None:
    """Empty blocks yield nothing, and so many of them take half a second."""
    rig = Rig()
    exchange = infer(rig, zlib.compress(b"") + bytes(MAX_COMPRESSED_ON_LOOP_BYTES), content_encoding="gzip", **RAW)
    assert not rig.port.inferences
    rig.offload.run()
    assert len(rig.port.inferences) == 1
    assert not exchange.answers


@pytest.mark.parametrize(("size", "lanes"), [(LARGE_BYTES, [False]), (LARGE_BYTES + 1, [False, True])])
def test_compressed_request_is_large_work_only_if_it_yields_much(size: int, lanes: list[bool]) -> None:
    rig = Rig()
    infer(rig, gzip.compress(BODY + b" " * (size - len(BODY))), content_encoding="gzip")
    while len(rig.offload):
        rig.offload.run()
    assert (rig.offload.lanes, len(rig.port.inferences)) == (lanes, 1)


def test_compressed_request_of_many_bytes_is_large_work_at_once() -> None:
    rig = Rig()
    infer(rig, zlib.compress(b"") + bytes(MAX_TRIED_BYTES), content_encoding="gzip", **RAW)
    assert rig.offload.lanes == [True]


def test_inflated_bodies_do_not_pile_up() -> None:
    """Decompression and decoding are one piece of work, so no decompressed body waits for a thread."""
    rig = Rig()
    large = gzip.compress(BODY + b" " * (2 * OFFLOAD_BYTES))
    exchanges = [infer(rig, large, content_encoding="gzip") for _ in range(5)]
    for done in range(1, 6):
        rig.offload.run()
        assert len(rig.port.inferences) == done
    assert not len(rig.offload)
    assert all(not exchange.body for exchange in exchanges), "nobody needs the compressed body any more"


def test_header_length_of_a_body_decompressed_on_another_thread() -> None:
    rig = Rig()
    large = gzip.compress(BODY + b" " * MAX_INFLATED_ON_LOOP_BYTES)
    exchange = infer(rig, large, content_encoding="gzip", inference_header_content_length="x")
    rig.offload.run()
    text = b'{"error":"Unable to parse Inference-Header-Content-Length, got: x"}'
    assert exchange.answer == (400, JSON, text)


def test_header_length_counts_bytes_of_what_was_inflated() -> None:
    head = ITEM.replace(b'"data":[7]', b'"parameters":{"binary_data_size":4}') % b""
    rig = Rig()
    body = zlib.compress(head + struct.pack("<i", -5))
    infer(rig, body, content_encoding="deflate", inference_header_content_length=str(len(head)))
    assert rig.port.inferences[0].request.inputs["I"].memory.host() == struct.pack("<i", -5)


def test_empty_compressed_stream_is_a_raw_request() -> None:
    rig = Rig()
    infer(rig, gzip.compress(b""), content_encoding="gzip")
    raw = rig.port.inferences[0].request.raw
    assert raw is not None
    assert bytes(raw.host()) == b""


def test_body_of_a_client_that_has_gone_is_not_decompressed() -> None:
    rig = Rig()
    exchange = infer(rig, gzip.compress(BODY + b" " * (4 << 20)), content_encoding="gzip")
    exchange.leave()
    tracemalloc.start()
    try:
        rig.offload.run()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20, "it was inflated for nobody"
    assert not rig.port.inferences
    assert not exchange.answers


def test_request_over_the_limit_is_refused_and_not_read() -> None:
    rig = Rig()
    exchange = infer(rig, zlib.compress(bytes(MAX_INPUT_SIZE + 1)), content_encoding="gzip", **RAW)
    rig.offload.run()
    rig.offload.run()
    text = (
        f"Decompressed data size exceeds the maximum allowed value of {MAX_INPUT_SIZE} bytes. "
        "Use --http-max-input-size to increase the limit."
    )
    assert exchange.answer == (400, JSON, b'{"error":"%b"}' % text.encode())
    assert not rig.port.inferences


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", b"nothing to be decompressed"),
        (BODY, b"encountered inconsistent stream state during decompression"),
        (GZIPPED[:-1], b"encountered inconsistent stream state during decompression"),
    ],
    ids=["empty", "plain", "cut off"],
)
def test_body_without_its_coding_is_refused(body: bytes, text: bytes) -> None:
    exchange = infer(Rig(), body, content_encoding="gzip", inference_header_content_length="wrong")
    assert exchange.answer == (400, JSON, b'{"error":"%b"}' % text)


def test_unknown_coding_is_answered_with_those_that_are_known() -> None:
    exchange = infer(Rig(), b"", content_encoding="br")
    fields = JSON + b"Accept-Encoding: gzip, deflate\r\n"
    assert exchange.answer == (501, fields, b'{"error":"Unsupported compression type"}')


# Answers.


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_small_answer_is_compressed_at_once(coding: str) -> None:
    rig, plain = answered(response(2))
    rig, exchange = answered(response(2), accept_encoding=coding)
    status, fields, body = exchange.answer
    assert (status, fields) == (200, JSON + f"Content-Encoding: {coding}\r\n".encode())
    assert zlib.decompress(body, 47) == plain.body_sent
    assert not len(rig.offload)


def test_large_answer_is_compressed_elsewhere() -> None:
    count = MAX_DEFLATED_ON_LOOP_BYTES // 8
    _, plain = answered(response(count))
    rig, exchange = answered(response(count), accept_encoding="gzip")
    assert len(plain.body_sent) > MAX_DEFLATED_ON_LOOP_BYTES
    assert not exchange.answers
    rig.offload.run()
    assert gzip.decompress(exchange.body_sent) == plain.body_sent


def test_header_length_of_a_compressed_answer_is_that_of_the_json() -> None:
    rig = Rig()
    exchange = infer(rig, ITEM % b',"parameters":{"binary_data_output":true}', accept_encoding="deflate")
    rig.port.inferences[0].reply.send(response(3), True)
    _, fields, body = exchange.answer
    whole = zlib.decompress(body)
    assert b"Inference-Header-Content-Length: %d\r\n" % (len(whole) - 12) in fields
    assert b"Content-Encoding: deflate\r\n" in fields


@pytest.mark.parametrize("accepts", ["identity", "br", "gzip;q=0"])
def test_answer_without_a_coding_is_plain(accepts: str) -> None:
    _, plain = answered(response(2))
    _, exchange = answered(response(2), accept_encoding=accepts)
    assert exchange.answer == plain.answer


def test_error_is_never_compressed() -> None:
    _, exchange = answered(Invalid("no"), accept_encoding="gzip")
    assert exchange.answer == (400, JSON, b'{"error":"no"}')
    refused = infer(Rig(), b"{", accept_encoding="gzip")
    assert refused.status == 500
    assert refused.body_sent.startswith(b'{"error":')
