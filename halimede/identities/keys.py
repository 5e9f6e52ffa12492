"""Keys: how they are made, how they are stored, and how requests carry them. Pure, except for randomness; any thread.

A key is `halimede_ID_SECRET`. The id is public: it finds the key in the file, and stands in the audit. The secret has
256 random bits, so one SHA-256 is enough to store it (docs/decisions/auth.md).
"""

import binascii
from base64 import b64decode
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from typing import Final

from halimede.errors import Invalid, Unauthenticated

PREFIX: Final = "halimede_"
"""The beginning of every key, by which tools that search for secrets can find it."""
MAX_KEY_CHARACTERS: Final = 256
"""Characters of a key that is looked up."""
_SECRET_BYTES: Final = 32
_ID_BYTES: Final = 4
_ALGORITHM: Final = "sha256"

MALFORMED: Final = "the header 'authorization' must be 'Bearer KEY', or 'Basic' with any name and the key as password"


@dataclass(frozen=True, slots=True)
class StoredKey:
    """What a file has of a key: its id and its SHA-256."""

    id: str
    digest: bytes

    def __str__(self) -> str:
        return f"{self.id}:{_ALGORITHM}:{self.digest.hex()}"

    def matches(self, key: str) -> bool:
        """Whether this is the key. Takes the same time whatever the key is."""
        return compare_digest(self.digest, sha256(key.encode(errors="replace")).digest())


def new_key() -> tuple[str, StoredKey]:
    """Returns a new key, and what to store of it."""
    import secrets  # no server needs it

    number = secrets.token_hex(_ID_BYTES)
    key = f"{PREFIX}{number}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    return key, StoredKey(number, sha256(key.encode()).digest())


def read_stored(text: str) -> StoredKey:
    """Returns a key as a file has it. Raises Invalid if the text is none."""
    number, _, rest = text.partition(":")
    algorithm, _, digest = rest.partition(":")
    try:
        value = bytes.fromhex(digest)
    except ValueError:
        value = b""
    if not number.isalnum() or algorithm != _ALGORITHM or len(value) != sha256().digest_size:
        # The text is not repeated: it may be a key that somebody has pasted here.
        raise Invalid("a key must be 'ID:sha256:HEX', as 'halimede auth add' writes it")
    return StoredKey(number, value)


def id_of(key: str) -> str:
    """Returns the id in a key; empty if it has none."""
    if not key.startswith(PREFIX) or len(key) > MAX_KEY_CHARACTERS:
        return ""
    return key[len(PREFIX) :].partition("_")[0]


def key_in(authorization: str) -> str:
    """Returns the key in the value of an `authorization` header. Raises Unauthenticated if its form is unknown."""
    scheme, _, value = authorization.partition(" ")
    word = scheme.lower()
    if word == "bearer":
        return value.strip()
    if word == "basic":
        try:
            text = b64decode(value.strip(), validate=True).decode()
        except (binascii.Error, ValueError):
            raise Unauthenticated(MALFORMED) from None
        return text.partition(":")[2]
    raise Unauthenticated(MALFORMED)
