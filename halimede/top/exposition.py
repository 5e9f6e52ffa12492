"""Reads metrics as Prometheus text has them, as far as a terminal view needs them. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+\S+)?")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Sample:
    """A line of the exposition."""

    name: str
    labels: Mapping[str, str]
    value: float


def read_metrics(text: str) -> Iterator[Sample]:
    """The samples in their order. What is none is passed over: a server may have metrics of whatever kind."""
    for line in text.splitlines():
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        name, labels, number = found.groups()
        try:
            value = float(number)
        except ValueError:
            continue
        yield Sample(name, {key: _plain(text) for key, text in _LABEL.findall(labels or "")}, value)


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], text)
