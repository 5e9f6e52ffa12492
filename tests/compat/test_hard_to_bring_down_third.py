"""Attacks of a third round: work that clients let fall due together, and memory that was not counted.

Each test has the form of the attack, and checks the longest turn of the event loop, the delay of others, and memory.
"""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from gzip import compress
from http import HTTPStatus

import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.compat.measured import LIMIT, Measured, attack, post
from tests.compat.serving import write_held_model, write_model
from tests.compat.test_hard_to_bring_down_transport import connection, head, literal
from tests.transport.http2_wire import data, headers, message, settings, window_update

MIB = 1 << 20
HELD_BYTES = 128 * MIB
"""`--max-buffered-bytes` of the server."""
INFLATED_BYTES = 60 * MIB
SEQUENCES = "sequence_batching { max_sequence_idle_microseconds: 600000000 direct { } }\n"


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    folder = tmp_path_factory.mktemp("third")
    models = folder / "models"
    write_model(models, "uint8", "UINT8")
    held = write_held_model(models)
    for name, datatype, size, more in (("zeros", "UINT8", 0, ""), ("sequences", "INT32", 1, SEQUENCES)):
        version = write_model(models, name, datatype, backend="python", max_batch_size=size, more=more)
        (version / "model.py").write_text((held / "1" / "model.py").read_text())
    with Measured(
        models, folder / "server.log", f"--max-buffered-bytes={HELD_BYTES}", "--unread-timeout-secs=600"
    ) as made:
        yield made.wait_until_live()
        for name in ("held", "zeros", "sequences"):
            (models / name / "go").touch()
        assert made.stop() == 0


def accepts(serving: Measured) -> bool:
    """Whether the server takes requests. This one is malformed, which it finds out after it has taken it."""
    return post(serving, "/v2/models/uint8/infer", b"{}")[0] != HTTPStatus.SERVICE_UNAVAILABLE


# What falls due in one moment.


def start_of_sequence(number: int, timeout_us: int) -> bytes:
    request = pb.ModelInferRequest(model_name="sequences")
    request.inputs.add(name="INPUT0", datatype="INT32", shape=[1, 1])
    request.raw_input_contents.append(bytes(4))
    request.parameters["sequence_id"].int64_param = number
    request.parameters["sequence_start"].bool_param = True
    request.parameters["timeout"].int64_param = timeout_us
    return message(request.SerializeToString())


