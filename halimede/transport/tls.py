"""TLS for the gRPC port: certificates, mutual authentication, and the agreement on HTTP/2 (contract G37)."""

import ssl
from collections.abc import Mapping
from pathlib import Path

from halimede.errors import Invalid
from halimede.platform.key_files import load_own


def server_context(certificate: str, key: str, root: str, mutual: bool) -> ssl.SSLContext:
    """A context from PEM files: the server's certificate (with its chain) and key; `root` are the authorities that a
    client's certificate must come from when `mutual`.

    Raises Invalid where a file cannot be read or used. (The original takes an unreadable file for an empty one and then
    fails every handshake.)
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
    except ssl.SSLError as error:  # says where in its own source it stood, and no name
        files = ", ".join(f"{what} '{name}'" for what, name in names.items())
        raise Invalid(f"cannot use the gRPC server's TLS files: {error} ({files})") from error
    except (OSError, ValueError) as error:
        raise Invalid(f"cannot use the gRPC server's TLS files: {error}") from error
    return context


def _check_readable(names: Mapping[str, str]) -> None:
    """The library tells no names. Raises OSError or ValueError, which do."""
    for what, name in names.items():
        if not name:
            raise ValueError(f"no {what} is given")
        Path(name).open("rb").close()
