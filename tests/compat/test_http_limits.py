"""`--http-max-input-size`: which parts of an HTTP request it limits, and which not."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.compat.serving import Serving, write_model

LIMIT = 60.0
MAX_INPUT_SIZE = 100
HINT = "Use --http-max-input-size to increase the limit."


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Model `m` (FP64), with a limit of 100 bytes."""
    folder = tmp_path_factory.mktemp("limits")
    write_model(folder / "models", "m", "FP64")
    flag = f"--http-max-input-size={MAX_INPUT_SIZE}"
    with Serving(folder / "models", folder / "server.log", flag) as made:
        yield made.wait_until_live()
        assert made.stop() == 0


def infer(serving: Serving, body: bytes, header_length: int | None = None) -> tuple[int, str]:
    """The status, and the error's text or an empty string."""
    asked = urllib.request.Request(f"http://{serving.http_url}/v2/models/m/infer", data=body)
    if header_length is not None:
        asked.add_header("Inference-Header-Content-Length", str(header_length))
    try:
        with urllib.request.urlopen(asked, timeout=LIMIT) as answer:
            answer.read()
            return answer.status, ""
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]


def head(*data: float) -> bytes:
    """The JSON of one input, as short as it can be."""
    document = {"inputs": [{"name": "INPUT0", "shape": [len(data)], "datatype": "FP64", "data": data}]}
    return json.dumps(document, separators=(",", ":")).encode()


@pytest.mark.rows("H17")
def test_json_is_limited(serving: Serving) -> None:
    text = head(1)
    assert infer(serving, text.ljust(MAX_INPUT_SIZE)) == (200, "")
    for size in (MAX_INPUT_SIZE + 1, 3_000_000):
        words = f"request JSON size of {size} bytes exceeds the maximum allowed input size of 100 bytes. {HINT}"
        assert infer(serving, text.ljust(size)) == (400, words)
        assert infer(serving, text.ljust(size), size) == (400, words)


@pytest.mark.rows("H17")
def test_input_in_json_is_limited(serving: Serving) -> None:
    assert infer(serving, head(*[0] * 12)) == (200, "")
    words = (
        "JSON input 'INPUT0' has a byte_size ({} bytes) that exceeds the maximum allowed value of 100 bytes. " + HINT
    )
    assert infer(serving, head(*[0] * 13)) == (400, words.format(104))


@pytest.mark.rows("H17")
def test_raw_request_is_limited(serving: Serving) -> None:
    assert infer(serving, bytes(96), 0) == (200, "")
    words = f"Raw input has a byte_size (104 bytes) that exceeds the maximum allowed value of 100 bytes. {HINT}"
    assert infer(serving, bytes(104), 0) == (400, words)


@pytest.mark.rows("H17")
def test_binary_input_is_not_limited(serving: Serving) -> None:
    text = b'{"inputs":[{"name":"INPUT0","shape":[99],"datatype":"FP64","parameters":{"binary_data_size":792}}]}'
    for _ in range(2):
        assert infer(serving, text + bytes(792), len(text)) == (200, "")
    size = MAX_INPUT_SIZE + 1
    words = f"request JSON size of {size} bytes exceeds the maximum allowed input size of 100 bytes. {HINT}"
    assert infer(serving, text.ljust(size) + bytes(792), size) == (400, words)
