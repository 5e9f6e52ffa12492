#!/usr/bin/env python3
"""Writes an encrypted copy of a model for the agent `decrypt`.

    encrypt.py MODEL TARGET KEY_FILE

If KEY_FILE does not exist, it is created with a new key. TARGET/config.pbtxt names the agent, and KEY_FILE as it is
given here. The configuration and the file names stay readable, because the server must know which agent decrypts. Needs
`pip install 'halimede[decrypt]'`.
"""

import argparse
import base64
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agents.decrypt.agent import PIECE_BYTES, PREFIX_BYTES, SUFFIX, nonce

CONFIG = "config.pbtxt"


def encrypt_model(model: Path, target: Path, key_file: Path) -> None:
    """Writes an encrypted copy of `model` to `target`, with a configuration that names the agent."""
    key = AESGCM(_key(key_file))
    for folder, _, files in os.walk(model):
        here = Path(folder).relative_to(model)
        (target / here).mkdir(parents=True, exist_ok=True)
        for name in files:
            if (here / name).as_posix() == CONFIG:
                continue
            path = here / name
            with (model / path).open("rb") as content, (target / here / f"{name}{SUFFIX}").open("wb") as out:
                for piece in encrypted(key, content, path.as_posix()):
                    out.write(piece)
    config = (model / CONFIG).read_text(encoding="utf-8") if (model / CONFIG).is_file() else ""
    agent = f'agents [ {{ name: "decrypt" parameters {{ key: "key_file" value: "{key_file}" }} }} ]'
    (target / CONFIG).write_text(f"{config}\nmodel_repository_agents {{ {agent} }}\n", encoding="utf-8")


def encrypted(key: AESGCM, content: IO[bytes], name: str) -> Iterator[bytes]:
    """Yields the encrypted file piece by piece. `name` is its path within the model. The agent describes the format."""
    prefix = secrets.token_bytes(PREFIX_BYTES)
    yield prefix
    piece, number, last = content.read(PIECE_BYTES), 0, False
    while not last:
        following = content.read(PIECE_BYTES)
        last = not following
        yield key.encrypt(nonce(prefix, number, last), piece, name.encode())
        piece, number = following, number + 1


def _key(file: Path) -> bytes:
    if not file.exists():
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(base64.b64encode(secrets.token_bytes(32)))
    return base64.b64decode(file.read_bytes(), validate=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write an encrypted copy of a model.")
    for name in ("model", "target", "key_file"):
        parser.add_argument(name, type=Path, metavar=name.upper())
    options = parser.parse_args()
    try:
        if not options.model.is_dir():
            raise NotADirectoryError(0, "not a directory", str(options.model))
        encrypt_model(options.model, options.target, options.key_file)
    except OSError as error:
        sys.exit(f"encrypt: {error.filename}: {error.strerror}")
