"""Which addresses the ports of a server listen on."""

import pytest

from halimede.options import parse
from halimede.serving.ports import is_exposed

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
