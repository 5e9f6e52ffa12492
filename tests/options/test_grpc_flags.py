"""The flags of the gRPC port and what they become (contract C32 to C34)."""

import pytest

from halimede.errors import Invalid
from halimede.options import Endpoint, ServerOptions, parse
from halimede.options.values import GrpcOptions


def grpc(*flags: str) -> GrpcOptions:
    options = parse(flags, {})
    assert options.warnings == ()
    return options.grpc_options


def test_defaults_are_those_of_triton() -> None:
    assert grpc() == GrpcOptions(
        compression_level="none",
        tls=False,
        mutual_tls=False,
        server_cert="",
        server_key="",
        root_cert="",
        keepalive_time=7200000,
        keepalive_timeout=20000,
        keepalive_permit_without_calls=False,
        max_pings_without_data=2,
        min_ping_interval=300000,
        max_ping_strikes=2,
        max_connection_age=0,
        max_connection_age_grace=0,
    )


def test_every_flag_reaches_its_field() -> None:
    found = grpc(
        "--grpc-use-ssl=true", "--grpc-use-ssl-mutual=true", "--grpc-server-cert=a", "--grpc-server-key=b",
        "--grpc-root-cert=c", "--grpc-infer-response-compression-level=high", "--grpc-keepalive-time=1",
        "--grpc-keepalive-timeout=2", "--grpc-keepalive-permit-without-calls=true",
        "--grpc-http2-max-pings-without-data=3", "--grpc-http2-min-recv-ping-interval-without-data=4",
        "--grpc-http2-max-ping-strikes=5", "--grpc-max-connection-age=6", "--grpc-max-connection-age-grace=7",
    )  # fmt: skip
    assert found == GrpcOptions(
        compression_level="high",
        tls=True,
        mutual_tls=True,
        server_cert="a",
        server_key="b",
        root_cert="c",
        keepalive_time=1,
        keepalive_timeout=2,
        keepalive_permit_without_calls=True,
        max_pings_without_data=3,
        min_ping_interval=4,
        max_ping_strikes=5,
        max_connection_age=6,
        max_connection_age_grace=7,
    )


@pytest.mark.parametrize(
    ("flags", "tls", "mutual"),
    [
        (["--grpc-use-ssl=true"], True, False),
        (["--grpc-use-ssl=false"], False, False),
        (["--grpc-use-ssl-mutual=true"], True, True),
        # Naming it is enough to ask for TLS (G37).
        (["--grpc-use-ssl-mutual=false"], True, False),
        (["--grpc-use-ssl=false", "--grpc-use-ssl-mutual=false"], True, False),
    ],
)
def test_either_tls_flag_switches_tls_on(flags: list[str], tls: bool, mutual: bool) -> None:
    found = grpc(*flags)
    assert (found.tls, found.mutual_tls) == (tls, mutual)


@pytest.mark.parametrize("level", ["none", "low", "medium", "high"])
def test_compression_level(level: str) -> None:
    assert grpc(f"--grpc-infer-response-compression-level={level}").compression_level == level


@pytest.mark.rows("C33")
@pytest.mark.parametrize("level", ["", "HIGH", "most", "1"])
def test_unknown_compression_level_is_refused(level: str) -> None:
    with pytest.raises(Invalid, match="invalid argument for --grpc_infer_response_compression_level"):
        grpc(f"--grpc-infer-response-compression-level={level}")


@pytest.mark.parametrize("address", ["unix:/run/h", "unix:///run/h"])
def test_addresses_may_be_unix_sockets(address: str) -> None:
    options = parse([f"--grpc-address={address}", f"--http-address={address}.http"], {})
    assert options.grpc == Endpoint(8001, address)
    assert options.http == Endpoint(8000, f"{address}.http")
    assert options.metrics == Endpoint(8002, "127.0.0.1"), "not the path of the HTTP port"


def test_metrics_may_have_a_unix_socket_of_their_own() -> None:
    options = parse(["--http-address=unix:/a", "--metrics-address=unix:/b"], {})
    assert options.metrics == Endpoint(8002, "unix:/b")
    assert ServerOptions().metrics == Endpoint(8002)
