"""A repository agent that decrypts a model into a private folder, which vanishes when the model is unloaded.

In the model's configuration:

    model_repository_agents {
      agents [ { name: "decrypt" parameters { key: "key_file" value: "/run/secrets/model.key" } } ]
    }

and the server is started with `--repoagent-directory` naming the folder above this one. Instead of `key_file`,
`key_variable` names an environment variable with the key (base64 of 32 bytes). `encrypt.py`, beside this folder, writes
such models. Files that end in `.encrypted` are decrypted, the others are copied.

A file is a random prefix of 7 bytes, then pieces of up to 1 MiB, each with AES-256-GCM: a nonce is the prefix, the
number of the piece (4 bytes), and 1 for the last piece, so that pieces can be neither exchanged nor left out. The name
of the file within the model goes with each piece, so that files cannot be exchanged either.

Needs the package `cryptography`. To keep the decrypted files off the disk, let TMPDIR name a folder in memory.
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
    return prefix + number.to_bytes(4, "big") + bytes([last])


def decrypted(key: AESGCM, content: IO[bytes], name: str) -> Iterator[bytes]:
    """The pieces of a file. Raises ValueError where the key is another or the file was changed."""
    prefix = content.read(PREFIX_BYTES)
    piece, number, last = content.read(PIECE_BYTES + TAG_BYTES), 0, False
    while not last:
        following = content.read(PIECE_BYTES + TAG_BYTES)
        last = not following
        try:
            yield key.decrypt(nonce(prefix, number, last), piece, name.encode())
        except (InvalidTag, ValueError) as error:
            raise ValueError(f"'{name}' cannot be decrypted: the key is another, or the file was changed") from error
        piece, number = following, number + 1
