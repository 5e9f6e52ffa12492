"""The statements in the text of a `config.pbtxt`, to find the line that a problem is about. Pure; any thread.

Reads the syntax of protobuf's text format (names, scalars, lists, braces) and knows no field. protobuf's own parser
decides whether a text is valid.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""[ \t\r\n\f\v]+|\#[^\n]*
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<word>[^\s\[\]{}<>:,;\#"']+)
    |(?P<mark>[\[\]{}<>:,;])
    |(?P<other>.)""",
    re.VERBOSE,
)
_CLOSING = {"{": "}", "<": ">"}
_MAX_DEPTH = 50
"""Messages within messages. Python's stack is the limit."""
_GROUP = re.compile(r"instance group .*?_(\d+) of model")
"""Texts name an unnamed group by its number."""
_QUOTED = re.compile(r"'([^']*)'")


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int


@dataclass(slots=True, eq=False)
class Statement:
    """A field with one value.

    `value` is the literal of a scalar; it is empty for a message, whose statements are `children`. `start` and `end`
    are the offsets of the whole statement. All elements of a list have the same ones.
    """

    name: str
    value: str
    line: int
    start: int
    end: int = 0
    children: list["Statement"] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The value without its quotes."""
        return self.value[1:-1] if self.value[:1] in ("'", '"') else self.value


class BadForm(Exception):
    """Syntax error. protobuf's own message is better."""


class Source:
    """The statements of a text; none after a syntax error.

    `model` is the name of the model. Texts of problems mention it without meaning a place, so it is ignored there.
    """

    def __init__(self, text: str, model: str = "") -> None:
        self.text = text
        self._model = re.compile(rf"(?<!\w){re.escape(model)}(?!\w)") if model else None
        try:
            self.statements = _Reader(text).read()
        except BadForm:
            self.statements = []

    def path_to(self, offset: int) -> list[Statement]:
        """The statements around an offset, the outermost first; empty if there are none."""
        path: list[Statement] = []
        inside = self.statements
        while True:
            found = next((each for each in inside if each.start <= offset < each.end), None)
            if found is None:
                return path
            # The elements of a list have the same offsets. The right one has a child at the offset.
            for each in inside:
                if each.start == found.start and any(c.start <= offset < c.end for c in each.children):
                    found = each
            path.append(found)
            inside = found.children

    def offset(self, line: int, column: int) -> int:
        """The offset of a place as parsers report it: line and column from 1."""
        lines = self.text.split("\n")
        return sum(len(each) + 1 for each in lines[: line - 1]) + column - 1

    def line_of(self, text: str, otherwise: str = "") -> int:
        """The line that the text of a problem is about; 0 if that is unknown.

        A value of the configuration in the text (`'IN0'`) leads to the message around it. A field in the text (`dims`,
        `max batch size`) leads to a line in that message, or anywhere if there is no such value. Without either it is
        the line of the field `otherwise`.
        """
        # An instance group is named by its number in the text, which is no value of the configuration.
        if group := _GROUP.search(text):
            groups = [each for each in self.statements if each.name == "instance_group"]
            if int(group[1]) < len(groups):
                one = groups[int(group[1])]
                return (_mentioned(one.children, text.lower()) or one).line
        if self._model is not None:
            text = self._model.sub(" ", text)
        words = re.sub(r"[\s-]+", "_", text.lower())
        named = self._named(text)
        if named:
            # Several fields may have the same value: the one whose surroundings the text mentions is meant.
            path = max(named, key=lambda path: (path[0].name == otherwise, _likeness(path, words), len(path)))
            around = path[-2].children if len(path) > 1 else [path[-1]]
            return (_mentioned(around, words) or path[-1]).line
        found = _mentioned([path[-1] for path in self._paths()], words)
        if found is None:
            found = next((path[-1] for path in self._paths() if path[-1].name == otherwise), None)
        return found.line if found is not None else 0

    def _named(self, text: str) -> list[list[Statement]]:
        """The paths to the values that a text mentions in quotes, or else without."""
        scalars = [path for path in self._paths() if path[-1].value]
        quoted = set(_QUOTED.findall(text))
        found = [path for path in scalars if path[-1].text in quoted]
        if found:
            return found
        # Some of Triton's texts write names without quotes.
        plain = {word.rstrip(".:,;") for word in text.split()}
        # A path ends with the name that the configuration has.
        plain |= {word.rpartition("/")[2] for word in plain}
        return [path for path in scalars if path[-1].value[:1] in ("'", '"') and path[-1].text in plain]

    def _paths(self) -> Iterator[list[Statement]]:
        def below(statements: list[Statement], above: list[Statement]) -> Iterator[list[Statement]]:
            for each in statements:
                yield [*above, each]
                yield from below(each.children, [*above, each])

        return below(self.statements, [])


