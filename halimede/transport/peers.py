"""The names in the certificate of a client. Pure, but for the transport; event-loop thread only.

| name | from |
| --- | --- |
| `CN=alice,O=Acme` | the whole subject, in the order of RFC 4514 (the last part first) |
| `CN=alice` | the common name |
| `DNS:host.example`, `URI:spiffe://...`, `email:alice@example.com` | the alternative names |
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final

MAX_NAMES: Final = 64
"""Names of a certificate that are looked at."""

_SHORT: Final = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
"""The names of RFC 4514 for the parts of a subject."""
_KINDS: Final = frozenset({"DNS", "URI", "email"})
_ESCAPED: Final = str.maketrans({character: f"\\{character}" for character in '",+<>;\\'})


def names_of(transport: asyncio.BaseTransport) -> tuple[str, ...]:
    """Returns the names of the client of a connection; none unless the server has asked for a certificate and checked
    it."""
    certificate = transport.get_extra_info("peercert")
    return tuple(names_in(certificate)) if certificate else ()


def names_in(certificate: Mapping[str, Any]) -> list[str]:
    """Returns the names in a certificate, as `ssl.SSLSocket.getpeercert` describes it."""
    parts = [pair for part in certificate.get("subject", ()) for pair in part]
    found = [_subject(certificate)] if parts else []
    found += [f"CN={_escaped(value)}" for kind, value in parts if kind == "commonName"]
    found += [f"{kind}:{value}" for kind, value in _alternatives(certificate)]
    return list(dict.fromkeys(found))[:MAX_NAMES]


def _alternatives(certificate: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for kind, value in certificate.get("subjectAltName", ()):
        if kind in _KINDS:
            yield kind, value


def _subject(certificate: Mapping[str, Any]) -> str:
    parts = reversed(certificate.get("subject", ()))
    return ",".join("+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in part) for part in parts)


def _escaped(value: str) -> str:
    escaped = value.translate(_ESCAPED)
    if escaped.startswith((" ", "#")):
        escaped = f"\\{escaped}"
    return f"{escaped[:-1]}\\ " if len(value) > 1 and value.endswith(" ") else escaped
