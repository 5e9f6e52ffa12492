"""The `halimede` command: finds the subcommand, reads its options, prints what is wrong with them.

Knows nothing of the server: a subcommand's machinery is imported only once its command line is good, so that a mistake
is answered at once. Runs on the main thread.
"""

import os
import select
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from halimede import FORM, __version__
from halimede.backends.registry import set_environment
from halimede.errors import Error, Unsupported
from halimede.options import (
    HelpRequested,
    ServerOptions,
    VersionRequested,
    check_usage,
    completion_script,
    completion_usage,
    graph_usage,
    init_usage,
    model_run_usage,
    parse,
    parse_check,
    parse_completion,
    parse_graph,
    parse_init,
    parse_model_run,
    parse_top,
    suggestion,
    top_usage,
    usage,
)
from halimede.platform.imports import quick_imports


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
    with quick_imports():
        from halimede.cli.serve import serve

    return serve(options)


def _model(args: Sequence[str]) -> int:
    """`model run` is the only one so far."""
    if not args or args[0] != "run":
        _say(f"Usage: halimede model run PATH [options]\n\n{_not_run(args)}")
        return 1
    try:
        order = parse_model_run(args[1:])
    except HelpRequested:
        print(model_run_usage())
        return 0
    except Error as error:
        _say(f"error: {error}\nhalimede model run --help lists the options.")
        return 1
    for warning in order.server.warnings:
        _say(f"Warning: {warning}")
    with quick_imports():
        from halimede.cli.model_run import run

    return run(order)


def _not_run(args: Sequence[str]) -> str:
    return f"unknown command 'model {args[0]}'" if args else "a command is missing after 'model'"


def _top(args: Sequence[str]) -> int:
    try:
        order = parse_top(args)
    except HelpRequested:
        print(top_usage())
        return 0
    except Error as error:
        _say(f"error: {error}\nhalimede top --help lists the options.")
        return 1
    from halimede.cli.top import run

    return run(order)


def _check(args: Sequence[str]) -> int:
    try:
        order = parse_check(args)
    except HelpRequested:
        print(check_usage())
        return 0
    except Error as error:
        _say(f"error: {error}\nhalimede check --help lists the options.")
        return 1
    with quick_imports():
        from halimede.cli.check import run

    return run(order)


def _graph(args: Sequence[str]) -> int:
    try:
        order = parse_graph(args)
    except HelpRequested:
        print(graph_usage())
        return 0
    except Error as error:
        _say(f"error: {error}\nhalimede graph --help lists the options.")
        return 1
    from halimede.cli.graph import run

    return run(order)


def _init(args: Sequence[str]) -> int:
    try:
        order = parse_init(args)
    except HelpRequested:
        print(init_usage())
        return 0
    except Error as error:
        _say(f"error: {error}\nhalimede init --help lists the options.")
        return 1
    with quick_imports():
        from halimede.cli.init import run

    return run(order)


def _completion(args: Sequence[str]) -> int:
    try:
        shell = parse_completion(args)
    except HelpRequested:
        print(completion_usage())
        return 0
    except Error as error:
        _say(f"{completion_usage()}\n\nerror: {error}")
        return 1
    print(completion_script(shell, {name: command.summary for name, command in COMMANDS.items()}), end="")
    return 0


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "serve": Command("serve the models of model repositories over HTTP and gRPC", _serve),
        "top": Command("show what the models of a running server do: halimede top URL", _top),
        "init": Command("make a model of a file: halimede init FILE REPO", _init),
        "check": Command("name every problem of model repositories: halimede check REPO", _check),
        "graph": Command("draw the steps of an ensemble: halimede graph MODEL", _graph),
        "model": Command("run one model without a server: halimede model run PATH", _model),
        "completion": Command("complete commands and flags: halimede completion bash", _completion),
    }
)


def _help() -> str:
    commands = "\n".join(f"  {name:12}{command.summary}" for name, command in COMMANDS.items())
    return (
        f"Usage: halimede <command> [options]\n\nCommands:\n{commands}\n\n"
        "halimede <command> --help lists its options; halimede --version prints the version."
    )


def _version() -> int:
    print(f"halimede {__version__} ({FORM})")
    return 0


def _unknown(word: str) -> int:
    if word.startswith("-"):
        hint = f"\nFlags follow a command: halimede serve {word}"
    else:
        hint = suggestion(word, tuple(COMMANDS))
    _say(f"{_help()}\n\nunknown command '{word}'{hint}")
    return 1


def _fill_standard_descriptors() -> None:
    """Where whoever started this process closed 0, 1 or 2, the next socket would get that number, and a client what is
    written to standard error."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name) and return the exit status."""
    if argv is None:
        _fill_standard_descriptors()
    set_environment()  # before any runtime is imported, here or in a worker
    try:
        status = _run(sys.argv[1:] if argv is None else argv)
        if sys.stdout is not None:  # it is where it was closed by whoever started this process
            sys.stdout.flush()
    except BrokenPipeError:
        if _is_read(sys.stdout.fileno()):
            raise
        # `| head`: what could not be written must not fail once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return status


def _is_read(descriptor: int) -> bool:
    """False for a pipe whose reader went away."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return not poll.poll(0)


def _run(words: Sequence[str]) -> int:
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
