"""From the flags of the gRPC port to the options of its transport."""

import pytest

from halimede.errors import Invalid
from halimede.options import parse
from halimede.serving.ports import transport_options
from halimede.transport.grpc.server import GrpcServerOptions
from halimede.transport.http2.limits import Keepalive


def options_for(*flags: str) -> GrpcServerOptions:
    return transport_options(parse(flags, {}))


def test_defaults_are_the_transports_own() -> None:
    """The contract's values stand in both rooms."""
    assert options_for() == GrpcServerOptions()


def test_milliseconds_become_seconds() -> None:
    found = options_for(
        "--grpc-keepalive-time=1500", "--grpc-keepalive-timeout=250", "--grpc-keepalive-permit-without-calls=true",
        "--grpc-http2-max-pings-without-data=0", "--grpc-http2-min-recv-ping-interval-without-data=10",
        "--grpc-http2-max-ping-strikes=7", "--grpc-max-connection-age=2000", "--grpc-max-connection-age-grace=500",
        "--grpc-infer-response-compression-level=low", "--reuse-grpc-port=true",
    )  # fmt: skip
    keepalive = Keepalive(1.5, 0.25, True, 0, 0.01, 7, 2.0, 0.5)
    assert found == GrpcServerOptions(reuse_port=True, response_compression="low", keepalive=keepalive)


@pytest.mark.parametrize("text", ["0", "-1"])
def test_connection_age_of_zero_is_no_limit(text: str) -> None:
    found = options_for(f"--grpc-max-connection-age={text}", f"--grpc-max-connection-age-grace={text}").keepalive
    assert (found.max_age, found.max_age_grace) == (None, None)


@pytest.mark.parametrize("text", ["0", "-5"])
def test_too_short_times_are_raised_to_the_minimum(text: str) -> None:
    """Or a timer would run without end, and the first ping end a connection."""
    found = options_for(
        f"--grpc-keepalive-time={text}", f"--grpc-keepalive-timeout={text}",
        f"--grpc-http2-max-pings-without-data={text}", f"--grpc-http2-max-ping-strikes={text}",
        f"--grpc-http2-min-recv-ping-interval-without-data={text}",
    ).keepalive  # fmt: skip
    assert found == Keepalive(0.001, 0.0, False, 0, 0.0, 0)


@pytest.mark.parametrize("flag", ["--grpc-use-ssl=true", "--grpc-use-ssl-mutual=false"])
def test_tls_without_files_is_refused(flag: str) -> None:
    with pytest.raises(Invalid, match=r"^cannot use the gRPC server's TLS files: no certificate is given$"):
        options_for(flag)


def test_files_without_tls_are_not_read() -> None:
    assert options_for("--grpc-server-cert=missing", "--grpc-server-key=missing").tls is None
