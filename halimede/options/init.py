"""The command line of `halimede init`. Pure. Raises `Invalid` for a wrong line, `HelpRequested` before any error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from halimede.errors import Invalid
from halimede.options.flags import FLAGS, Flag
from halimede.options.kinds import SWITCH, text
from halimede.options.parser import parse
from halimede.options.usage import listing
from halimede.options.values import ServerOptions
from halimede.options.words import read_words, words_of

_OWN = (
    Flag("help", SWITCH, None, "Print this text."),
    Flag("name", text("name"), None, "Name of the model. If not given: that of the file, without its ending."),
)
_OF_THE_SERVER = (FLAGS["backend-config"],)
INIT_FLAGS: Mapping[str, Flag] = MappingProxyType({flag.name: flag for flag in (*_OWN, *_OF_THE_SERVER)})


@dataclass(frozen=True, slots=True)
class Init:
    """What to make a model of, where; `name` is empty where none is given."""

    source: str
    repository: str
    name: str
    server: ServerOptions


def init_usage() -> str:
    return (
        "Usage: halimede init MODEL REPO [options]\n\n"
        "Makes a model in the repository REPO of a file: model.onnx, a directory with a\n"
        "model.onnx and its data, or model.py. It copies the file, and writes a configuration\n"
        "with comments: inputs and outputs are those that the model itself declares; of a\n"
        "Python model its auto_complete_config is run for that, where it has one. A model\n"
        "that is there already is left as it is.\n\n" + listing({"": _OWN, "As of the server": _OF_THE_SERVER})
    )


def parse_init(args: Sequence[str]) -> Init:
    """Reads the words after `init`."""
    given, others = read_words(args, INIT_FLAGS)
    if len(others) != 2:
        missing = "MODEL, a file," if not others else "REPO, the directory of a model repository,"
        raise Invalid(f"Unexpected argument: {others[2]}" if len(others) > 2 else f"{missing} is missing")
    server = parse(words_of(given, INIT_FLAGS, [flag.name for flag in _OWN]), {})
    return Init(others[0], others[1], given.get("name", [""])[-1], server)
