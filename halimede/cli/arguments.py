"""The command lines of the small commands, read by argparse: one frozen order for each command.

Knows no machinery of the commands, so a wrong line is answered before anything large is imported. `serve` is not here:
its texts are those of Triton and of getopt (`options.parser`). Pure, except that `--help` prints. Main thread.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType
from typing import NoReturn

from halimede.backends.registry import conversions
from halimede.errors import Invalid
from halimede.identities.roles import ROLES
from halimede.options import ServerOptions, parse, suggestion
from halimede.options.flags import FLAGS, Flag
from halimede.options.kinds import SWITCH

URL = "localhost:8000"
MIN_INTERVAL = 0.1
"""Seconds."""
FORMATS = ("text", "mermaid", "svg", "json")
SHELLS = ("bash", "zsh", "fish")
AUTH_FILE = "auth.toml"
AUTH_ACTIONS = {
    "add": ("role", "subject", "no-key", "rate", "burst", "concurrent", "expires-days"),
    "key": ("replace",),
    "list": ("json",),
    "remove": (),
}
"""What `halimede auth` does, and the options of each."""
_ENVIRONMENT_FLAGS = ("python-environments", "python-environment-directory", "python-environment-timeout-secs")


class Order:
    """What a command line asks for."""

    __slots__ = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is noteworthy about options of the server."""
        server: ServerOptions | None = getattr(self, "server", None)
        return server.warnings if server is not None else ()


@dataclass(frozen=True, slots=True)
class Top(Order):
    """Which server to watch. `metrics_url` is empty if it was not given; `interval` is in seconds."""

    url: str = URL
    metrics_url: str = ""
    interval: float = 1.0
    once: bool = False
    json: bool = False


@dataclass(frozen=True, slots=True)
class Health(Order):
    """Which server to ask, and whether it is enough that it is live."""

    url: str = URL
    live: bool = False


@dataclass(frozen=True, slots=True)
class Console(Order):
    """Which server to show, and at which address the console listens. `metrics_url` is empty if it was not given."""

    url: str
    metrics_url: str
    port: int
    address: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Init(Order):
    """Of which file to make a model, and in which repository. `name` is empty if the file gives the name."""

    source: str
    repository: str
    name: str
    server: ServerOptions
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Convert(Order):
    """Which file to convert, to which format, and where to write it; an empty `output` is beside the file. `inputs` are
    those of a model whose file does not name them, `environment` is a Python environment with its framework."""

    source: str
    to: str
    output: str
    inputs: tuple[str, ...] = ()
    environment: str = ""


@dataclass(frozen=True, slots=True)
class Check(Order):
    """Which repositories to look at. `server` has the options that a load of their models would have, `flags` the words
    that gave them."""

    repositories: tuple[str, ...]
    json: bool
    strict: bool
    load: bool
    migrate: bool
    server: ServerOptions
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Graph(Order):
    """Which model to draw, and as what. `url` is empty if there are `repositories`; `format` is one of `FORMATS`."""

    model: str
    repositories: tuple[str, ...] = ()
    url: str = URL
    format: str = "text"


@dataclass(frozen=True, slots=True)
class ModelRun(Order):
    """Which model directory to run, with what inputs. `version` is -1 if the configuration chooses; `sequence_id` is
    empty if it was not given."""

    path: str
    inputs: tuple[str, ...]
    sequence: bool
    sequence_id: str
    version: int
    json: bool
    repeat: int
    server: ServerOptions


@dataclass(frozen=True, slots=True)
class Completion(Order):
    """The shell to print a script for."""

    shell: str


@dataclass(frozen=True, slots=True)
class Auth(Order):
    """What to do with which identity in which file. `action` is one of `AUTH_ACTIONS`. `rate`, `burst`, `concurrent`
    and `expires_days` are 0 if they were not given."""

    action: str
    name: str
    file: str
    roles: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    no_key: bool = False
    replace: bool = False
    rate: float = 0.0
    burst: int = 0
    concurrent: int = 0
    expires_days: float = 0.0
    json: bool = False