def _likeness(path: list[Statement], words: str) -> int:
    """How well a value fits a text: the number of fields around it that the text mentions."""
    return sum(each.name in words for each in path[:-1])


def _mentioned(statements: list[Statement], words: str) -> Statement | None:
    """The statement with the longest name that the text mentions. Names that all messages have do not count."""
    names = [each for each in statements if each.name not in ("name", "key", "value")]
    known = [each for each in names if _is_mentioned(each.name, words)]
    return max(known, key=lambda each: len(each.name), default=None)


def _is_mentioned(name: str, words: str) -> bool:
    # Texts speak of one `input`, where the field is `inputs`; short words would fit anything.
    singular = name.removesuffix("s")
    return name in words or (len(singular) > 3 and singular in words) or _OTHER_WORDS.get(name, "\n") in words


_OTHER_WORDS = {
    "dims": "dimension",
    "preferred_batch_size": "preferred_size",
    "version_policy": "version_policy",
    "instance_group": "instances",
    "data_type": "datatype",
    "kind": "kind_",
    "gpus": "gpu id",
}
"""What texts write instead of a field's name."""


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens = [
            _Token(match.lastgroup, match[0], match.start(), match.end())
            for match in _TOKEN.finditer(text)
            if match.lastgroup
        ]
        self._breaks = [match.start() for match in re.finditer("\n", text)]
        self._at = 0

    def read(self) -> list[Statement]:
        found = self._statements("", 0)
        if self._at < len(self._tokens):
            raise BadForm
        return found

    def _statements(self, closing: str, depth: int) -> list[Statement]:
        if depth > _MAX_DEPTH:
            raise BadForm
        found: list[Statement] = []
        while self._at < len(self._tokens) and self._peek() != closing:
            found += self._statement(depth)
            if self._peek() in (",", ";"):
                self._at += 1
        return found

    def _statement(self, depth: int) -> list[Statement]:
        name = self._next()
        if name.kind != "word":
            raise BadForm
        if self._peek() == ":":
            self._at += 1
        values = self._list(name, depth) if self._peek() == "[" else [self._value(name, depth)]
        end = self._tokens[self._at - 1].end
        for each in values:
            each.end = end
        return values

    def _list(self, name: _Token, depth: int) -> list[Statement]:
        self._at += 1
        values: list[Statement] = []
        while self._peek() != "]":
            values.append(self._value(name, depth))
            if self._peek() == ",":
                self._at += 1
        self._at += 1
        # An empty list still has a line.
        return values or [Statement(name.text, "[]", self._line(name), name.start)]

    def _value(self, name: _Token, depth: int) -> Statement:
        first = self._next()
        if first.text in _CLOSING and first.kind == "mark":
            children = self._statements(_CLOSING[first.text], depth + 1)
            self._next()
            return Statement(name.text, "", self._line(first), name.start, children=children)
        if first.kind not in ("word", "string"):
            raise BadForm
        value = first.text
        # Strings that follow each other are one value in the text format.
        while first.kind == "string" and self._at < len(self._tokens) and self._tokens[self._at].kind == "string":
            value = value[:-1] + self._next().text[1:]
        return Statement(name.text, value, self._line(first), name.start)

    def _line(self, token: _Token) -> int:
        return bisect_left(self._breaks, token.start) + 1

    def _peek(self) -> str:
        return self._tokens[self._at].text if self._at < len(self._tokens) else ""

    def _next(self) -> _Token:
        if self._at >= len(self._tokens):
            raise BadForm
        self._at += 1
        return self._tokens[self._at - 1]
