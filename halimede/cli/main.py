"""The commands `halimede` and `tritonserver`: find the subcommand, have its options read, and print what is wrong with
them.

Imports the machinery of a subcommand only after its command line was read, so a wrong line is answered at once. Main
thread.
"""

import os
import select
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import MappingProxyType

from halimede import FORM, __version__
from halimede.backends.registry import set_environment
from halimede.cli.terminal import help_width, say, say_error, say_warning
from halimede.errors import Error, Unsupported
from halimede.options import HelpRequested, ServerOptions, VersionRequested, parse, suggestion, usage
from halimede.platform.imports import quick_imports


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand. `run` takes the words after its name and returns the exit status of the process."""

    summary: str
    run: Callable[[Sequence[str]], int]


def _serve(args: Sequence[str]) -> int:
    try:
        options = parse(args, os.environ)
    except HelpRequested:
        print(usage(width=help_width()), end="")
        return 0
    except VersionRequested:
        return _version()
    except Error as error:
        return _refuse("halimede serve", error)
    return _start(options)


def _serve_as_triton(args: Sequence[str]) -> int:
    """For scripts that were written for Triton: help and mistakes are the usage text on standard error, with the
    message last, and status 1 (C1)."""
    try:
        options = parse(args, os.environ)
    except HelpRequested:
        say(usage("tritonserver"))
        return 1
    except VersionRequested:
        return _version()
    except Unsupported as error:
        # The line has no mistake, so the usage text would only hide this message.
        say_error(str(error))
        return 1
    except Error as error:
        say(f"{usage('tritonserver')}\n{error}")
        return 1
    return _start(options)


def _refuse(command: str, error: Error) -> int:
    """Says what is wrong with a line, and where to look if the message names nothing better."""
    text = str(error)
    hint = "" if text.endswith("?") or isinstance(error, Unsupported) else f"\n{command} --help lists the options."
    say_error(text.removeprefix("Error: ") + hint)  # the prefix is Triton's
    return 1


def _start(options: ServerOptions) -> int:
    for warning in options.warnings:
        say_warning(warning, "Warning")
    # A step of the start in Triton, so the text has the form of its start (C8).
    if not options.model_repositories:
        say_error("creating server: Invalid argument - --model-repository must be specified")
        return 1
    with quick_imports():
        from halimede.cli.serve import serve

    return serve(options)


def _model(args: Sequence[str]) -> int:
    """The commands of two words. `model run` is the only one."""
    if not args:
        say(_help_of_model())
        return 1
    first, *rest = args
    if first in _HELP:
        print(_help_of_model())
        return 0
    if first == "run":
        return _run_small("model run", rest)
    return _unknown(first, ("run",), "halimede model")


def _perf(args: Sequence[str]) -> int:
    with quick_imports():
        from halimede.cli.perf import perf

    return perf(args)


def _analyze(args: Sequence[str]) -> int:
    with quick_imports():
        from halimede.cli.analyze import analyze

    return analyze(args)


def _run_small(command: str, args: Sequence[str]) -> int:
    """A command whose line argparse reads; `halimede.cli` has a module of its name with its `run`."""
    from halimede.cli.arguments import Completion, read  # `serve` does without argparse

    try:
        order = read(command, args)
    except SystemExit:  # argparse has printed the help
        return 0
    except Error as error:
        return _refuse(f"halimede {command}", error)
    if isinstance(order, Completion):
        return _completion(order.shell)
    for warning in order.warnings:
        say_warning(warning, "Warning")
    with quick_imports():
        module = import_module(f"halimede.cli.{command.replace(' ', '_')}")
    status: int = module.run(order)
    return status


def _completion(shell: str) -> int:
    try:
        from halimede.cli.completion import script_of
    except ImportError:
        say_error("completion needs a library: pip install 'halimede[completion]'")
        return 1
    print(script_of(shell, {name: command.summary for name, command in COMMANDS.items()}), end="")
    return 0


def _show_help(args: Sequence[str]) -> int:
    """`halimede help`, or `halimede help` with the words of a command."""
    if args:
        return _run([*args, "--help"])
    print(_help())
    return 0


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "serve": Command("serve the models of model repositories over HTTP and gRPC", _serve),
        "perf": Command("measure how fast a server answers: halimede perf MODEL", _perf),
        "analyze": Command("find the best configuration of a model: halimede analyze profile MODEL -m REPO", _analyze),
        "top": Command("show what the models of a running server do: halimede top URL", partial(_run_small, "top")),
        "health": Command("ask a server whether it is ready: halimede health URL", partial(_run_small, "health")),
        "console": Command("show a running server in a browser: halimede console URL", partial(_run_small, "console")),
        "init": Command("make a model of a file: halimede init FILE REPO", partial(_run_small, "init")),
        "convert": Command(
            "make a model file of another format: halimede convert FILE --to FORMAT", partial(_run_small, "convert")
        ),
        "check": Command("name every problem of model repositories: halimede check REPO", partial(_run_small, "check")),
        "graph": Command("draw the steps of an ensemble: halimede graph MODEL", partial(_run_small, "graph")),
        "auth": Command("make keys for --auth: halimede auth add NAME --role ROLE", partial(_run_small, "auth")),
        "model": Command("run one model without a server: halimede model run PATH", _model),
        "completion": Command("complete words in a shell: halimede completion bash", partial(_run_small, "completion")),
        "help": Command("list the commands, or the options of one: halimede help COMMAND", _show_help),
    }
)


_HELP = ("--help", "-h", "help")


def _help() -> str:
    commands = "\n".join(f"  {name:12}{command.summary}" for name, command in COMMANDS.items())
    return (
        f"Usage: halimede <command> [options]\n\nCommands:\n{commands}\n\n"
        "halimede <command> --help lists its options; halimede --version prints the version."
    )


def _help_of_model() -> str:
    return (
        "Usage: halimede model <command> [options]\n\nCommands:\n"
        "  run         run one model without a server: halimede model run PATH\n\n"
        "halimede model run --help lists its options."
    )


def _version() -> int:
    print(f"halimede {__version__} ({FORM})")
    return 0


def _unknown(word: str, known: Sequence[str], command: str) -> int:
    near = suggestion(word, (*known, "--help", "--version"))
    if near:
        hint = near
    elif word.startswith("-"):
        hint = f". Options follow a command: {command} {known[0]} {word}"
    else:
        hint = f"\n{command} --help lists the commands."
    say_error(f"unknown {'option' if word.startswith('-') else 'command'} '{word}'{hint}")
    return 1


def _fill_standard_descriptors() -> None:
    """Opens /dev/null for each of the descriptors 0, 1 and 2 that the parent process closed. Otherwise a socket would
    get such a number, and its client would receive what is written to standard error."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line, without the program's name. Returns the exit status."""
    return _guarded(_run, argv)


