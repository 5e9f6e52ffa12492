"""TLS for the gRPC port: certificates, mutual authentication, and the agreement on HTTP/2 by ALPN (G37)."""

import ssl
from collections.abc import Mapping
from pathlib import Path

from halimede.errors import Invalid
from halimede.platform.key_files import load_own


def server_context(certificate: str, key: str, root: str, mutual: bool) -> ssl.SSLContext:
    """Returns a context from PEM files: `certificate` (with its chain), `key`, and, if `mutual`, `root`, the
    authorities that must have signed a client's certificate.

    Raises Invalid if a file cannot be read or used. Triton treats an unreadable file as empty and then fails every
    handshake.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    names = {"certificate": certificate, "key": key}
    if mutual:
        names["root certificate"] = root
    try:
        _check_readable(names)
        load_own(context, certificate, key)
        if mutual:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(root)
    except ssl.SSLError as error:
        # OpenSSL's message names a line of its own source, and no file.
        files = ", ".join(f"{what} '{name}'" for what, name in names.items())
        raise Invalid(f"cannot use the gRPC server's TLS files: {error} ({files})") from error
    except (OSError, ValueError) as error:
        raise Invalid(f"cannot use the gRPC server's TLS files: {error}") from error
    return context


def _check_readable(names: Mapping[str, str]) -> None:
    """Opens each file, because the library's errors do not name files. Raises OSError or ValueError with the name."""
    for what, name in names.items():
        if not name:
            raise ValueError(f"no {what} is given")
        Path(name).open("rb").close()
