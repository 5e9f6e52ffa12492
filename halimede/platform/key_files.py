"""Certificates and keys in files, without a question at the terminal."""

import ssl


def load_own(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Takes who this is from PEM files: a certificate with its chain, and its key. Raises OSError (ssl.SSLError among
    them) or ValueError, the latter where the key is encrypted."""
    context.load_cert_chain(certificate, key, _no_password)


def _no_password() -> str:
    """Without it the library asks at the terminal, and the start waits."""
    raise ValueError("the key is encrypted, and its password cannot be given")
