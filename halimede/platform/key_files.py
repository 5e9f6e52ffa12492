"""Certificates and keys in files, without a question at the terminal."""

import ssl


def load_own(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Loads the own certificate with its chain, and its key, from PEM files. Raises OSError (also ssl.SSLError), and
    ValueError if the key is encrypted."""
    context.load_cert_chain(certificate, key, _no_password)


def _no_password() -> str:
    """Refuses a password. Without this callback OpenSSL asks at the terminal, and the start hangs."""
    raise ValueError("the key is encrypted, and its password cannot be given")
