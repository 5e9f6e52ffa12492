"""From the arguments of `Server` to the options of a server. They are the flags of `halimede serve`. Pure."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from halimede.errors import Invalid
from halimede.options import HelpRequested, LogOptions, ServerOptions, VersionRequested, parse
from halimede.options.flags import FLAGS
from halimede.options.kinds import SWITCH

Value = bool | int | float | str | os.PathLike[str]
Option = Value | Sequence[Value] | None
"""The value of a flag. A list gives the flag several times. None does not give it."""


def options_of(flags: Sequence[str], options: Mapping[str, Option], environment: Mapping[str, str]) -> ServerOptions:
    """The options of `--http-port=0` and `http_port=0`. Raises Invalid, Unsupported."""
    try:
        parsed = parse([*flags, *words_of(options)], environment)
    except (HelpRequested, VersionRequested):
        raise Invalid("--help and --version are for the command: halimede serve --help") from None
    if replace(parsed.log, escape=LogOptions().escape) != LogOptions():
        raise Invalid(
            "the flags --log-... are for the command; a program sets up its own log: logging.getLogger('halimede')"
        )
    if parsed.audit_file:
        raise Invalid(
            "the flag --audit-file is for the command; with --auth a program gets these lines from "
            "logging.getLogger('halimede.audit')"
        )
    return parsed


def words_of(options: Mapping[str, Option]) -> Iterator[str]:
    """The words of a command line."""
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        for each in _each(value):
            if flag[2:] in FLAGS and FLAGS[flag[2:]].kind is SWITCH:
                yield from [flag] if each else []
            else:
                yield f"{flag}={_text(each)}"


def _each(value: Option) -> Sequence[Value]:
    if value is None:
        return ()
    return value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)


def _text(value: Value) -> str:
    return (
        str(value).lower()
        if isinstance(value, bool)
        else os.fspath(value)
        if isinstance(value, os.PathLike)
        else str(value)
    )
