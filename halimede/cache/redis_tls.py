"""TLS to a Redis server: settings as Triton's cache has them, and connections that use them.

Imports the client library, so it is imported itself only where a connection is to be secured. Connections are made on
the threads of couriers; the context, which reads the files, when the cache is opened.
"""

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from redis import Connection

from halimede.errors import Invalid
from halimede.platform.key_files import load_own

_FILES: Final = ("cert", "key", "cacert", "cacert_dir")


@dataclass(frozen=True, slots=True)
class RedisTls:
    """`name` is whom the certificate of the server must be for."""

    context: ssl.SSLContext
    name: str


def redis_tls(settings: Mapping[str, str]) -> RedisTls:
    """Reads the files: `cacert` and `cacert_dir` say whom to trust (else the system does), `cert` and `key` who this
    is, `sni` which name to ask for in place of the host. Raises Invalid."""
    given = {name: settings[name] for name in _FILES if settings.get(name)}
    if ("cert" in given) != ("key" in given):
        raise Invalid("Failed to initialize RedisCache: 'cert' and 'key' must be specified together")
    try:
        context = ssl.create_default_context(cafile=given.get("cacert"), capath=given.get("cacert_dir"))
        if "cert" in given:
            load_own(context, given["cert"], given["key"])
    except (OSError, ValueError) as error:
        files = ", ".join(f"'{name}' {path}" for name, path in given.items())
        raise Invalid(f"Failed to initialize RedisCache: cannot use {files}: {error}") from error
    return RedisTls(context, settings.get("sni") or settings["host"])


class SecuredConnection(Connection):
    """One connection over TLS. The library's own reads the files for each connection and knows no other name than the
    host."""

    def __init__(self, *, tls: RedisTls, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]  # the library has no types here
        self._tls = tls

    def _connect(self) -> socket.socket:
        plain: socket.socket = super()._connect()  # type: ignore[no-untyped-call]  # nor here
        try:
            return self._tls.context.wrap_socket(plain, server_hostname=self._tls.name)
        except OSError:
            plain.close()
            raise
