"""The command line of `halimede model run`: its own flags, and those of the server that concern loading models.

Pure: touches no file and prints nothing. Raises `Invalid` for a wrong line, `HelpRequested` before any error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from halimede.errors import Invalid
from halimede.options.flags import FLAGS, Flag
from halimede.options.kinds import SWITCH, integer, text
from halimede.options.parser import parse
from halimede.options.usage import listing
from halimede.options.values import ServerOptions
from halimede.options.words import read_words, words_of

_OWN = (
    Flag("help", SWITCH, None, "Print this text."),
    Flag(
        "input",
        text("name=value"),
        None,
        "An input: NAME=[1,2,3] (JSON), NAME=@FILE.npy, NAME=@FILE.json, and for BYTES also NAME=text or NAME=@FILE "
        "for the content of any file. The batch dimension may be left out. Or a file with a whole request as HTTP has "
        "it.",
        repeatable=True,
    ),
    Flag("version", integer(bits=63, low=1), None, "Version to run, whatever the configuration chooses."),
    Flag("json", SWITCH, None, "Print each response as the JSON that HTTP answers with, one on a line."),
    Flag("repeat", integer(low=1), "1", "Send the request so often, and print how long it took."),
)
_OF_THE_SERVER = (
    Flag(
        "model-repository",
        text(),
        None,
        "Directory of a model repository whose models this one may call; they are loaded first.",
        repeatable=True,
    ),
    Flag("load-model", text(), None, "Load only this one of them.", repeatable=True),
    *(FLAGS[name] for name in ("backend-directory", "backend-config", "repoagent-directory")),
    *(FLAGS[name] for name in ("model-config-name", "disable-auto-complete-config", "log-verbose")),
)
MODEL_RUN_FLAGS: Mapping[str, Flag] = MappingProxyType({flag.name: flag for flag in (*_OWN, *_OF_THE_SERVER)})


@dataclass(frozen=True, slots=True)
class ModelRun:
    """What to run: the model's directory, what it is given, how often, how the answer is printed; `version` is -1 where
    none is given."""

    path: str
    inputs: tuple[str, ...]
    version: int
    json: bool
    repeat: int
    server: ServerOptions


def model_run_usage() -> str:
    return (
        "Usage: halimede model run PATH [options]\n\n"
        "Runs the model in the directory PATH without a server: loads it as the server\n"
        "would, sends one request, prints the outputs. What the model itself prints goes\n"
        "to standard error, and so do tracebacks. Exit status 1 where anything failed.\n\n"
        "  halimede model run models/add --input 'A=[1,2]' --input 'B=[3,4]'\n\n"
        + listing({"": _OWN, "Loading": _OF_THE_SERVER})
    )


def parse_model_run(args: Sequence[str]) -> ModelRun:
    """Reads the words after `model run`."""
    given, others = read_words(args, MODEL_RUN_FLAGS)
    if len(others) != 1:
        raise Invalid(f"Unexpected argument: {others[1]}" if others else "PATH, a model's directory, is missing")
    return _order(others[0], given)


def _order(path: str, given: Mapping[str, list[str]]) -> ModelRun:
    words = words_of(given, MODEL_RUN_FLAGS, [flag.name for flag in _OWN])
    server = parse(["--model-control-mode=explicit", *words], {})
    return ModelRun(
        path,
        tuple(given.get("input", ())),
        _number("version", given, -1),
        "json" in given,
        _number("repeat", given, 1),
        server,
    )


def _number(name: str, given: Mapping[str, list[str]], otherwise: int) -> int:
    if name not in given:
        return otherwise
    try:
        value = MODEL_RUN_FLAGS[name].kind.read(given[name][-1])
    except Invalid as error:
        raise error.prefixed(f'Bad option: "--{name}".\n') from None
    assert isinstance(value, int)
    return value