def test_sequences_that_time_out_together(serving: Measured) -> None:
    """They wait for a slot, and their timeouts end in one moment."""
    streams, each = range(1, 21, 2), 100

    def send() -> None:
        end = time.monotonic() + 8.0
        with connection(serving) as client:
            client.sendall(window_update(0, 1 << 30) + b"".join(headers(s, head("ModelStreamInfer")) for s in streams))
            for number in range(1, 20_000, each):
                left = int((end - time.monotonic()) * 1e6)
                sent = b"".join(start_of_sequence(number + more, left) for more in range(each))
                client.sendall(data(streams[number // each % len(streams)], sent))
            assert time.monotonic() < end, "this machine is too slow for the attack"
            time.sleep(end - time.monotonic() + 2.0)

    attack(serving, send)


def test_calls_whose_deadlines_end_together(serving: Measured) -> None:
    def send() -> None:
        end = time.monotonic() + 4.0
        with ExitStack() as stack:
            for _ in range(20):
                client = stack.enter_context(connection(serving))
                left = b"%dm" % ((end - time.monotonic()) * 1000)
                block = head("ModelStreamInfer", literal(b"grpc-timeout", left))
                client.sendall(b"".join(headers(stream, block) for stream in range(1, 2001, 2)))
            time.sleep(max(0.0, end - time.monotonic()) + 1.0)

    attack(serving, send)


@pytest.mark.parametrize("each", [pytest.param(150, id="more than a slice"), pytest.param(30, id="less")])
def test_many_connections_that_bring_many_requests_each(serving: Measured, each: int) -> None:
    """A read of one client may take a millisecond, and a thousand are read in one turn."""
    requests = b"GET /v2/models/uint8 HTTP/1.1\r\nHost: x\r\n\r\n" * each
    calls = b"".join(headers(n, head("ServerLive")) + data(n, message(b""), end=True) for n in range(1, 2 * each, 2))

    def send() -> None:
        with ExitStack() as stack:
            http = [
                stack.enter_context(socket.create_connection(("127.0.0.1", serving.http_port), LIMIT))
                for _ in range(400)
            ]
            for client in http:
                client.sendall(requests)
            for client in http:
                # The first of its answers.
                assert client.recv(64).startswith(b"HTTP/1.1 200")
            for client in [stack.enter_context(connection(serving)) for _ in range(400)]:
                client.sendall(calls)
            time.sleep(2.0)

    attacked = attack(serving, send)
    assert attacked.peak < 128 * MIB


def test_small_json_while_others_send_large_json(serving: Measured) -> None:
    count = 30 * MIB
    text = b'{"inputs":[{"name":"INPUT0","shape":[%d],"datatype":"UINT8","data":[%b1]}]}' % (count, b"1," * (count - 1))
    body = compress(text)
    request = b"POST /v2/models/uint8/infer HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    small = b'{"inputs":[{"name":"INPUT0","shape":[30000],"datatype":"UINT8","data":[%b1]}]}' % (b"1," * 29_999)
    with ExitStack() as stack:
        for _ in range(20):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", serving.http_port), LIMIT))
            client.sendall(request % len(body) + body)
        begun = time.monotonic()
        status, _ = post(serving, "/v2/models/uint8/infer", small)
        took = time.monotonic() - begun
        # One after the other, the large ones take a minute and more.
        assert (status, took < 10) == (200, True), f"{status} after {took:.1f} s"
    serving.until(lambda: accepts(serving), "still counts the large ones")


# What was not counted.


def zeros_over_http(serving: Measured, stack: ExitStack) -> None:
    text = b'{"inputs":[{"name":"INPUT0","shape":[%d],"datatype":"UINT8","parameters":{"binary_data_size":%d}}]}'
    text %= (INFLATED_BYTES, INFLATED_BYTES)
    body = compress(text + bytes(INFLATED_BYTES))
    fields = b"Content-Encoding: gzip\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n"
    request = b"POST /v2/models/zeros/infer HTTP/1.1\r\nHost: x\r\n" + fields % (len(text), len(body)) + b"\r\n" + body
    for _ in range(40):
        client = stack.enter_context(socket.create_connection(("127.0.0.1", serving.http_port), LIMIT))
        client.sendall(request)


def numbers_over_http(serving: Measured, stack: ExitStack) -> None:
    """Two characters in the JSON are a number of one byte, and the JSON is compressed."""
    count = 30 * MIB
    text = b'{"inputs":[{"name":"INPUT0","shape":[%d],"datatype":"UINT8","data":[%b1]}]}' % (count, b"1," * (count - 1))
    body = compress(text)
    request = b"POST /v2/models/zeros/infer HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    for _ in range(20):
        client = stack.enter_context(socket.create_connection(("127.0.0.1", serving.http_port), LIMIT))
        client.sendall(request % len(body) + body)


def zeros_over_grpc(serving: Measured, stack: ExitStack) -> None:
    request = pb.ModelInferRequest(model_name="zeros", raw_input_contents=[bytes(INFLATED_BYTES)])
    request.inputs.add(name="INPUT0", datatype="UINT8", shape=[INFLATED_BYTES])
    packed = message(compress(request.SerializeToString()), compressed=1)
    client = stack.enter_context(connection(serving))
    block = head("ModelInfer", literal(b"grpc-encoding", b"gzip"))
    for stream in range(1, 81, 2):
        client.sendall(headers(stream, block) + data(stream, packed, end=True))


@pytest.mark.parametrize("send", [zeros_over_http, numbers_over_http, zeros_over_grpc])
def test_compressed_requests_for_a_model_that_is_busy(
    serving: Measured, send: Callable[[Measured, ExitStack], None]
) -> None:
    """Some hundred kilobytes become gigabytes, which wait for the model."""
    with ExitStack() as stack:

        def wait() -> None:
            send(serving, stack)
            serving.until(lambda: not accepts(serving), "does not count what it has decompressed")

        # Threads of the server work for 20 s here. If other programs use the cores, too, the loop waits for one.
        attacked = attack(serving, wait, delay=2.0)
    # Each thread that decompresses may have begun before the limit was reached.
    assert attacked.peak < HELD_BYTES + 8 * INFLATED_BYTES
    folder = serving.log.parent / "models" / "zeros"
    (folder / "go").touch()
    serving.until(lambda: accepts(serving), "still counts what it has decompressed")
    (folder / "go").unlink()


def test_calls_with_much_metadata_that_never_end(serving: Measured) -> None:
    """Each field is one byte on the wire, and calls without messages may stay open."""
    fields = ((b":path", b"/inference.GRPCInferenceService/ModelStreamInfer"), (b"content-type", b"application/grpc"))
    names = (*fields, (b"te", b"trailers"), (b"ab", b""))
    entries = b"".join(b"\x40" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in names)
    # The last entry is number 62.
    block = b"\x83\x86" + bytes([0x80 | 65, 0x80 | 64, 0x80 | 63]) + bytes([0x80 | 62]) * 450

    def send() -> None:
        with ExitStack() as stack:
            for _ in range(6):
                client = stack.enter_context(connection(serving))
                client.sendall(headers(1, b"\x83\x86" + entries))
                client.sendall(b"".join(headers(stream, block) for stream in range(3, 2001, 2)))
            serving.until(lambda: not accepts(serving), "does not count metadata")

    attack(serving, send)
    serving.until(lambda: accepts(serving), "still counts metadata")


def test_bodies_in_tiny_chunks_take_little_memory(serving: Measured) -> None:
    request = b"POST /v2/models/uint8/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"

    def send() -> None:
        with ExitStack() as stack:
            for _ in range(50):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", serving.http_port), LIMIT))
                client.sendall(request + b"2\r\nxx\r\n" * 65_000)
            serving.until(lambda: accepts(serving), "does not answer")
            time.sleep(2.0)

    # Each chunk would take fifty bytes.
    assert attack(serving, send).peak < 64 * MIB


def test_windows_that_change_again_and_again(serving: Measured) -> None:
    """Each change is work for all streams."""
    changes = settings(*[(4, 65_535 + number % 2) for number in range(32)])

    def send() -> None:
        with ExitStack() as stack:
            for _ in range(5):
                client = stack.enter_context(connection(serving))
                client.sendall(b"".join(headers(stream, head("ModelStreamInfer")) for stream in range(1, 2001, 2)))
                with suppress(OSError):
                    client.sendall(changes * 200)
            time.sleep(2.0)

    attack(serving, send)