class Parser(argparse.ArgumentParser):
    """Raises Invalid for a wrong line, and names the nearest option for one that is misspelt."""

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Raises SystemExit after it has printed the help."""
        # Intermixed: `check a --json b` has two repositories.
        given, unknown = self.parse_known_intermixed_args(words)
        for word in unknown:
            if word.startswith("-"):
                name = word.lstrip("-").partition("=")[0].replace("_", "-").lower()
                known = [option[2:] for option in self._option_string_actions if option.startswith("--")]
                raise Invalid(f"unrecognized option '{word}'{suggestion(name, known, '--{}')}")
        if unknown:
            raise Invalid(f"unexpected argument: {unknown[0]}")
        return given

    # argparse would print its own usage and end the process.
    def error(self, message: str) -> NoReturn:
        raise Invalid(message)


def read(command: str, words: Sequence[str]) -> Order:
    """The order that the words after `command` give. Raises Invalid, and SystemExit after it has printed the help."""
    add, order_of = COMMANDS[command]
    parser = Parser(f"halimede {command}", allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)
    add(parser)
    return order_of(parser.read(words))


# ---- arguments


def _add_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", nargs="?", default=URL, metavar="URL", help=f"HTTP port of the server (default {URL})")


def _add_metrics_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--metrics-url",
        default="",
        metavar="URL",
        help="where the server's metrics are, with or without /metrics at the end (default: port 8002 of the same "
        "machine, or /metrics of the HTTP port)",
    )


def add_top(parser: argparse.ArgumentParser) -> None:
    parser.usage = "halimede top [URL] [options]"
    parser.description = (
        "Shows what the models of a running server do: throughput, latency, batches, queues and instances. It works "
        "with any\nserver that speaks Triton's protocol. Ctrl-C ends it."
    )
    _add_url(parser)
    _add_metrics_url(parser)
    parser.add_argument(
        "--interval", type=_interval, default=1.0, metavar="SECONDS", help="between two samples (default 1)"
    )
    parser.add_argument("--once", action="store_true", help="show one interval and exit")
    parser.add_argument("--json", action="store_true", help="with --once: print JSON instead of a table")


def add_health(parser: argparse.ArgumentParser) -> None:
    parser.usage = "halimede health [URL] [options]"
    parser.description = (
        "Asks a running server whether it is ready, for health checks of containers. The exit status is 0 if it is.\n"
        "It works with any server that speaks Triton's protocol. HALIMEDE_KEY has the key of a server with --auth."
    )
    _add_url(parser)
    parser.add_argument(
        "--live", action="store_true", help="whether it is live: it answers, though models may be missing"
    )


def add_console(parser: argparse.ArgumentParser) -> None:
    parser.usage = "halimede console [URL] [options]"
    parser.description = (
        "Opens a page for browsers that shows a running server and tries its models. It works with any server that "
        "speaks\nTriton's protocol; what such a server does not tell is left out. Ctrl-C ends it. HALIMEDE_KEY has "
        "the key of a server\nwith --auth. For a server of your own, halimede serve --console-port=8003 shows more."
    )
    _add_url(parser)
    _add_metrics_url(parser)
    parser.add_argument("--console-port", type=_port, default=8003, metavar="NUMBER", help="port (default 8003)")
    parser.add_argument(
        "--console-address", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (default 127.0.0.1)"
    )
    parser.add_argument(
        "--console-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name by which browsers may know the console, besides localhost and addresses; may be repeated",
    )


def add_init(parser: argparse.ArgumentParser) -> None:
    parser.usage = "halimede init FILE REPO [options]"
    parser.description = (
        "Makes a model in the repository REPO out of a file: model.onnx, a directory with a model.onnx and its data, "
        "or\nmodel.py. Copies the file and writes a commented configuration. Inputs and outputs are those that the "
        "model declares;\nfor a Python model its auto_complete_config runs, if it has one. A file that does not name "
        "them (TorchScript) is run\nonce, on the inputs of --input. An existing model is left alone."
    )
    parser.add_argument("source", metavar="FILE", help="the model's file, or the directory with it")
    parser.add_argument("repository", metavar="REPO", help="directory of the model repository")
    parser.add_argument(
        "--name", default="", metavar="NAME", help="name of the model (default: that of the file, without its ending)"
    )
    _add_inputs(parser)
    _add_server_flags(parser, "backend-config")


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        dest="inputs",
        metavar="NAME:DATATYPE[SIZES]",
        help="an input of a TorchScript model, such as x:FP32[-1,3]; -1 is any size, and first the batch. May be "
        "repeated",
    )


def add_convert(parser: argparse.ArgumentParser) -> None:
    parser.usage = "halimede convert FILE --to FORMAT [options]"
    parser.description = (
        "Converts a model to another format, with the converter of its framework, and prints the largest difference\n"
        "of the outputs on random inputs. A forest of scikit-learn in a pickle becomes a checkpoint of treelite.\n"
        "Opening a pickle or TorchScript runs code that is in it: convert only files from people whom you trust."
    )
    parser.add_argument("source", metavar="FILE", help="a model file, a model directory, or a pickle of scikit-learn")
    parser.add_argument("--to", required=True, choices=tuple(conversions()), help="the format to make")
    parser.add_argument(
        "--output", default="", metavar="FILE", help="the file to write (default: beside FILE, with its usual name)"
    )
    _add_inputs(parser)
    parser.add_argument(
        "--environment",
        default="",
        metavar="DIRECTORY",
        help="a virtual environment that has TensorFlow (default: that of halimede)",
    )


def add_check(parser: argparse.ArgumentParser) -> None:
    parser.usage = "halimede check REPO [REPO ...] [options]"
    parser.description = (
        "Says of each model in these repositories whether it serves, and if not, why and what to do; then names every\n"
        "problem: where it is, and what to write instead. No code of a model runs, unless --load is given. The exit\n"
        "status is 1 if there are errors, 0 if there are none or only warnings."
    )
    parser.add_argument("repositories", nargs="+", metavar="REPO", help="directory of a model repository")
    parser.add_argument(
        "--migrate",
        action="store_true",
        help="print a table of what each model needs, and the commands that install it and start the server",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document, for tools")
    parser.add_argument("--strict", action="store_true", help="exit with status 1 for warnings too")
    parser.add_argument(
        "--load", action="store_true", help="also load the models as the server would; this runs their code"
    )
    _add_server_flags(
        parser,
        "backend-directory",
        "backend-config",
        "repoagent-directory",
        "model-config-name",
        "disable-auto-complete-config",
        "gpu-fallback",
        *_ENVIRONMENT_FLAGS,
        "model-namespacing",
        "log-verbose",
    )


def add_graph(parser: argparse.ArgumentParser) -> None:
    parser.usage = "halimede graph MODEL [options]"
    parser.description = (
        "Draws the steps of an ensemble, or one model: which tensors go where, their datatypes and shapes. For a "
        "running\nserver also how long a request waits and runs in each step on average, whoever sent it."
    )
    parser.add_argument("model", metavar="MODEL", help="name of the model")
    # Both would leave open which one the graph shows.
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--url", type=_filled, default=URL, metavar="URL", help=f"HTTP port of a running server (default {URL})"
    )
    source.add_argument(
        "--model-repository",
        type=_filled,
        action="append",
        default=[],
        metavar="DIRECTORY",
        help="read the configurations in this directory instead of asking a server; may be repeated",
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="text",
        help="text (default); mermaid, which GitHub and others draw; svg; json, for tools",
    )


def add_model_run(parser: argparse.ArgumentParser) -> None:
    parser.usage = "halimede model run PATH [options]"
    parser.description = (
        "Runs the model in the directory PATH without a server: loads it as the server would, sends one request, and "
        "prints\nthe outputs. What the model prints goes to standard error, and so do tracebacks. The exit status is "
        "1 if anything\nfailed. Models beside PATH that it needs, such as the steps of an ensemble, are loaded too."
        "\n\n  halimede model run models/add --input 'A=[1,2]' --input 'B=[3,4]'\n"
        "  halimede model run models/counter --sequence --input X=1 --input X=2 --input X=3"
    )
    parser.add_argument("path", metavar="PATH", help="the model's directory")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        dest="inputs",
        metavar="NAME=VALUE",
        help="an input: NAME=[1,2,3] (JSON), NAME=@FILE.npy, NAME=@FILE.json, and for BYTES also NAME=text or "
        "NAME=@FILE for the content of any file; the batch dimension may be left out. Or a file with a whole request "
        "as HTTP has it, or with a list of them, which are sent one after the other. May be repeated",
    )
    parser.add_argument(
        "--sequence",
        action="store_true",
        help="send the requests as one sequence; an input that is given several times makes a request of each value. "
        "A model with sequence_batching always gets a sequence",
    )
    parser.add_argument(
        "--sequence-id",
        type=_filled,
        metavar="ID",
        help="correlation id of the sequence, a number or a text (default 1)",
    )
    parser.add_argument(
        "--version", type=_count, default=-1, metavar="NUMBER", help="version to run (default: as configured)"
    )
    parser.add_argument("--json", action="store_true", help="print each response as HTTP's JSON, one on a line")
    parser.add_argument(
        "--repeat",
        type=_count,
        default=1,
        metavar="TIMES",
        help="send it this often and print how long it took",
    )
    parser.add_argument(
        "--model-repository",
        dest="server",
        action="append",
        type="--model-repository={}".format,
        metavar="DIRECTORY",
        help="repository of models that this one may call; all of them are loaded first, for an ensemble those that it "
        "needs; may be repeated (default: the directory around PATH, with the models whose names are quoted in the "
        "model's files)",
    )
    parser.add_argument(
        "--load-model",
        dest="server",
        action="append",
        type="--load-model={}".format,
        metavar="NAME",
        help="load just this one of the models that it may call; may be repeated",
    )
    _add_server_flags(
        parser,
        "backend-directory",
        "backend-config",
        "repoagent-directory",
        "model-config-name",
        "disable-auto-complete-config",
        "gpu-fallback",
        *_ENVIRONMENT_FLAGS,
        "log-verbose",
    )


def add_auth(parser: argparse.ArgumentParser) -> None:
    parser.usage = "halimede auth add|key|list|remove [NAME] [options]"
    parser.description = (
        "Changes or shows a file of identities for halimede serve --auth=FILE. A running server reads it again within\n"
        "seconds. Keys are printed once; the file has only hashes of them.\n\n"
        "  add NAME      make an identity and a key for it\n"
        "  key NAME      make another key for an identity\n"
        "  list          show the identities\n"
        "  remove NAME   remove an identity with its keys"
    )
    parser.add_argument("action", choices=tuple(AUTH_ACTIONS), metavar="ACTION", help=", ".join(AUTH_ACTIONS))
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="name of the identity")
    parser.add_argument("--file", type=_filled, default=AUTH_FILE, metavar="FILE", help=f"default {AUTH_FILE}")
    add = parser.add_argument_group("options of add")
    add.add_argument(
        "--role",
        action="append",
        choices=tuple(ROLES),
        metavar="ROLE",
        help=f"what it may do: {', '.join(ROLES)}; may be repeated",
    )
    add.add_argument(
        "--subject",
        action="append",
        type=_filled,
        metavar="NAME",
        help="a name in client certificates that shows this identity, such as CN=alice; may be repeated",
    )
    add.add_argument("--no-key", action="store_true", help="make no key: only certificates show it")
    add.add_argument("--rate", type=_rate, metavar="NUMBER", help="requests per second (default: any)")
    add.add_argument(
        "--burst", type=_count, metavar="NUMBER", help="requests that may come together (default: the rate)"
    )
    add.add_argument("--concurrent", type=_count, metavar="NUMBER", help="inferences in flight (default: any)")
    add.add_argument("--expires-days", type=_rate, metavar="NUMBER", help="days until it expires (default: never)")
    key = parser.add_argument_group("options of key")
    key.add_argument("--replace", action="store_true", help="remove its earlier keys")
    shown = parser.add_argument_group("options of list")
    shown.add_argument("--json", action="store_true", help="print JSON instead of a table")


def add_completion(parser: argparse.ArgumentParser) -> None:
    parser.usage = "halimede completion bash|zsh|fish"
    parser.description = (
        "Prints a script that lets the shell complete commands, flags and their values:\n\n"
        "  bash:  source <(halimede completion bash)              in ~/.bashrc\n"
        '  zsh:   eval "$(halimede completion zsh)"               in ~/.zshrc, after compinit\n'
        "  fish:  halimede completion fish > ~/.config/fish/completions/halimede.fish"
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def _add_server_flags(parser: argparse.ArgumentParser, *names: str) -> None:
    """Flags of `halimede serve` with the same meaning. `options.parser` reads their values (`_server`)."""
    # A group of their own in the help, since their full description is that of `serve`.
    group = parser.add_argument_group("options of the server")
    for name in names:
        add_flag(group, FLAGS[name])


def add_flag(group: argparse._ActionsContainer, flag: Flag) -> None:
    """A flag of `halimede serve`. Its words are appended to `server` as they were given."""
    # argparse formats help texts with `%`. Those of its own have no capital and no full stop.
    text = flag.help[0].lower() + flag.help[1:].rstrip(".").replace("%", "%%")
    if flag.kind is SWITCH:
        group.add_argument(f"--{flag.name}", dest="server", action="append_const", const=f"--{flag.name}", help=text)
        return
    group.add_argument(
        f"--{flag.name}",
        dest="server",
        action="append",
        type=f"--{flag.name}={{}}".format,
        metavar="DIRECTORY" if flag.name.endswith("-directory") else flag.kind.label,
        help=text,
    )


def _server(given: argparse.Namespace, *first: str) -> ServerOptions:
    # The environment is for the server that `serve` starts.
    return parse([*first, *(given.server or ())], {})


# ---- values


def _interval(text: str) -> float:
    seconds = float(text)
    if not seconds >= MIN_INTERVAL:  # NaN is refused too
        raise argparse.ArgumentTypeError(f"{text} is less than {MIN_INTERVAL} seconds")
    return seconds


def _count(text: str) -> int:
    number = int(text)
    if not 1 <= number < 1 << 63:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 on")
    return number


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 to 65535")
    return number


def _filled(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("it is empty")
    return text


def _rate(text: str) -> float:
    number = float(text)
    if not 0.001 <= number < 1e9:  # NaN is refused too
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0.001 on")
    return number


_interval.__name__ = _rate.__name__ = "number"  # argparse names the type in its message
_port.__name__ = "integer"
_count.__name__ = "integer"


# ---- orders


def _top(given: argparse.Namespace) -> Top:
    # A stream of documents would need a form of its own.
    if given.json and not given.once:
        raise Invalid("--json needs --once")
    return Top(given.url, given.metrics_url, given.interval, given.once, given.json)


def _health(given: argparse.Namespace) -> Health:
    return Health(given.url, given.live)


def _console(given: argparse.Namespace) -> Console:
    hosts = tuple(name.lower() for name in given.console_host)
    return Console(given.url, given.metrics_url, given.console_port, given.console_address, hosts)


def _init(given: argparse.Namespace) -> Init:
    return Init(given.source, given.repository, given.name, _server(given), tuple(given.inputs))


def _convert(given: argparse.Namespace) -> Convert:
    return Convert(given.source, given.to, given.output, tuple(given.inputs), given.environment)


def _check(given: argparse.Namespace) -> Check:
    # A path without its trailing slash, so that the same repository is checked once.
    plain = (each if "://" in each else str(PurePath(each)) for each in given.repositories)
    server = _server(given, "--model-control-mode=explicit")
    flags = tuple(given.server or ())
    return Check(tuple(dict.fromkeys(plain)), given.json, given.strict, given.load, given.migrate, server, flags)


def _graph(given: argparse.Namespace) -> Graph:
    repositories = tuple(given.model_repository)
    # Without repositories a server is asked, by default the one on this machine.
    return Graph(given.model, repositories, "" if repositories else given.url, given.format)


def _model_run(given: argparse.Namespace) -> ModelRun:
    server = _server(given, "--model-control-mode=explicit")
    sequence = given.sequence, given.sequence_id or ""
    return ModelRun(given.path, tuple(given.inputs), *sequence, given.version, given.json, given.repeat, server)


def _auth(given: argparse.Namespace) -> Auth:
    takes = AUTH_ACTIONS[given.action]
    for option in {name for names in AUTH_ACTIONS.values() for name in names} - set(takes):
        if getattr(given, option.replace("-", "_")):
            raise Invalid(f"--{option} is no option of {given.action}")
    if bool(given.name) is (given.action == "list"):
        raise Invalid("list takes no name" if given.name else f"{given.action} needs the name of an identity")
    return Auth(
        given.action,
        given.name,
        given.file,
        tuple(dict.fromkeys(given.role or ())),
        tuple(dict.fromkeys(given.subject or ())),
        given.no_key,
        given.replace,
        given.rate or 0.0,
        given.burst or 0,
        given.concurrent or 0,
        given.expires_days or 0.0,
        given.json,
    )


def _completion(given: argparse.Namespace) -> Completion:
    return Completion(given.shell)


COMMANDS: Mapping[str, tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], Order]]] = (
    MappingProxyType(
        {
            "top": (add_top, _top),
            "health": (add_health, _health),
            "console": (add_console, _console),
            "init": (add_init, _init),
            "convert": (add_convert, _convert),
            "check": (add_check, _check),
            "graph": (add_graph, _graph),
            "model run": (add_model_run, _model_run),
            "auth": (add_auth, _auth),
            "completion": (add_completion, _completion),
        }
    )
)
"""Of each command: what adds its arguments to a parser, and what makes its order."""
