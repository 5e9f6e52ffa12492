"""`halimede completion`: scripts that shtab makes of the command lines. Main thread.

The parser of `serve` here is for shtab only. The server reads its own flags (`options.parser`).
"""

import argparse
import re
from collections.abc import Iterator, Mapping

import shtab

from halimede.analyze.command_line import COMMANDS as ANALYZE_COMMANDS
from halimede.analyze.fields import FIELDS
from halimede.cli.arguments import COMMANDS
from halimede.options.flags import FLAGS, SERVED, Flag
from halimede.options.kinds import BOOLEAN, SWITCH
from halimede.perf.flags import ROWS

_DIRECTORIES = re.compile(r"-(repository|directory|store)$")
_FILES = re.compile(r"^auth$|-(file|cert|key)$")
_PATHS = {"DIRECTORY": shtab.DIRECTORY, "REPO": shtab.DIRECTORY, "PATH": shtab.DIRECTORY, "FILE": shtab.FILE}
"""How to complete an argument, by the name that the help gives its value."""

_BASH_EQUALS = """
# Bash splits --flag=value into three words, and the function above expects two.
_halimede() {
  local word
  local -a words=()
  for word in "${COMP_WORDS[@]:0:COMP_CWORD}"; do
    [[ $word == "=" ]] || words+=("$word")
  done
  words+=("${COMP_WORDS[COMP_CWORD]#=}")
  local -a COMP_WORDS=("${words[@]}")
  local COMP_CWORD=$(( ${#words[@]} - 1 ))
  _shtab_halimede
}
complete -o bashdefault -F _halimede halimede

# tritonserver is `halimede serve`.
_tritonserver() {
  local -a COMP_WORDS=(halimede serve "${COMP_WORDS[@]:1}")
  local COMP_CWORD=$(( COMP_CWORD + 1 ))
  _halimede
}
complete -o bashdefault -F _tritonserver tritonserver
"""


def script_of(shell: str, summaries: Mapping[str, str]) -> str:
    """The script for `shell`, one of `arguments.SHELLS`. `summaries` are those of all commands, by name."""
    script = str(shtab.complete(parser_of(summaries), shell))
    return script + _BASH_EQUALS if shell == "bash" else script


def parser_of(summaries: Mapping[str, str]) -> argparse.ArgumentParser:
    """The whole command line, with what shtab needs to complete paths."""
    parser = argparse.ArgumentParser("halimede")
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers()
    for name, summary in summaries.items():
        command = commands.add_parser(name, help=_plain(summary))
        if name == "serve":
            add_serve(command)
        elif name == "perf":
            add_perf(command)
        elif name == "analyze":
            add_analyze(command)
        elif name == "help":
            command.add_argument("command", nargs="?", choices=list(summaries))
        elif name in COMMANDS:
            COMMANDS[name][0](command)
        else:
            _add_nested(command, name)
        command.description = _plain(summary)  # a shell shows it beside the name: one line
        for each in actions_of(command):
            if each.metavar in _PATHS:
                each.complete = _PATHS[each.metavar]  # type: ignore[attr-defined]
    return parser


def add_serve(parser: argparse.ArgumentParser) -> None:
    """The flags of `halimede serve` that have an effect and are not deprecated."""
    for flag in FLAGS.values():
        # argparse adds `--help` itself.
        if flag.support is SERVED and not flag.deprecated and flag.name != "help":
            _add_flag(parser, flag)


def add_perf(parser: argparse.ArgumentParser) -> None:
    """The options of `halimede perf`."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="the model to measure")
    for row in ROWS:
        names = [*([f"-{row.short}"] if row.short else []), *([f"--{row.name}"] if row.name else [])]
        if row.name == "help":  # argparse adds it itself
            continue
        text = _plain(row.help)
        if row.value:
            parser.add_argument(*names, metavar=row.value, help=text)
        else:
            parser.add_argument(*names, action="store_true", help=text)


def add_analyze(parser: argparse.ArgumentParser) -> None:
    """The commands and options of `halimede analyze`."""
    commands = parser.add_subparsers()
    for name in ANALYZE_COMMANDS:
        command = commands.add_parser(name, help="")
        command.description = ""
        command.add_argument("names", nargs="*")
        for field in FIELDS.values():
            if name in field.commands and field.help:
                names = [*([f"-{field.short}"] if field.short else []), field.flag]
                if field.kind == "bool":
                    command.add_argument(*names, action="store_true", help=_plain(field.help))
                else:
                    choices = list(field.choices) or None
                    shown = _metavar(field.flag)
                    command.add_argument(*names, choices=choices, metavar=shown, help=_plain(field.help))


def _add_flag(parser: argparse.ArgumentParser, flag: Flag) -> None:
    text = _plain(flag.help)
    if flag.kind is SWITCH:
        parser.add_argument(f"--{flag.name}", action="store_true", help=text)
        return
    # The label of a choice lists its words.
    words = ["true", "false"] if flag.kind is BOOLEAN else flag.kind.label.split("|")
    parser.add_argument(
        f"--{flag.name}", choices=words if len(words) > 1 else None, metavar=_metavar(flag.name), help=text
    )


def _metavar(name: str) -> str:
    return "DIRECTORY" if _DIRECTORIES.search(name) else "FILE" if _FILES.search(name) else "VALUE"


def _add_nested(parser: argparse.ArgumentParser, first: str) -> None:
    """Commands of two words, such as `model run`."""
    commands = parser.add_subparsers()
    for name, (add, _) in COMMANDS.items():
        if name.startswith(f"{first} "):
            command = commands.add_parser(name.removeprefix(f"{first} "), help="")
            add(command)
            command.description = ""


def actions_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of a parser and of its subcommands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from actions_of(each)


def _plain(text: str) -> str:
    """Help text as argparse takes it: it replaces what stands after a percent sign."""
    return text.replace("%", "%%")
