"""The command line of `halimede check`. Pure. Raises `Invalid` for a wrong line, `HelpRequested` before any error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType

from halimede.errors import Invalid
from halimede.options.flags import FLAGS, Flag
from halimede.options.kinds import SWITCH
from halimede.options.parser import parse
from halimede.options.usage import listing
from halimede.options.values import ServerOptions
from halimede.options.words import read_words, words_of

_OWN = (
    Flag("help", SWITCH, None, "Print this text."),
    Flag("json", SWITCH, None, "Print one JSON document, for tools."),
    Flag("strict", SWITCH, None, "Exit status 1 for warnings too."),
    Flag(
        "load", SWITCH, None,
        "Load the models too, as the server would, without its ports. This runs their code.",
    ),
)  # fmt: skip
_OF_THE_SERVER = tuple(
    FLAGS[name]
    for name in (
        "backend-directory",
        "backend-config",
        "repoagent-directory",
        "model-config-name",
        "disable-auto-complete-config",
        "model-namespacing",
        "log-verbose",
    )
)
CHECK_FLAGS: Mapping[str, Flag] = MappingProxyType({flag.name: flag for flag in (*_OWN, *_OF_THE_SERVER)})


@dataclass(frozen=True, slots=True)
class Check:
    """What to look at and how; `server` has what concerns loading."""

    repositories: tuple[str, ...]
    json: bool
    strict: bool
    load: bool
    server: ServerOptions


def check_usage() -> str:
    return (
        "Usage: halimede check REPO [REPO...] [options]\n\n"
        "Names every problem of the models in these repositories: where it is, and what to\n"
        "write instead. Nothing of the models is executed, unless --load asks for it. Exit\n"
        "status 1 where there are errors, 0 where there are none or warnings only.\n\n"
        + listing({"": _OWN, "As of the server": _OF_THE_SERVER})
    )


def parse_check(args: Sequence[str]) -> Check:
    """Reads the words after `check`."""
    given, repositories = read_words(args, CHECK_FLAGS)
    if not repositories:
        raise Invalid("REPO, the directory of a model repository, is missing")
    words = words_of(given, CHECK_FLAGS, [flag.name for flag in _OWN])
    server = parse(["--model-control-mode=explicit", *words], {})
    plain = (each if "://" in each else str(PurePath(each)) for each in repositories)
    return Check(tuple(dict.fromkeys(plain)), "json" in given, "strict" in given, "load" in given, server)
