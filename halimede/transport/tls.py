"""TLS for the gRPC port: certificates, mutual authentication, and the agreement on HTTP/2 (contract G37)."""

import ssl

from halimede.errors import Invalid


def server_context(certificate: str, key: str, root: str, mutual: bool) -> ssl.SSLContext:
    """A context from PEM files: the server's certificate (with its chain) and key; `root` are the authorities that a
    client's certificate must come from when `mutual`.

    Raises Invalid where a file cannot be read or used. (The original takes an unreadable file for an empty one and then
    fails every handshake.)
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    try:
        context.load_cert_chain(certificate, key, _no_password)
        if mutual:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(root)
    except (OSError, ValueError) as error:
        raise Invalid(f"cannot use the gRPC server's TLS files: {error}") from error
    return context


def _no_password() -> str:
    """Without it the library asks at the terminal, and the start waits."""
    raise ValueError("the key is encrypted, and its password cannot be given")
