"""TLS for connections to a Redis server, with the settings of Triton's cache (K8).

Imports the client library, so only `open_redis` imports this module, and only if TLS is on. The context, which reads
the files, is made when the cache opens. Connections are made on the worker threads of the cache.
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
"""The settings that are paths."""


@dataclass(frozen=True, slots=True)
class RedisTls:
    """`name` is the host name that the server's certificate must have; it is also sent as SNI."""

    context: ssl.SSLContext
    name: str


def redis_tls(settings: Mapping[str, str]) -> RedisTls:
    """The TLS context for these settings. Reads files.

    `cacert` and `cacert_dir` are the trusted authorities, the system's by default. `cert` and `key` are the client's
    own certificate. `sni` is the name to ask for instead of the host. Raises Invalid.
    """
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
    """A connection over TLS. The library's own class reads the files for each connection, and cannot ask for another
    name than the host."""

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