def tritonserver(argv: Sequence[str] | None = None) -> int:
    """Runs the words after `tritonserver`: `halimede serve` under Triton's name."""
    return _guarded(_serve_as_triton, argv)


def _guarded(run: Callable[[Sequence[str]], int], argv: Sequence[str] | None) -> int:
    """Runs a command line in a process that is prepared for it. None: that of this process."""
    if argv is None:
        _fill_standard_descriptors()
    set_environment()  # before any runtime is imported, here or in a worker
    try:
        status = run(sys.argv[1:] if argv is None else argv)
        if sys.stdout is not None:  # it is None if the parent process closed it
            sys.stdout.flush()
    except BrokenPipeError:
        if _is_read(sys.stdout.fileno()):
            raise
        # The reader is gone, as with `| head`. Python would fail to write the rest again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        say_error("interrupted")
        return 128 + signal.SIGINT
    return status


def _is_read(descriptor: int) -> bool:
    """False for a pipe whose reader is gone."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return not poll.poll(0)


def _run(words: Sequence[str]) -> int:
    if not words:
        say(_help())
        return 1
    first, *rest = words
    # Asked for, so it goes to standard output; the help after a mistake does not.
    if first in ("--help", "-h"):
        print(_help())
        return 0
    if first == "--version":
        return _version()
    command = COMMANDS.get(first)
    return command.run(rest) if command else _unknown(first, tuple(COMMANDS), "halimede")
