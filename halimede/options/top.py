"""The command line of `halimede top`. Pure. Raises `Invalid` for a wrong line, `HelpRequested` before any error."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from halimede.errors import Invalid
from halimede.options.flags import Flag
from halimede.options.kinds import REAL, SWITCH, TEXT, Value
from halimede.options.parser import HelpRequested, suggestion
from halimede.options.usage import listing

_LIST = (
    Flag("help", SWITCH, None, "Print this text."),
    Flag(
        "metrics-url", TEXT, None,
        "Where the server's metrics are. If not given: port 8002 of the same machine, or /metrics of the HTTP port.",
    ),
    Flag("interval", REAL, "1.0", "Seconds between two looks at the server."),
    Flag("once", SWITCH, None, "Show what the server does in one interval, and end."),
    Flag("json", SWITCH, None, "With --once: print a JSON document instead of a table."),
)  # fmt: skip
TOP_FLAGS: Mapping[str, Flag] = MappingProxyType({flag.name: flag for flag in _LIST})
_SHORTEST = 0.1


_URL = "localhost:8000"


@dataclass(frozen=True, slots=True)
class Top:
    """What to watch, and how; `interval` in seconds."""

    url: str = _URL
    metrics_url: str = ""
    interval: float = 1.0
    once: bool = False
    json: bool = False


def top_usage() -> str:
    return (
        "Usage: halimede top [URL] [options]\n\n"
        "Shows what the models of a running server do: throughput, latency, batches, queues\n"
        "and instances, of any server that speaks Triton's protocol. URL is its HTTP port\n"
        "(default localhost:8000). Ctrl-C ends it.\n\n" + listing({"": _LIST})
    )


def parse_top(args: Sequence[str]) -> Top:
    """Reads the words after `top`."""
    given: dict[str, Value] = {}
    others: list[str] = []
    words = iter(args)
    for word in words:
        if word in ("--help", "-h"):
            raise HelpRequested
        if word.startswith("--"):
            _read(word, words, given)
        else:
            others.append(word)
    if len(others) > 1:
        raise Invalid(f"Unexpected argument: {others[1]}")
    interval = float(str(given.get("interval", 1.0)))
    if interval < _SHORTEST:
        raise Invalid(f'Bad option: "--interval".\nIt is {_SHORTEST} seconds at least.')
    if "json" in given and "once" not in given:
        raise Invalid("--json is for --once")
    url = others[0] if others else _URL
    return Top(url, str(given.get("metrics-url", "")), interval, "once" in given, "json" in given)


def _read(word: str, following: Iterator[str], given: dict[str, Value]) -> None:
    name, equals, text = word[2:].partition("=")
    flag = TOP_FLAGS.get(name)
    if flag is None:
        raise Invalid(f"unrecognized option '{word}'{suggestion(name, tuple(TOP_FLAGS), '--{}')}")
    if flag.kind is SWITCH:
        if equals:
            raise Invalid(f"option '--{name}' doesn't allow an argument")
        given[name] = True
        return
    value = text if equals else next(following, None)
    if value is None:
        raise Invalid(f"option '--{name}' requires an argument")
    try:
        given[name] = flag.kind.read(value)
    except Invalid as error:
        raise error.prefixed(f'Bad option: "--{name}".\n') from None
