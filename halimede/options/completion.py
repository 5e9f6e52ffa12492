"""Completion of command lines for shells, made from the tables of flags: for each subcommand its flags, and for each
flag what may follow it. Pure.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from halimede.errors import Invalid
from halimede.options.check import CHECK_FLAGS
from halimede.options.flags import FLAGS, SERVED, Flag
from halimede.options.graph import GRAPH_FLAGS
from halimede.options.init import INIT_FLAGS
from halimede.options.kinds import BOOLEAN, SWITCH
from halimede.options.model_run import MODEL_RUN_FLAGS
from halimede.options.parser import HelpRequested, suggestion
from halimede.options.top import TOP_FLAGS

FILE, DIRECTORY, ANYTHING = "file", "directory", ""

_DIRECTORIES = re.compile(r"-(repository|directory|store)$")
_FILES = re.compile(r"(-file|-cert|-key|^svg|^input)$")


@dataclass(frozen=True, slots=True)
class Line:
    """The words of a subcommand, its flags, and what its arguments are: `FILE`, `DIRECTORY`, one of some words, or
    nothing that is known."""

    words: str
    flags: Mapping[str, Flag]
    argument: str | tuple[str, ...] = ANYTHING

    @property
    def served(self) -> list[Flag]:
        """Those that have an effect and a future."""
        return [flag for flag in self.flags.values() if flag.support is SERVED and not flag.deprecated]


SHELLS = ("bash", "zsh", "fish")
LINES = (
    Line("serve", FLAGS),
    Line("top", TOP_FLAGS),
    Line("init", INIT_FLAGS, FILE),
    Line("check", CHECK_FLAGS, DIRECTORY),
    Line("graph", GRAPH_FLAGS),
    Line("model run", MODEL_RUN_FLAGS, DIRECTORY),
    Line("completion", MappingProxyType({}), SHELLS),
)


def completion_usage() -> str:
    return (
        "Usage: halimede completion bash|zsh|fish\n\n"
        "Prints what makes the shell complete commands, flags and their values:\n\n"
        "  bash:  source <(halimede completion bash)              in ~/.bashrc\n"
        "  zsh:   source <(halimede completion zsh)               in ~/.zshrc, after compinit\n"
        "  fish:  halimede completion fish > ~/.config/fish/completions/halimede.fish"
    )


def parse_completion(args: Sequence[str]) -> str:
    """The shell that the words after `completion` name."""
    if any(word in ("--help", "-h") for word in args):
        raise HelpRequested
    if len(args) != 1:
        raise Invalid(f"Unexpected argument: {args[1]}" if args else f"a shell is missing: one of {', '.join(SHELLS)}")
    if args[0] not in SHELLS:
        raise Invalid(f"'{args[0]}' is not one of {', '.join(SHELLS)}{suggestion(args[0], SHELLS)}")
    return args[0]


def completion_script(shell: str, summaries: Mapping[str, str], lines: Sequence[Line] = LINES) -> str:
    """`summaries` say what each subcommand is for, by its first word."""
    made: Mapping[str, Callable[[Mapping[str, str], Sequence[Line]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    return made[shell](summaries, lines)


def _values(flag: Flag) -> str | tuple[str, ...]:
    """What may follow a flag, as `Line.argument` has it."""
    if flag.kind is BOOLEAN:
        return ("true", "false")
    if "|" in flag.kind.label:
        return tuple(flag.kind.label.split("|"))
    if _DIRECTORIES.search(flag.name):
        return DIRECTORY
    return FILE if _FILES.search(flag.name) else ANYTHING


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[a-z)])[.:;] |\.$", text, maxsplit=1)[0]


def _nested(lines: Iterable[Line]) -> dict[str, list[str]]:
    """The second words of subcommands that have some."""
    nested: dict[str, list[str]] = {}
    for line in lines:
        first, _, second = line.words.partition(" ")
        if second:
            nested.setdefault(first, []).append(second)
    return nested


# bash

_BASH = """# Completion of `halimede` for bash.
_halimede() {{
  local IFS=$' \\t\\n' cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}"
  local line="${{COMP_WORDS[1]}}" flags="" argument="" words=""
  COMPREPLY=()
  if [[ $cur == "=" ]]; then
    cur=""
  elif [[ $prev == "=" ]] && (( COMP_CWORD > 2 )); then
    prev="${{COMP_WORDS[COMP_CWORD-2]}}"
  fi
  if (( COMP_CWORD == 1 )); then
    COMPREPLY=( $(compgen -W "{commands} --help --version" -- "$cur") )
    return
  fi
{nested}  case "$line" in
{cases}  esac
  if [[ $cur == -* ]]; then
    argument=words words="$flags"
  fi
  case "$argument" in
    words) COMPREPLY=( $(compgen -W "$words" -- "$cur") ) ;;
    directory) IFS=$'\\n'; compopt -o filenames 2>/dev/null; COMPREPLY=( $(compgen -d -- "$cur") ) ;;
    file) IFS=$'\\n'; compopt -o filenames 2>/dev/null; COMPREPLY=( $(compgen -f -- "$cur") ) ;;
  esac
}}
complete -F _halimede halimede
"""


def _bash(summaries: Mapping[str, str], lines: Sequence[Line]) -> str:
    nested = "".join(
        f"  if [[ $line == {first} ]]; then\n    if (( COMP_CWORD == 2 )); then\n      COMPREPLY=( $(compgen -W "
        f'"{" ".join(seconds)}" -- "$cur") )\n      return\n    fi\n    line="{first} ${{COMP_WORDS[2]}}"\n  fi\n'
        for first, seconds in _nested(lines).items()
    )
    return _BASH.format(commands=" ".join(summaries), nested=nested, cases="".join(map(_bash_case, lines)))


def _bash_case(line: Line) -> str:
    flags = " ".join(f"--{flag.name}" for flag in line.served)
    told = [f'    "{line.words}")\n      flags="{flags}" {_bash_argument(line.argument)}\n']
    follows: dict[str, list[str]] = {}
    for flag in line.served:
        if flag.kind is not SWITCH:
            follows.setdefault(f'flags="" {_bash_argument(_values(flag))}', []).append(f"--{flag.name}")
    if follows:
        rows = "".join(f"        {'|'.join(names)}) {what} ;;\n" for what, names in follows.items())
        told.append(f'      case "$prev" in\n{rows}      esac\n')
    return "".join([*told, "      ;;\n"])


def _bash_argument(argument: str | tuple[str, ...]) -> str:
    return f'argument="{argument}"' if isinstance(argument, str) else f'argument=words words="{" ".join(argument)}"'


# zsh

_ZSH = """#compdef halimede
# Completion of `halimede` for zsh.
_halimede() {{
  local -a commands
  commands=(
{commands}  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local line=$words[2]
{nested}  shift words
  (( CURRENT-- ))
  case $line in
{cases}  esac
}}
if [[ $funcstack[1] == _halimede ]]; then
  _halimede "$@"
else
  compdef _halimede halimede
fi
"""


def _zsh(summaries: Mapping[str, str], lines: Sequence[Line]) -> str:
    commands = "".join(f"    '{name}:{_zsh_text(summary)}'\n" for name, summary in summaries.items())
    nested = "".join(
        f"  if [[ $line == {first} ]]; then\n    if (( CURRENT == 3 )); then\n      compadd {' '.join(seconds)}\n"
        f'      return\n    fi\n    line="{first} $words[3]"\n    shift words\n    (( CURRENT-- ))\n  fi\n'
        for first, seconds in _nested(lines).items()
    )
    return _ZSH.format(commands=commands, nested=nested, cases="".join(map(_zsh_case, lines)))


def _zsh_case(line: Line) -> str:
    specs = [_zsh_flag(flag) for flag in line.served]
    if line.argument:
        specs.append(f"'*:argument:{_zsh_action(line.argument)}'")
    rows = " \\\n".join(f"        {spec}" for spec in specs)
    return f'    "{line.words}")\n      _arguments \\\n{rows}\n      ;;\n'


def _zsh_flag(flag: Flag) -> str:
    told = f"[{_zsh_text(_first_sentence(flag.help))}]"
    many = "*" if flag.repeatable else ""
    if flag.kind is SWITCH:
        return f"'{many}--{flag.name}{told}'"
    return f"'{many}--{flag.name}={told}:{_zsh_text(flag.kind.label)}:{_zsh_action(_values(flag))}'"


def _zsh_action(argument: str | tuple[str, ...]) -> str:
    if isinstance(argument, tuple):
        return f"({' '.join(argument)})"
    return {DIRECTORY: "_files -/", FILE: "_files"}.get(argument, " ")


def _zsh_text(text: str) -> str:
    return re.sub(r"([\[\]:\\])", r"\\\1", text).replace("'", "'\\''")


# fish


def _fish(summaries: Mapping[str, str], lines: Sequence[Line]) -> str:
    told = ["# Completion of `halimede` for fish.", "complete -c halimede -f"]
    told += [
        f"complete -c halimede -n __fish_use_subcommand -a {name} -d {_fish_text(summary)}"
        for name, summary in summaries.items()
    ]
    for first, seconds in _nested(lines).items():
        condition = f"__fish_seen_subcommand_from {first}; and not __fish_seen_subcommand_from {' '.join(seconds)}"
        told.append(f"complete -c halimede -n '{condition}' -a '{' '.join(seconds)}'")
    for line in lines:
        told += _fish_lines(line)
    return "\n".join(told) + "\n"


def _fish_lines(line: Line) -> list[str]:
    start = f"complete -c halimede -n '__fish_seen_subcommand_from {line.words.rpartition(' ')[2]}'"
    told = [f"{start} {_fish_argument(line.argument)}"] if line.argument else []
    for flag in line.served:
        what = "" if flag.kind is SWITCH else f" -r {_fish_argument(_values(flag))}"
        told.append(f"{start} -l {flag.name}{what} -d {_fish_text(_first_sentence(flag.help))}".replace("  ", " "))
    return told


def _fish_argument(argument: str | tuple[str, ...]) -> str:
    if isinstance(argument, tuple):
        return f"-f -a '{' '.join(argument)}'"
    return {DIRECTORY: "-f -a '(__fish_complete_directories)'", FILE: "-F"}.get(argument, "-f")


def _fish_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
