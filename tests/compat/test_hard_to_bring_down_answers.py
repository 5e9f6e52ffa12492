"""Attacks by answers and strings: small requests whose answers are large, have very many parts, or become objects.

Each test has the form of the attack, and checks the longest turn of the event loop, the delay of others, and memory.
"""

import json
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from zlib import compress

import pytest
from onnx import helper

from halimede.backends.onnx.instance import MAX_TEXTS
from halimede.engine.classification import MAX_CLASS_BYTES
from halimede.transport.buffered_bytes import FULL
from tests.backends import onnx_models
from tests.compat.measured import LIMIT, Measured, attack, post
from tests.compat.serving import write_model

MIB = 1 << 20
HELD_BYTES = 128 * MIB
VALUES = 8 * MIB
"""Of BOOL: `false,` is six bytes of JSON."""
CLIENTS = 24
STRINGS = 400_000


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    folder = tmp_path_factory.mktemp("answers")
    models = folder / "models"
    for name, datatype in (("bool", "BOOL"), ("bytes", "BYTES"), ("fp64", "FP64")):
        write_model(models, name, datatype)
    sides = [onnx_models.value(name, "BYTES", ["n"]) for name in ("INPUT0", "OUTPUT0")]
    texts = onnx_models.model([helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])], sides[:1], sides[1:])
    (write_model(models, "texts", "BYTES", backend="onnxruntime") / "model.onnx").write_bytes(texts)
    with Measured(models, folder / "server.log", f"--max-buffered-bytes={HELD_BYTES}") as made:
        yield made.wait_until_live()
        assert made.stop() == 0


def compressed(datatype: str, count: int, data: bytes, **output: object) -> tuple[bytes, dict[str, str]]:
    """Returns the body of a compressed inference whose answer is JSON, and its headers."""
    parameters = {"binary_data_size": len(data)}
    tensor = {"name": "INPUT0", "shape": [count], "datatype": datatype, "parameters": parameters}
    head = json.dumps({"inputs": [tensor], "outputs": [{"name": "OUTPUT0", "parameters": output}]}).encode()
    length = {"Inference-Header-Content-Length": str(len(head)), "Content-Encoding": "deflate"}
    return compress(head + data, 1), length


def test_json_answers_that_are_not_read(serving: Measured) -> None:
    """Each request of 37 kB became an answer of 48 MiB, whatever the server held."""
    body, fields = compressed("BOOL", VALUES, bytes(VALUES))
    lines = "".join([f"{name}: {value}\r\n" for name, value in fields.items()])
    request = f"POST /v2/models/bool/infer HTTP/1.1\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def send() -> int:
        with ExitStack() as stack:
            for _ in range(CLIENTS):
                client = stack.enter_context(socket.socket())
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.connect(("127.0.0.1", serving.http_port))
                client.sendall(request)
            time.sleep(6.0)
            return serving.memory()

    found = attack(serving, send, turns=False)
    assert found.peak < 3 * HELD_BYTES
    # Those that come when the memory is free again are served.
    end = time.monotonic() + LIMIT
    while (answer := post(serving, "/v2/models/bool/infer", body, **named(fields)))[0] == 503:
        assert FULL.encode() in answer[1]
        assert time.monotonic() < end
        time.sleep(0.1)
    assert answer[0] == 200
    assert answer[1].count(b"false") == VALUES


def test_json_answer_of_many_strings(serving: Measured) -> None:
    """Each string became three parts of the answer. A connection with more than a million parts was closed."""
    body, fields = compressed("BYTES", STRINGS, (b"\x50\0\0\0" + b"a" * 80) * STRINGS)
    found = attack(serving, lambda: post(serving, "/v2/models/bytes/infer", body, **named(fields)))
    status, answer = found.answer
    assert status == 200
    assert answer.count(b'"' + b"a" * 80 + b'"') == STRINGS


@pytest.mark.parametrize(("count", "element", "status"), [(15_000_000, b"", 400), (MAX_TEXTS, b"abcdefgh", 200)])
def test_many_texts_of_a_model(serving: Measured, count: int, element: bytes, status: int) -> None:
    """An ONNX model that takes strings. 15 million, 260 kB compressed, held the interpreter for 1.6 s."""
    data = (len(element).to_bytes(4, "little") + element) * count
    body, fields = compressed("BYTES", count, data)
    found = attack(serving, lambda: post(serving, "/v2/models/texts/infer", body, **named(fields)))
    assert found.answer[0] == status
    if status == 400:
        assert b"the largest number is" in found.answer[1]
        assert found.peak < 4 * len(data)


def test_classes_with_long_numbers(serving: Measured) -> None:
    """A million values of three hundred digits, 18 kB compressed, became 316 MB of text, and took 960 MiB for it."""
    count = 600_000
    body, fields = compressed("FP64", count, struct.pack("<d", 1e300) * count, classification=count)
    found = attack(serving, lambda: post(serving, "/v2/models/fp64/infer", body, **named(fields)))
    assert found.answer[0] == 400
    assert b"too large" in found.answer[1]
    assert found.peak < 3 * MAX_CLASS_BYTES


def named(fields: dict[str, str]) -> dict[str, str]:
    return {name.replace("-", "_"): value for name, value in fields.items()}
