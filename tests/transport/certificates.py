"""Certificates for a test, made by the `openssl` command: an authority, and what it or a stranger signs."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

_SIGNS = "keyUsage=critical,keyCertSign,cRLSign"
"""What Python 3.13 wants to see before it trusts an authority."""
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(*words: str | Path) -> None:
    done = subprocess.run(["openssl", *map(str, words)], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its key, PEM files."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Authority:
    folder: Path
    name: str

    @property
    def certificate(self) -> Path:
        return self.folder / f"{self.name}.pem"

    @property
    def _key(self) -> Path:
        return self.folder / f"{self.name}.key"

    @classmethod
    def made(cls, folder: Path, name: str) -> "Authority":
        authority = cls(folder, name)
        files = ("-keyout", authority._key, "-out", authority.certificate)
        _openssl("req", "-x509", *_KEY, *files, "-days", "2", "-subj", f"/CN={name}", "-addext", _SIGNS)
        return authority

    def signs(self, name: str) -> Identity:
        """An identity for `localhost` and 127.0.0.1."""
        start = self.folder / f"{self.name}-{name}"
        key, request, certificate, extensions = (start.with_suffix(f".{end}") for end in ("key", "csr", "pem", "ext"))
        extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
        _openssl("req", *_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        signing = ("-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial", "-days", "2")
        _openssl("x509", "-req", "-in", request, *signing, "-extfile", extensions, "-out", certificate)
        return Identity(certificate, key)


def encrypted(key: Path) -> Path:
    """The key in a file that only a password opens."""
    made = key.with_suffix(".encrypted")
    _openssl("pkey", "-in", key, "-aes256", "-passout", "pass:secret", "-out", made)
    return made


@dataclass(frozen=True, slots=True)
class Certificates:
    authority: Authority
    server: Identity
    client: Identity
    stranger: Identity
    """Signed by another authority."""


def certificates(folder: Path) -> Certificates:
    authority, other = Authority.made(folder, "authority"), Authority.made(folder, "other")
    return Certificates(authority, authority.signs("server"), authority.signs("client"), other.signs("stranger"))
