"""A server whose models are in Azure Blob Storage, simulated by Azurite. `make test-azure` fetches Azurite;
HALIMEDE_AZURITE names its `azurite-blob`."""

import base64
import hashlib
import hmac
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest

from tests.compat.serving import Serving, write_model
from tests.compat.test_cloud_repository import LIMIT, index, infer, write
from tests.ports import free_ports

pytestmark = pytest.mark.azure

ACCOUNT = "devstoreaccount1"
KEY = base64.b64encode(b"a key of the tests").decode()


def put(port: int, path: str, content: bytes = b"", query: str = "", **headers: str) -> None:
    """A signed request (shared key)."""
    sent = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06", **headers}
    canonical = "".join(f"{name}:{sent[name]}\n" for name in sorted(sent))
    asked = "".join(f"\n{part.replace('=', ':')}" for part in query.split("&") if part)
    resource = f"/{ACCOUNT}/{ACCOUNT}{path}{asked}"
    length = str(len(content)) if content else ""
    kind = "application/octet-stream"
    text = f"PUT\n\n\n{length}\n\n{kind}\n\n\n\n\n\n\n{canonical}{resource}"
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()
    sent |= {"Authorization": f"SharedKey {ACCOUNT}:{signature}", "Content-Type": kind}
    url = f"http://127.0.0.1:{port}/{ACCOUNT}{path}{'?' + query if query else ''}"
    urllib.request.urlopen(urllib.request.Request(url, content, sent, method="PUT"), timeout=LIMIT).close()


@pytest.fixture
def azurite(tmp_path: Path) -> Iterator[int]:
    [port] = free_ports(1)
    program = os.environ["HALIMEDE_AZURITE"]
    command = [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(tmp_path / "azurite")]
    with (tmp_path / "azurite.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--skipApiVersionCheck", "--disableTelemetry"],
            stdout=log,
            stderr=log,
            env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
        )
    try:
        limit = time.monotonic() + LIMIT
        while b"successfully listen" not in (tmp_path / "azurite.log").read_bytes():
            assert process.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(LIMIT)


@pytest.mark.rows("R24")
def test_models_of_azure(azurite: int, tmp_path: Path) -> None:
    write(tmp_path / "away", "said", 4)
    put(azurite, "/models", query="restype=container")
    for file in (tmp_path / "away").rglob("*"):
        if file.is_file():
            path = f"/models/a/{file.relative_to(tmp_path / 'away')}"
            put(azurite, path, file.read_bytes(), **{"x-ms-blob-type": "BlockBlob"})
    write_model(tmp_path / "here", "here", "INT32")
    environment = {
        "AZURE_STORAGE_KEY": KEY,
        "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{azurite}/{ACCOUNT}",
    }
    flag = f"--model-repository=as://{ACCOUNT}/models/a"
    with Serving(tmp_path / "here", tmp_path / "log", flag, environment=environment) as server:
        server.wait_until_live()
        assert infer(server, "said") == [4]
        assert set(index(server)) == {"said", "here"}
