"""A repository agent that decrypts a model into a private folder, which is removed when the model is unloaded.

The model's configuration names the agent:

    model_repository_agents {
      agents [ { name: "decrypt" parameters { key: "key_file" value: "/run/secrets/model.key" } } ]
    }

Start the server with `--repoagent-directory` set to the parent of this folder. In place of `key_file`, the parameter
`key_variable` may name an environment variable with the key (base64 of 32 bytes). `../encrypt.py` writes such models.
Files with the suffix `.encrypted` are decrypted, all others are copied.

An encrypted file is a random prefix of 7 bytes and pieces of up to 1 MiB, each encrypted with AES-256-GCM. The nonce is
the prefix, the number of the piece (4 bytes), and one byte that is 1 for the last piece. So pieces cannot be swapped or
removed. The path of the file within the model is authenticated with each piece, so files cannot be swapped either.

Needs the package `cryptography`. To keep decrypted files off the disk, set TMPDIR to a folder in memory.
"""

import base64
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from halimede.agents import RepositoryAgent

SUFFIX = ".encrypted"
PREFIX_BYTES = 7
PIECE_BYTES = 1 << 20
TAG_BYTES = 16


class DecryptAgent(RepositoryAgent):
    """Decrypts the files of a model when it is loaded."""

    def load(self) -> Path:
        key = AESGCM(self._key())
        target = self.model.private_folder() / self.model.name
        for folder, folders, files in os.walk(self.model.folder):
            here = Path(folder).relative_to(self.model.folder)
            (target / here).mkdir(exist_ok=True)
            for name in files:
                self._copy(key, here / name, target)
            folders.sort()
        return target

    def _copy(self, key: AESGCM, path: Path, target: Path) -> None:
        source = self.model.folder / path
        if path.suffix != SUFFIX:
            shutil.copyfile(source, target / path)
            return
        plain = path.with_suffix("")
        with source.open("rb") as content, (target / plain).open("wb") as out:
            for piece in decrypted(key, content, plain.as_posix()):
                out.write(piece)

    def _key(self) -> bytes:
        parameters = self.model.parameters
        if "key_file" in parameters:
            text = Path(parameters["key_file"]).read_text(encoding="ascii")
        elif "key_variable" in parameters:
            text = os.environ[parameters["key_variable"]]
        else:
            raise ValueError("the agent 'decrypt' needs a parameter 'key_file' or 'key_variable'")
        return base64.b64decode(text.strip(), validate=True)


def nonce(prefix: bytes, number: int, last: bool) -> bytes:
    """The nonce of piece `number` of a file with this prefix."""
    return prefix + number.to_bytes(4, "big") + bytes([last])


def decrypted(key: AESGCM, content: IO[bytes], name: str) -> Iterator[bytes]:
    """Yields the decrypted file piece by piece. Raises ValueError if the key is wrong or the file was changed."""
    prefix = content.read(PREFIX_BYTES)
    piece, number, last = content.read(PIECE_BYTES + TAG_BYTES), 0, False
    while not last:
        following = content.read(PIECE_BYTES + TAG_BYTES)
        last = not following
        try:
            yield key.decrypt(nonce(prefix, number, last), piece, name.encode())
        except (InvalidTag, ValueError) as error:
            raise ValueError(f"'{name}' cannot be decrypted: the key is wrong, or the file was changed") from error
        piece, number = following, number + 1
