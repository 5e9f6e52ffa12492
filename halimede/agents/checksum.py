"""The built-in agent `checksum` (R23): a model is only loaded if its files have the expected digests.

    model_repository_agents { agents [ { name: "checksum"
      parameters { key: "MD5:1/model.plan" value: "5d41402abc4b2a76b9719d911017c592" } } ] }

A key names the digest and the file below the model's folder. Triton knows MD5 only. MD5 detects accidents and not
attacks, so this agent also knows SHA256 and SHA512.
"""

import hashlib
from pathlib import Path

from halimede.agents.api import RepositoryAgent
from halimede.errors import Internal, Invalid

_DIGESTS = {"MD5": "md5", "SHA256": "sha256", "SHA512": "sha512"}


class ChecksumAgent(RepositoryAgent):
    def load(self) -> None:
        """Raises Invalid if a digest differs, Internal if a file cannot be read."""
        for key, expected in sorted(self.model.parameters.items()):
            kind, separator, path = key.partition(":")
            if not separator or kind not in _DIGESTS:
                raise Invalid(
                    f"Unsupported checksum parameter '{key}' for model '{self.model.name}', expected one of "
                    f"{', '.join(f'{name}:<file>' for name in _DIGESTS)}"
                )
            self._check(kind, path, expected)

    def _check(self, kind: str, path: str, expected: str) -> None:
        file = self.model.folder / path
        # Otherwise a configuration could find out whether a file elsewhere has some content.
        if not file.resolve().is_relative_to(self.model.folder.resolve()):
            raise Invalid(f"file '{path}' of a checksum is outside model directory '{self.model.folder}'")
        found = _digest(kind, file)
        if found != expected.strip().lower():
            raise Invalid(f"Mismatched {kind} hash for file {path}, expect: {expected}, got: {found}")


def _digest(kind: str, file: Path) -> str:
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, _DIGESTS[kind]).hexdigest()
    except OSError as error:
        raise Internal(f"failed to open file for read {file}: {error.strerror}") from error
