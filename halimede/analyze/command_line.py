"""The command line of `halimede analyze`: `[-q] [-v] profile|report [options]`, as in Model Analyzer (X31). Pure."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from halimede.analyze.fields import FIELDS, Field
from halimede.analyze.settings import Settings, read
from halimede.errors import Invalid

COMMANDS = ("profile", "report")
OLD_NAMES = {"analyze": "profile"}
"""`analyze` was a command of its own once."""
MODES = ("online", "offline")


class HelpRequested(Exception):
    """`--help` was given. The text is the help."""


class VersionRequested(Exception):
    """`--version` was given."""


@dataclass(frozen=True, slots=True)
class Order:
    """A command line."""

    settings: Settings
    is_quiet: bool = False


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Invalid(message)


def parse(words: Sequence[str], width: int = 100) -> Order:
    """Reads a command line, and the YAML file that it names. Raises Invalid, HelpRequested or VersionRequested."""
    words = list(words)
    perf_words: list[str] = []
    if "--" in words:
        at = words.index("--")
        words, perf_words = words[:at], words[at + 1 :]
    head = _Parser(prog="halimede analyze", add_help=False)
    _add_common(head)
    head.add_argument("-m", "--mode", choices=MODES)
    head.add_argument("--version", action="store_true")
    number = next((k for k, word in enumerate(words) if word in COMMANDS or word in OLD_NAMES), len(words))
    before, rest = words[:number], words[number + 1 :]
    first = head.parse_args(before)
    if first.version:
        raise VersionRequested
    if first.help or not words:
        raise HelpRequested(_help(width))
    if number == len(words):
        raise Invalid("profile or report must follow: halimede analyze profile MODEL -m REPOSITORY")
    command = OLD_NAMES.get(words[number], words[number])
    parser = _parser(command, width)
    found = vars(parser.parse_args(rest))
    if found.pop("help"):
        raise HelpRequested(parser.format_help())
    is_quiet = found.pop("quiet") or first.quiet
    found.pop("verbose")
    positional = found.pop("positional")
    given: dict[str, Any] = {name: value for name, value in found.items() if value is not None}
    if positional:
        name = "profile_models" if command == "profile" else "report_model_configs"
        given[name] = ",".join([*([given[name]] if name in given else []), *positional])
    return Order(read(command, given, perf_words), is_quiet)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-h", "--help", action="store_true", help="show this help")
    parser.add_argument("-q", "--quiet", action="store_true", help="print only the result")
    parser.add_argument("-v", "--verbose", action="store_true", help="has no effect: everything is printed unless -q")


def _parser(command: str, width: int) -> argparse.ArgumentParser:
    what, words = (
        ("Finds the configuration of models that serves best. Words after -- go to halimede perf.", "MODEL")
        if command == "profile"
        else ("Writes reports of configurations that were measured.", "CONFIG")
    )
    parser = _Parser(
        prog=f"halimede analyze {command}",
        usage=f"halimede analyze {command} {words} ... [options]" + (" [-- OPTIONS]" if command == "profile" else ""),
        description=what,
        add_help=False,
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=32, width=width),
    )
    _add_common(parser)
    parser.add_argument("positional", nargs="*", metavar=words, help="names, with blanks or commas between them")
    groups: dict[str, Any] = {}
    for row in FIELDS.values():
        if command in row.commands and (row.help or row.kind != "map"):
            if row.group not in groups:
                groups[row.group] = parser.add_argument_group(row.group)
            _add(groups[row.group], row)
    return parser


def _add(group: Any, row: Field) -> None:
    names = [f"-{row.short}"] if row.short else []
    text = (row.help or argparse.SUPPRESS).replace("%", "%%")
    if row.kind == "bool":
        group.add_argument(*names, row.flag, dest=row.name, action="store_const", const=True, help=text)
    else:
        shown = "|".join(row.choices) if row.choices else row.kind.upper()
        group.add_argument(*names, row.flag, dest=row.name, metavar=shown, help=text)


def _help(width: int) -> str:
    return (
        "Usage: halimede analyze [-q] [-v] COMMAND [options]\n\nCommands:\n"
        "  profile     find the best configuration: halimede analyze profile MODEL -m REPOSITORY\n"
        "  report      write reports of what was measured: halimede analyze report CONFIG\n\n"
        "halimede analyze COMMAND --help lists its options. They are those of Triton's Model Analyzer.\n"
    )
