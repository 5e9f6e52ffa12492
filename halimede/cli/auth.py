"""`halimede auth`: makes, lists and removes the identities of a file for `--auth`. Main thread."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from halimede.cli.arguments import Auth
from halimede.cli.tables import table
from halimede.cli.terminal import say, say_error, say_warning
from halimede.errors import Error, Invalid, NotFound
from halimede.identities import file
from halimede.identities.keys import StoredKey, new_key
from halimede.identities.roles import ROLES
from halimede.identities.values import ANONYMOUS, Identity


def run(order: Auth) -> int:
    """Does what the line asks for, and returns 0; 1 if it could not."""
    try:
        _ACTIONS[order.action](order)
    except Error as error:
        say_error(str(error))
        return 1
    return 0


def _text_of(order: Auth, may_be_new: bool = False) -> str:
    path = Path(order.file)
    if may_be_new and not path.exists():
        return ""
    if not path.exists():
        raise NotFound(f"there is no file '{order.file}'; 'halimede auth add NAME --role ROLE' makes it")
    text = file.read_file(path)
    file.read_identities(path)  # its errors name the file
    return text


def _add(order: Auth) -> None:
    name = file.check_name(order.name)
    text = _text_of(order, may_be_new=True)
    if not order.roles:
        raise Invalid(f"--role is missing; the roles are {', '.join(ROLES)}")
    key, stored = _key_for(order)
    identity = Identity(
        name,
        order.roles,
        stored,
        order.subjects,
        order.rate,
        order.burst,
        order.concurrent,
        _expiry(order.expires_days),
    )
    is_new = not Path(order.file).exists()
    file.write_file(Path(order.file), file.with_identity(text, identity))
    _show(key)
    if is_new:
        say(f"use the file with: halimede serve --auth={order.file} ...")


def _key_for(order: Auth) -> tuple[str, tuple[StoredKey, ...]]:
    if order.name == ANONYMOUS:
        return "", ()
    if order.no_key:
        if not order.subjects:
            raise Invalid("--no-key needs --subject: nobody could show this identity")
        return "", ()
    key, stored = new_key()
    return key, (stored,)


def _add_key(order: Auth) -> None:
    text = _text_of(order)
    identity = file.find(text, order.name)
    if identity.name == ANONYMOUS:
        raise Invalid(f"requests of '{ANONYMOUS}' have no key")
    key, stored = new_key()
    kept = () if order.replace else identity.keys
    file.write_file(Path(order.file), file.with_replaced(text, replace(identity, keys=(*kept, stored))))
    _show(key)
    if kept:
        say(f"earlier keys of '{order.name}' still count: {', '.join(one.id for one in kept)}; --replace removes them")


def _show(key: str) -> None:
    # Only the key, so that a script can read it.
    if key:
        print(key)
        say("keep this key: it is shown only now, and the file has a hash of it")


def _remove(order: Auth) -> None:
    file.write_file(Path(order.file), file.without(_text_of(order), order.name))
    say(f"removed '{order.name}'; a running server refuses it within seconds")


def _list(order: Auth) -> None:
    identities = file.parse(_text_of(order))
    if order.json:
        print(json.dumps([_described(identity) for identity in identities.values()], indent=2))
        return
    if not identities:
        say_warning(f"'{order.file}' has no identities")
        return
    rows = [
        (
            identity.name,
            ", ".join(identity.roles),
            ", ".join([*(key.id for key in identity.keys), *identity.subjects]) or "-",
            _limits(identity) or "-",
            _expires(identity),
        )
        for identity in identities.values()
    ]
    print(table(("Name", "Roles", "Keys and subjects", "Limits", "Expires"), rows))


def _described(identity: Identity) -> Mapping[str, object]:
    return {
        "name": identity.name,
        "roles": list(identity.roles),
        "keys": [key.id for key in identity.keys],
        "subjects": list(identity.subjects),
        "rate": identity.rate or None,
        "burst": identity.burst or None,
        "concurrent": identity.concurrent or None,
        "expires": identity.expires.isoformat() if identity.expires else None,
    }


def _limits(identity: Identity) -> str:
    burst = f", {identity.burst} at once" if identity.burst else ""
    return ", ".join(
        [
            *([f"{identity.rate:g} per second{burst}"] if identity.rate else []),
            *([f"{identity.concurrent} in flight"] if identity.concurrent else []),
        ]
    )


def _expires(identity: Identity) -> str:
    if identity.expires is None:
        return "never"
    gone = " (over)" if identity.expires.timestamp() <= time.time() else ""
    return f"{identity.expires.astimezone(UTC):%Y-%m-%d %H:%M} UTC{gone}"


def _expiry(days: float) -> datetime | None:
    return datetime.fromtimestamp(int(time.time() + days * 86400), UTC) if days else None


_ACTIONS: Mapping[str, Callable[[Auth], None]] = {"add": _add, "key": _add_key, "list": _list, "remove": _remove}
