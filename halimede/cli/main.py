"""The `halimede` command: finds the subcommand, reads its options, prints what is wrong with them.

Knows nothing of the server: a subcommand's machinery is imported only once its command line is good, so that a mistake
is answered at once. Runs on the main thread.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from halimede import __version__
from halimede.errors import Error, Unsupported
from halimede.options import HelpRequested, ServerOptions, VersionRequested, parse, suggestion, usage


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand: takes the words after its name, returns the exit status of the process."""

    summary: str
    run: Callable[[Sequence[str]], int]


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _serve(args: Sequence[str]) -> int:
    """Exit status 1 for help and for every mistake: the usage text on stderr and the message last, as C1 has it."""
    try:
        options = parse(args, os.environ)
    except HelpRequested:
        _say(usage())
        return 1
    except VersionRequested:
        return _version()
    except Unsupported as error:
        # Not a mistake in the line: four hundred lines of usage would hide the one that counts.
        _say(f"error: {error}")
        return 1
    except Error as error:
        _say(f"{usage()}\n{error}")
        return 1
    return _start(options)


def _start(options: ServerOptions) -> int:
    for warning in options.warnings:
        _say(f"Warning: {warning}")
    if not options.model_repositories:
        _say("error: creating server: Invalid argument - --model-repository must be specified")
        return 1
    from halimede.cli.serve import serve

    return serve(options)


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {"serve": Command("serve the models of model repositories over HTTP and gRPC", _serve)}
)


def _help() -> str:
    commands = "\n".join(f"  {name:10}{command.summary}" for name, command in COMMANDS.items())
    return (
        f"Usage: halimede <command> [options]\n\nCommands:\n{commands}\n\n"
        "halimede <command> --help lists its options; halimede --version prints the version."
    )


def _version() -> int:
    print(f"halimede {__version__}")
    return 0


def _unknown(word: str) -> int:
    if word.startswith("-"):
        hint = f"\nFlags follow a command: halimede serve {word}"
    else:
        hint = suggestion(word, tuple(COMMANDS))
    _say(f"{_help()}\n\nunknown command '{word}'{hint}")
    return 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name) and return the exit status."""
    words = sys.argv[1:] if argv is None else argv
    if not words:
        _say(_help())
        return 1
    first, *rest = words
    if first in ("--help", "-h"):
        print(_help())
        return 0
    if first == "--version":
        return _version()
    command = COMMANDS.get(first)
    return command.run(rest) if command else _unknown(first)
