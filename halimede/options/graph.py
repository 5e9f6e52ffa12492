"""The command line of `halimede graph`. Pure. Raises `Invalid` for a wrong line, `HelpRequested` before any error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from halimede.errors import Invalid
from halimede.options.flags import Flag
from halimede.options.kinds import SWITCH, TEXT
from halimede.options.parser import HelpRequested, suggestion
from halimede.options.usage import listing

_LIST = (
    Flag("help", SWITCH, None, "Print this text."),
    Flag("url", TEXT, "localhost:8000", "The HTTP port of a running server, which also tells how long steps take."),
    Flag(
        "model-repository", TEXT, None,
        "Read the configurations in this directory instead of asking a server. May be given several times.",
    ),
    Flag("svg", TEXT, None, "Write the drawing to this file as SVG and print none."),
    Flag("ascii", SWITCH, None, "Draw with characters that every terminal has."),
)  # fmt: skip
GRAPH_FLAGS: Mapping[str, Flag] = MappingProxyType({flag.name: flag for flag in _LIST})
_URL = "localhost:8000"


@dataclass(frozen=True, slots=True)
class Graph:
    """Which model to draw; `url` is empty where there are `repositories`. `svg` is a file, empty for the terminal."""

    model: str
    repositories: tuple[str, ...] = ()
    url: str = _URL
    svg: str = ""
    ascii: bool = False


def graph_usage() -> str:
    return (
        "Usage: halimede graph MODEL [options]\n\n"
        "Draws the steps of an ensemble, or one model: which tensors go where, their datatypes\n"
        "and shapes; of a running server also how long a request waits and runs in each step,\n"
        "on average, whoever asked.\n\n" + listing({"": _LIST})
    )


def parse_graph(args: Sequence[str]) -> Graph:
    """Reads the words after `graph`."""
    given: dict[str, list[str]] = {}
    others: list[str] = []
    words = iter(args)
    for word in words:
        if word in ("--help", "-h"):
            raise HelpRequested
        if not word.startswith("--"):
            others.append(word)
            continue
        name, equals, text = word[2:].partition("=")
        flag = GRAPH_FLAGS.get(name)
        if flag is None:
            raise Invalid(f"unrecognized option '{word}'{suggestion(name, tuple(GRAPH_FLAGS), '--{}')}")
        if flag.kind is SWITCH and equals:
            raise Invalid(f"option '--{name}' doesn't allow an argument")
        value = text if equals or flag.kind is SWITCH else next(words, None)
        if value is None or (flag.kind is TEXT and not value):
            raise Invalid(f"option '--{name}' requires an argument")
        given.setdefault(name, []).append(value)
    if len(others) != 1:
        raise Invalid(f"Unexpected argument: {others[1]}" if others else "the name of a model is missing")
    if "url" in given and "model-repository" in given:
        raise Invalid("--url and --model-repository: a drawing is of a server or of directories")
    if "svg" in given and "ascii" in given:
        raise Invalid("--ascii is for the terminal, not for --svg")
    repositories = tuple(given.get("model-repository", ()))
    url = "" if repositories else given.get("url", [_URL])[-1]
    return Graph(others[0], repositories, url, given.get("svg", [""])[-1], "ascii" in given)
