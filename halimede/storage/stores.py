"""Lists and reads objects in S3, Google Cloud Storage and Azure Blob Storage.

The only module that knows the storage library, `obstore`. Its calls block and release the interpreter lock; any thread.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from halimede.errors import Error, Internal, NotFound, Unavailable
from halimede.storage.locations import AZURE, S3, Location
from halimede.storage.objects import Object

REQUEST_SECONDS = 60
"""Limit for one request and its answer, which is at most a piece of a file (`mirror.PIECE_BYTES`)."""
CONNECT_SECONDS = 5
"""Limit for the connection."""
RETRIES = 3
"""Further attempts after a failed request."""
RETRY_SECONDS = 15
"""Limit for a request and its further attempts."""
MAX_OBJECTS = 1_000_000
"""Objects below a path, which are all listed. Beyond: its models are not loaded; those that serve stay as they are."""
_MAX_TEXT = 300
"""Characters of a library's error that go into ours."""
_KEYS = {"access_key_id": "access_key_id", "secret_access_key": "secret_access_key", "session_token": "token"}
"""The settings of S3 that are credentials, with the names that a credential provider uses for them."""


class Store:
    """One bucket. Raises Unavailable if the storage fails, NotFound, or Internal."""

    def __init__(self, location: Location, credentials: Mapping[str, str]) -> None:
        self._location = location
        with self._explained("open"):
            self._store = _open(location, credentials)

    def folders(self, prefix: str) -> list[str]:
        """The names of the folders directly below a path."""
        with self._explained("list"):
            found = obstore.list_with_delimiter(self._store, prefix=prefix or None)
        start = len(prefix) + 1 if prefix else 0
        return [str(path)[start:] for path in found["common_prefixes"]]

    def objects(self, prefix: str) -> list[Object]:
        """All objects below a path."""
        start = len(prefix) + 1 if prefix else 0
        found: list[Object] = []
        with self._explained("list"):
            # A storage may list without end.
            for chunk in obstore.list(self._store, prefix=prefix or None):
                found += [_object(meta, start) for meta in chunk if len(meta["path"]) > start]
                if len(found) > MAX_OBJECTS:
                    raise Unavailable(f"failed to list '{self._location.url}': more than {MAX_OBJECTS} objects")
        return found

    def read(self, wanted: Object, start: int, end: int) -> Any:
        """Bytes of an object, as a buffer. Raises Unavailable if the object has changed since it was listed."""
        options: Any = {"range": (start, end)}
        # A file that is replaced between two pieces must not be mixed of both.
        if wanted.etag:
            options["if_match"] = wanted.etag
        with self._explained("read", wanted.path):
            return obstore.get(self._store, wanted.key, options=options).bytes()

    @contextmanager
    def _explained(self, what: str, path: str = "") -> Iterator[None]:
        """Turns errors of the library, whose texts fill pages, into ours with one line."""
        place = f"{self._location.url}, {path}" if path else self._location.url
        try:
            yield
        except exceptions.PreconditionError as error:
            raise Unavailable(f"'{place}' changed while it was read") from error
        except (FileNotFoundError, exceptions.NotFoundError) as error:
            raise NotFound(f"failed to {what} '{place}': not found") from error
        except exceptions.BaseError as error:
            raise Unavailable(f"failed to {what} '{place}': {_line(error)}") from error
        except Error:
            raise
        except Exception as error:
            raise Internal(f"failed to {what} '{place}': {_line(error)}") from error


def _line(error: Exception) -> str:
    text = str(error).split("\n\n")[0].split("Debug source")[0]
    return " ".join(text.split())[:_MAX_TEXT] or type(error).__name__


def _object(meta: Any, start: int) -> Object:
    modified = meta["last_modified"]
    nanoseconds = int(modified.timestamp()) * 1_000_000_000
    return Object(meta["path"][start:], meta["path"], meta["size"], meta["e_tag"] or "", nanoseconds)


def _base_url(key_file: str) -> str:
    """The storage's URL in the key file of a service account, if it names one."""
    try:
        return str(json.loads(Path(key_file).read_bytes()).get("gcs_base_url", "")) if key_file else ""
    except (OSError, ValueError, AttributeError):
        return ""  # the library reports what is wrong with the file


def _open(location: Location, credentials: Mapping[str, str]) -> Any:
    client: dict[str, Any] = {
        "timeout": timedelta(seconds=REQUEST_SECONDS),
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
    }
    settings: dict[str, Any] = dict(credentials)
    retries: dict[str, Any] = {
        "max_retries": RETRIES,
        "retry_timeout": timedelta(seconds=RETRY_SECONDS),
        "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
    }
    more: dict[str, Any] = {"client_options": client, "retry_config": retries}
    make: Any
    if location.scheme == S3:
        if location.endpoint:
            client["allow_http"] = location.endpoint.startswith("http://")
            # Storages other than Amazon's ignore the region, but requests are signed with one.
            settings.setdefault("region", "us-east-1")
            settings["endpoint"] = location.endpoint
        keys = {name: settings.pop(setting) for setting, name in _KEYS.items() if setting in settings}
        if keys:
            # If they were settings, the library would combine them with a token that it finds in the environment.
            more["credential_provider"] = lambda: {**keys, "expires_at": None}
        make = S3Store
    elif location.scheme == AZURE:
        settings["account_name"] = location.account
        client["allow_http"] = settings.get("endpoint", "").startswith("http://")
        make = AzureStore
    else:
        client["allow_http"] = _base_url(settings.get("service_account", "")).startswith("http://")
        make = GCSStore
    return make(location.bucket, config=settings, **more)
