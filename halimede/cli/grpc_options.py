"""The options of the gRPC transport from those of the server: seconds for milliseconds, a TLS context for files."""

from halimede.options import ServerOptions
from halimede.transport.grpc.server import GrpcServerOptions
from halimede.transport.http2.limits import Keepalive
from halimede.transport.tls import server_context

_MILLISECOND = 1e-3


def transport_options(options: ServerOptions) -> GrpcServerOptions:
    """Raises Invalid where the TLS files cannot be used."""
    grpc = options.grpc_options
    tls = server_context(grpc.server_cert, grpc.server_key, grpc.root_cert, grpc.mutual_tls) if grpc.tls else None
    return GrpcServerOptions(
        reuse_port=options.grpc.reuse_port,
        response_compression=grpc.compression_level,
        tls=tls,
        keepalive=Keepalive(
            # What is below the least that has a meaning is taken for that, as gRPC does: no timer may run for ever.
            time=max(1, grpc.keepalive_time) * _MILLISECOND,
            timeout=max(0, grpc.keepalive_timeout) * _MILLISECOND,
            permit_without_calls=grpc.keepalive_permit_without_calls,
            max_pings_without_data=max(0, grpc.max_pings_without_data),
            min_ping_interval=max(0, grpc.min_ping_interval) * _MILLISECOND,
            max_ping_strikes=max(0, grpc.max_ping_strikes),
            max_age=_given(grpc.max_connection_age),
            max_age_grace=_given(grpc.max_connection_age_grace),
        ),
    )


def _given(milliseconds: int) -> float | None:
    return milliseconds * _MILLISECOND if milliseconds > 0 else None
