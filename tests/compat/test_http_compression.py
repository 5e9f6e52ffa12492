"""Compressed bodies with the official HTTP clients, and bodies that attack a server which accepts them."""

import asyncio
import gzip
import json
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.http as sync
import tritonclient.http.aio as aio

from tests.compat.serving import Serving, write_model

LIMIT = 30.0
MAX_INPUT_SIZE = 1 << 20
CODINGS = (None, "gzip", "deflate")
SIZES = (3, 2_000, 100_000)
"""Sizes in numbers: decompressed and compressed on the event loop, one of both off it, both off it."""


def numbers(count: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(count).standard_normal((1, count)).astype(np.float32)


def parts(client: Any, array: npt.NDArray[np.float32], binary: bool) -> tuple[Any, Any]:
    given = client.InferInput("INPUT0", list(array.shape), "FP32")
    given.set_data_from_numpy(array, binary_data=binary)
    return [given], [client.InferRequestedOutput("OUTPUT0", binary_data=binary)]


@pytest.mark.rows("H140", "H141")
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("back", CODINGS)
@pytest.mark.parametrize("there", CODINGS)
def test_client_sends_and_takes_compressed_bodies(
    server: Serving, there: str | None, back: str | None, binary: bool
) -> None:
    with sync.InferenceServerClient(server.http_url, network_timeout=LIMIT) as client:
        for size in SIZES:
            array = numbers(size)
            inputs, outputs = parts(sync, array, binary)
            result = client.infer(
                "identity_fp32",
                inputs,
                outputs=outputs,
                request_compression_algorithm=there,
                response_compression_algorithm=back,
            )
            assert np.array_equal(result.as_numpy("OUTPUT0"), array)


@pytest.mark.rows("H140", "H141")
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("back", CODINGS)
@pytest.mark.parametrize("there", CODINGS)
def test_aio_client_sends_and_takes_compressed_bodies(
    server: Serving, there: str | None, back: str | None, binary: bool
) -> None:
    async def ask(client: Any, size: int) -> None:
        array = numbers(size)
        inputs, outputs = parts(aio, array, binary)
        result = await client.infer(
            "identity_fp32",
            inputs,
            outputs=outputs,
            request_compression_algorithm=there,
            response_compression_algorithm=back,
        )
        assert np.array_equal(result.as_numpy("OUTPUT0"), array)

    async def run() -> None:
        async with aio.InferenceServerClient(server.http_url) as client:
            await asyncio.wait_for(asyncio.gather(*(ask(client, size) for size in SIZES)), LIMIT)

    asyncio.run(run())


# With the standard library, for requests that the client cannot make.


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Model `m` (INT32), with a limit of 1 MiB."""
    folder = tmp_path_factory.mktemp("compression")
    write_model(folder / "models", "m", "INT32")
    flag = f"--http-max-input-size={MAX_INPUT_SIZE}"
    with Serving(folder / "models", folder / "server.log", flag) as made:
        yield made.wait_until_live()
        assert made.stop() == 0


def ask(serving: Serving, body: bytes, path: str = "/v2/models/m/infer", **headers: str) -> tuple[int, Any, bytes]:
    """Status, headers and body as received."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    asked = urllib.request.Request(f"http://{serving.http_url}{path}", data=body, headers=named)
    try:
        with urllib.request.urlopen(asked, timeout=LIMIT) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def resident(serving: Serving) -> int:
    """The server's maximum resident memory so far, in bytes."""
    status = Path(f"/proc/{serving.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@pytest.mark.rows("H140")
def test_body_up_to_the_limit_is_accepted(limited: Serving) -> None:
    exact = gzip.compress(bytes(MAX_INPUT_SIZE))
    headers = {"Inference_Header_Content_Length": "0", "Content_Encoding": "gzip"}
    assert ask(limited, exact, **headers)[0] == 200
    over = gzip.compress(bytes(MAX_INPUT_SIZE + 4))
    status, _, body = ask(limited, over, **headers)
    assert status == 400
    assert json.loads(body)["error"] == (
        f"Decompressed data size exceeds the maximum allowed value of {MAX_INPUT_SIZE} bytes. "
        "Use --http-max-input-size to increase the limit."
    )


@pytest.mark.rows("H140")
def test_decompression_bomb_uses_no_memory(limited: Serving) -> None:
    squeeze = zlib.compressobj(1)
    zeros = bytes(1 << 20)
    bomb = b"".join(squeeze.compress(zeros) for _ in range(256)) + squeeze.flush()
    before = resident(limited)
    for _ in range(8):
        assert ask(limited, bomb, Content_Encoding="deflate")[0] == 400
    assert resident(limited) - before < 64 * MAX_INPUT_SIZE
    assert limited.status("/v2/health/ready") == 200


@pytest.mark.rows("H140")
def test_refusals_of_a_coded_body(limited: Serving) -> None:
    status, headers, body = ask(limited, b"x", Content_Encoding="br")
    assert (status, headers["Accept-Encoding"]) == (501, "gzip, deflate")
    assert json.loads(body) == {"error": "Unsupported compression type"}
    status, headers, body = ask(limited, b"", Content_Encoding="gzip")
    assert (status, headers["Accept-Encoding"]) == (400, None)
    assert json.loads(body) == {"error": "nothing to be decompressed"}


@pytest.mark.rows("H141")
def test_weights_decide_and_errors_stay_plain(limited: Serving) -> None:
    body = b'{"inputs":[{"name":"INPUT0","shape":[2],"datatype":"INT32","data":[1,2]}]}'
    plain = ask(limited, body)[2]
    status, headers, coded = ask(limited, body, Accept_Encoding="gzip;q=0.5, deflate;q=1")
    assert (status, headers["Content-Encoding"]) == (200, "deflate")
    assert zlib.decompress(coded) == plain
    status, headers, refused = ask(limited, b"{", Accept_Encoding="gzip")
    assert (status, headers["Content-Encoding"]) == (500, None)
    assert "error" in json.loads(refused)
