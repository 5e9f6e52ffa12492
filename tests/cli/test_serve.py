"""What `halimede serve` says before anybody connects, and its end."""

import subprocess
import sys

import pytest

from halimede.cli.serve import is_exposed
from halimede.options import parse

LOCAL = ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]


@pytest.mark.parametrize(
    ("flags", "exposed"),
    [
        ([], True),
        (["--http-address=127.0.0.1"], True),
        (LOCAL, False),
        (["--http-address=::1", "--grpc-address=::1"], False),
        (["--http-address=::", "--grpc-address=::1"], True),
        (["--http-address=127.0.0.1", "--allow-grpc=false"], False),
        ([*LOCAL, "--metrics-address=0.0.0.0"], True),
    ],
)
def test_server_knows_if_it_is_exposed(flags: list[str], exposed: bool) -> None:
    assert is_exposed(parse(["--model-repository=models", *flags], {})) is exposed


def test_process_ends_with_a_closed_output() -> None:
    code = (
        "import os, sys; from halimede.cli.serve import _end; read, write = os.pipe(); os.close(read)\n"
        "sys.stdout = os.fdopen(write, 'w'); print('x'); _end(5)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 5
